//! `Companion`: the process, its connections, and its end with the program.

use std::{future::pending, io, os::fd::OwnedFd, sync::Arc};

use rustix::process::{PidfdFlags, pidfd_open};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::{UnixListener, UnixStream},
    sync::mpsc::{UnboundedSender, unbounded_channel},
    task::{JoinSet, LocalSet},
};

use crate::{
    brokers::{Brokers, OpenBroker},
    connection, socket,
};

/// The options of a companion.
pub struct Options {
    /// The version of the program `raddle`, which the Python package compares with its own.
    pub version: &'static str,
    /// Opens brokers.
    pub open: OpenBroker,
}

/// Serves the sockets of programs.
pub struct Companion {
    shared: Arc<Shared>,
    sockets: tokio::sync::mpsc::UnboundedReceiver<OwnedFd>,
}

/// The state that all connections share.
pub(crate) struct Shared {
    pub(crate) version: &'static str,
    pub(crate) brokers: Brokers,
    #[cfg(feature = "pool")]
    pub(crate) pools: crate::pools::Pools,
    /// Sockets that programs have passed.
    connect: UnboundedSender<OwnedFd>,
}

impl Shared {
    /// Serves another socket of the program.
    pub(crate) fn connect(&self, socket: OwnedFd) {
        // The receiver lives as long as the connections.
        let _ = self.connect.send(socket);
    }
}

impl Companion {
    /// A companion that serves nothing yet.
    pub fn new(options: Options) -> Self {
        let (connect, sockets) = unbounded_channel();
        let shared = Arc::new(Shared {
            version: options.version,
            brokers: Brokers::new(options.open),
            #[cfg(feature = "pool")]
            pools: crate::pools::Pools::default(),
            connect,
        });
        Self { shared, sockets }
    }

    /// Serves the program that has made this socket pair, until it closes its end or dies.
    ///
    /// The end of the socket is not enough: a child that the program has forked keeps a copy of it.
    /// `PR_SET_PDEATHSIG` is not used, because the signal comes when the *thread* ends that has
    /// started this process, and programs start it from any thread. So the program is watched
    /// through a pidfd.
    pub async fn serve_program(self, socket: OwnedFd) -> io::Result<()> {
        let serving = async {
            let stream = socket::stream(socket)?;
            let program = socket::peer_process(&stream);
            let first = connection::serve(stream, Arc::clone(&self.shared));
            tokio::select! {
                served = first => served,
                () = wait_for_end(program) => Ok(()),
                never = self.serve_others(None) => never,
            }
        };
        // Requests run on this thread: an inline worker cannot move to another.
        LocalSet::new().run_until(serving).await
    }

    /// Serves any program of this user that connects to the listener. Never returns, except with an
    /// error.
    pub async fn serve_listener(self, listener: UnixListener) -> io::Result<()> {
        LocalSet::new()
            .run_until(self.serve_others(Some(listener)))
            .await
    }

    async fn serve_others(mut self, listener: Option<UnixListener>) -> io::Result<()> {
        let mut connections = JoinSet::new();
        loop {
            let stream = tokio::select! {
                Some(passed) = self.sockets.recv() => socket::stream(passed),
                accepted = accept(listener.as_ref()) => accepted,
                Some(_) = connections.join_next() => continue,
            };
            match stream {
                Ok(stream) => {
                    let shared = Arc::clone(&self.shared);
                    connections.spawn_local(async move {
                        if let Err(error) = connection::serve(stream, shared).await {
                            tracing::debug!(%error, "a connection was closed");
                        }
                    });
                }
                Err(error) => tracing::warn!(%error, "a connection was refused"),
            }
        }
    }
}

async fn accept(listener: Option<&UnixListener>) -> io::Result<UnixStream> {
    match listener {
        None => pending().await,
        Some(listener) => {
            let (stream, _) = listener.accept().await?;
            socket::check_peer(&stream)?;
            Ok(stream)
        }
    }
}

/// Returns when the process has ended.
async fn wait_for_end(process: Option<rustix::process::Pid>) {
    let Some(process) = process else {
        return pending().await;
    };
    match pidfd_open(process, PidfdFlags::empty()) {
        Ok(pidfd) => {
            // SAFETY: the pidfd is owned by the `AsyncFd`, which keeps it open and never replaces
            // it.
            let watched = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) };
            match watched {
                Ok(watched) => drop(watched.readable().await),
                Err(_) => pending().await,
            }
        }
        // It has ended already.
        Err(rustix::io::Errno::SRCH) => {}
        // The end of the socket remains.
        Err(_) => pending().await,
    }
}
