//! Writing to the host. A message is written by the thread that has it; only what the socket does
//! not take at once is left to a task.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use raddle_model::host::{ToHost, encode_message};
use rustix::net::{SendFlags, send};
use tokio::{net::UnixStream, sync::Notify};

/// The sending side.
pub(super) struct HostSocket {
    pub(super) stream: UnixStream,
    unsent: Mutex<Vec<u8>>,
    filled: Notify,
}

impl HostSocket {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            unsent: Mutex::default(),
            filled: Notify::new(),
        }
    }

    /// Sends a message.
    pub(super) fn push(&self, message: &ToHost<'_>, payload: Option<&[u8]>) {
        let mut unsent = self.lock();
        let is_idle = unsent.is_empty();
        encode_message(&mut unsent, message, payload);
        if is_idle {
            // An error shows in the next read.
            let sent = send(
                &self.stream,
                &unsent,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            );
            unsent.drain(..sent.unwrap_or(0));
            if !unsent.is_empty() {
                self.filled.notify_one();
            }
        }
    }

    /// Writes what the socket did not take at once. Ends with an error.
    pub(super) async fn write_rest(&self) -> io::Error {
        loop {
            self.filled.notified().await;
            loop {
                if let Err(error) = self.stream.writable().await {
                    return error;
                }
                let mut unsent = self.lock();
                match self.stream.try_write(&unsent) {
                    Ok(written) => drop(unsent.drain(..written)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return error,
                }
                if unsent.is_empty() {
                    break;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
