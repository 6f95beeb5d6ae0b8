//! A way to the server that can be made bad: a small TCP proxy.
//!
//! Two threads a connection, one for each direction. Trouble is looked at when something passes, and ends what exists when it begins.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::plan::Trouble;

const WRITE: Duration = Duration::from_secs(5);

/// The proxy. When it is dropped, it closes all connections and its threads end.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// The trouble has changed.
    changed: Condvar,
}

struct State {
    server: SocketAddr,
    trouble: Option<Trouble>,
    /// Counts changes, so that a wait that began in one trouble does not go on in the next.
    turn: u64,
    is_closed: bool,
    /// Both ends of every connection.
    open: HashMap<u64, [TcpStream; 2]>,
    next: u64,
    pumps: Vec<JoinHandle<()>>,
    /// Connections that trouble has ended or held.
    hit: u64,
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
            trouble: None,
            turn: 0,
            is_closed: false,
            open: HashMap::new(),
            next: 0,
            pumps: Vec::new(),
            hit: 0,
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

    /// Leads to another server from now on. Connections to the one before are over.
    pub(crate) fn lead_to(&self, server: SocketAddr) {
        let mut state = self.shared.lock();
        state.server = server;
        state.reset_all();
    }

    /// Begins a trouble, or ends all.
    pub(crate) fn set(&self, trouble: Option<Trouble>) {
        let mut state = self.shared.lock();
        // What was held without an answer stays without one: its client must not be served as if nothing had been.
        if trouble == Some(Trouble::Reset) || state.trouble == Some(Trouble::HalfOpen) {
            state.reset_all();
        }
        (state.trouble, state.turn) = (trouble, state.turn + 1);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// How many connections trouble has ended or held.
    pub(crate) fn hits(&self) -> u64 {
        self.shared.lock().hit
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let pumps = {
            let mut state = self.shared.lock();
            state.is_closed = true;
            state.reset_all();
            std::mem::take(&mut state.pumps)
        };
        self.shared.changed.notify_all();
        // Wakes the listener, which then sees that it is over.
        let _ = TcpStream::connect(self.address);
        pumps
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
        self.hit += self.open.len() as u64;
        self.open
            .drain()
            .for_each(|(_, ends)| ends.iter().for_each(reset));
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        let (trouble, server) = {
            let state = shared.lock();
            if state.is_closed {
                return;
            }
            (state.trouble, state.server)
        };
        let Ok(client) = client else { continue };
        if trouble == Some(Trouble::Reset) {
            shared.lock().hit += 1;
            reset(&client);
            continue;
        }
        // No server, no connection: the client sees what it would see without a proxy.
        match TcpStream::connect_timeout(&server, Duration::from_secs(2)) {
            Ok(server) => drop(join(shared, client, server)),
            Err(_) => reset(&client),
        }
    }
}

/// Passes on what comes, in both directions.
fn join(shared: &Arc<Shared>, client: TcpStream, server: TcpStream) -> io::Result<()> {
    for end in [&client, &server] {
        end.set_nodelay(true)?;
        // One that does not read must not hold a thread for ever.
        end.set_write_timeout(Some(WRITE))?;
    }
    let ends = [client.try_clone()?, server.try_clone()?];
    let mut state = shared.lock();
    let id = state.next;
    state.next += 1;
    state.open.insert(id, ends);
    state.pumps.retain(|pump| !pump.is_finished());
    let ways = [
        (
            client.try_clone()?,
            server.try_clone()?,
            Direction::ToServer,
        ),
        (server, client, Direction::ToClient),
    ];
    for (from, to, direction) in ways {
        let shared = Arc::clone(shared);
        let pump = move || {
            let ended = pump(&shared, from, to, direction);
            // Whatever ended one way ends the other, in the same way.
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
            .pumps
            .push(thread::Builder::new().name("pump".into()).spawn(pump)?);
    }
    Ok(())
}

/// Passes on what comes until it ends. An error is an end that the other side must see as one.
fn pump(
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

/// Waits as trouble demands. Returns whether what came may pass.
fn pass(shared: &Shared, direction: Direction) -> bool {
    let mut state = shared.lock();
    match state.trouble {
        Some(Trouble::Latency(time)) if direction == Direction::ToClient => {
            drop(state);
            thread::sleep(time);
            true
        }
        // The request has reached the server, as this is its reply.
        Some(Trouble::CutReply) if direction == Direction::ToClient => {
            state.hit += 1;
            false
        }
        Some(Trouble::Reset) => false,
        Some(Trouble::HalfOpen) => {
            state.hit += 1;
            let turn = state.turn;
            while state.turn == turn && !state.is_closed {
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

/// Ends a connection so that the other side sees a reset, not an end.
///
/// The kernel sends one when the last descriptor is closed without lingering. The threads that hold one are woken by the end of what
/// they read; to shut the other direction down as well would send an end first.
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
