//! The messages of a host to its worker: a buffer that attempts on all threads append to.

use std::{
    io,
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use raddle_model::host::{FromHost, encode_message};
use tokio::{io::Interest, net::UnixStream, sync::Notify};

/// Messages on their way to the worker.
pub(crate) struct Outbox {
    stream: Arc<UnixStream>,
    state: Mutex<Unsent>,
    wake: Notify,
}

#[derive(Default)]
struct Unsent {
    bytes: Vec<u8>,
    /// How much of `bytes` was sent.
    sent: usize,
}

/// Capacity that an empty buffer keeps.
const KEPT: usize = 256 * 1024;

impl Outbox {
    pub(super) fn new(stream: Arc<UnixStream>) -> Arc<Self> {
        Arc::new(Self {
            stream,
            state: Mutex::default(),
            wake: Notify::new(),
        })
    }

    /// Queues a message. The task that runs [`write_all`](Self::write_all) sends it, together with
    /// what other attempts say meanwhile.
    pub(crate) fn send(&self, message: &FromHost, payload: Option<&[u8]>) {
        encode_message(&mut self.state().bytes, message, payload);
        self.wake.notify_one();
    }

    /// Queues a message and sends it from this thread, unless the worker does not read at present.
    pub(super) fn send_now(&self, message: &FromHost, payload: Option<&[u8]>) {
        let mut state = self.state();
        encode_message(&mut state.bytes, message, payload);
        let is_done = self.flush(&mut state);
        drop(state);
        if !is_done {
            self.wake.notify_one();
        }
    }

    /// Sends everything that is queued.
    pub(super) async fn drain(&self) -> io::Result<()> {
        loop {
            if self.flush(&mut self.state()) {
                return Ok(());
            }
            self.stream.writable().await?;
            let wait = self.stream.try_io(Interest::WRITABLE, || {
                let mut state = self.state();
                match write(&self.stream, &mut state) {
                    Ok(()) => Ok(()),
                    Err(error) => Err(error),
                }
            });
            match wait {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends what is queued, for as long as the worker is there.
    pub(super) async fn write_all(self: Arc<Self>) -> io::Result<()> {
        loop {
            self.wake.notified().await;
            self.drain().await?;
        }
    }

    /// Returns whether nothing is left, or the worker reads no more: that shows when the socket is
    /// read.
    fn flush(&self, state: &mut Unsent) -> bool {
        while state.sent < state.bytes.len() {
            match write(&self.stream, state) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => {
                    (state.bytes, state.sent) = (Vec::new(), 0);
                    return true;
                }
            }
        }
        state.bytes.clear();
        state.bytes.shrink_to(KEPT);
        state.sent = 0;
        true
    }

    fn state(&self) -> MutexGuard<'_, Unsent> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(stream: &UnixStream, state: &mut Unsent) -> io::Result<()> {
    let written = rustix::net::send(
        stream.as_fd(),
        &state.bytes[state.sent..],
        rustix::net::SendFlags::NOSIGNAL,
    )?;
    state.sent += written;
    Ok(())
}
