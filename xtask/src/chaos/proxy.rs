//! A small TCP proxy that injects network faults between the campaign and its server.
//!
//! Each connection has two threads, one per direction. They check the fault when data passes; a new
//! fault also affects open connections.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::plan::NetworkFault;

const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// The proxy. Dropping it closes all connections and joins its threads.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Signals a change of the fault.
    changed: Condvar,
}

struct State {
    server: SocketAddr,
    network_fault: Option<NetworkFault>,
    /// Counts changes, so that a wait in one fault does not continue in the next.
    generation: u64,
    is_closed: bool,
    /// Both sockets of every connection.
    open: HashMap<u64, [TcpStream; 2]>,
    next: u64,
    copiers: Vec<JoinHandle<()>>,
    /// Connections that a fault closed or held.
    affected: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

impl Proxy {
    pub(crate) fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let state = State {
            server,
            network_fault: None,
            generation: 0,
            is_closed: false,
            open: HashMap::new(),
            next: 0,
            copiers: Vec::new(),
            affected: 0,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let accepting = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("proxy".into())
                .spawn(move || accept(&listener, &shared))?
        };
        Ok(Self {
            address,
            shared,
            accepting: Some(accepting),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the server for new connections, and resets the open ones.
    pub(crate) fn set_upstream(&self, server: SocketAddr) {
        let mut state = self.shared.lock();
        state.server = server;
        state.reset_all();
    }

    /// Sets the fault, or ends it.
    pub(crate) fn set(&self, network_fault: Option<NetworkFault>) {
        let mut state = self.shared.lock();
        // Requests that were held stay unanswered: a late reply would hide the fault.
        if network_fault == Some(NetworkFault::Reset)
            || state.network_fault == Some(NetworkFault::HalfOpen)
        {
            state.reset_all();
        }
        (state.network_fault, state.generation) = (network_fault, state.generation + 1);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// The number of connections that a fault closed or held.
    pub(crate) fn affected_connections(&self) -> u64 {
        self.shared.lock().affected
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let copiers = {
            let mut state = self.shared.lock();
            state.is_closed = true;
            state.reset_all();
            std::mem::take(&mut state.copiers)
        };
        self.shared.changed.notify_all();
        // Wakes `accept`, which then sees `is_closed`.
        let _ = TcpStream::connect(self.address);
        copiers
            .into_iter()
            .chain(self.accepting.take())
            .for_each(|thread| drop(thread.join()));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn reset_all(&mut self) {
        self.affected += self.open.len() as u64;
        self.open
            .drain()
            .for_each(|(_, ends)| ends.iter().for_each(reset));
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        let (network_fault, server) = {
            let state = shared.lock();
            if state.is_closed {
                return;
            }
            (state.network_fault, state.server)
        };
        let Ok(client) = client else { continue };
        if network_fault == Some(NetworkFault::Reset) {
            shared.lock().affected += 1;
            reset(&client);
            continue;
        }
        // The server is down: the client gets a reset, as without the proxy.
        match TcpStream::connect_timeout(&server, Duration::from_secs(2)) {
            Ok(server) => drop(forward(shared, client, server)),
            Err(_) => reset(&client),
        }
    }
}

/// Starts the two threads of a connection.
fn forward(shared: &Arc<Shared>, client: TcpStream, server: TcpStream) -> io::Result<()> {
    for end in [&client, &server] {
        end.set_nodelay(true)?;
        // A peer that does not read must not block a thread for ever.
        end.set_write_timeout(Some(WRITE_TIMEOUT))?;
    }
    let ends = [client.try_clone()?, server.try_clone()?];
    let mut state = shared.lock();
    let id = state.next;
    state.next += 1;
    state.open.insert(id, ends);
    state.copiers.retain(|copy| !copy.is_finished());
    let directions = [
        (
            client.try_clone()?,
            server.try_clone()?,
            Direction::ToServer,
        ),
        (server, client, Direction::ToClient),
    ];
    for (from, to, direction) in directions {
        let shared = Arc::clone(shared);
        let copy = move || {
            let ended = copy(&shared, from, to, direction);
            // The end of one direction ends the other: a shutdown after an end of file, a reset
            // after an error.
            let end = |end: &TcpStream| {
                if ended.is_ok() {
                    drop(end.shutdown(Shutdown::Both))
                } else {
                    reset(end)
                }
            };
            if let Some(ends) = shared.lock().open.remove(&id) {
                ends.iter().for_each(end);
            }
        };
        state
            .copiers
            .push(thread::Builder::new().name("pump".into()).spawn(copy)?);
    }
    Ok(())
}

/// Copies data until the end of file. An error means that the other side gets a reset.
fn copy(
    shared: &Shared,
    mut from: TcpStream,
    mut to: TcpStream,
    direction: Direction,
) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        if !pass(shared, direction) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        to.write_all(&buffer[..count])?;
    }
}

/// Waits as the fault demands. Returns whether the data may pass.
fn pass(shared: &Shared, direction: Direction) -> bool {
    let mut state = shared.lock();
    match state.network_fault {
        Some(NetworkFault::Latency(time)) if direction == Direction::ToClient => {
            drop(state);
            thread::sleep(time);
            true
        }
        // This is the reply, so the request has reached the server.
        Some(NetworkFault::CutReply) if direction == Direction::ToClient => {
            state.affected += 1;
            false
        }
        Some(NetworkFault::Reset) => false,
        Some(NetworkFault::HalfOpen) => {
            state.affected += 1;
            let generation = state.generation;
            while state.generation == generation && !state.is_closed {
                state = shared
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            false
        }
        _ => true,
    }
}

/// Closes a connection with a reset instead of an end of file.
///
/// The kernel sends a reset when the last descriptor is closed with a linger time of zero. The
/// threads that hold the other descriptors are woken by the shutdown of the read side; a shutdown
/// of the write side would send an end of file first.
fn reset(stream: &TcpStream) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the descriptor is open, and the option is a valid `linger` of the size that is given.
    unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        );
    }
    let _ = stream.shutdown(Shutdown::Read);
}

#[cfg(test)]
mod tests;
