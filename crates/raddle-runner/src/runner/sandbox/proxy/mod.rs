//! The way out of a sandbox that may reach a few places: a proxy that connects to those and to no other.
//!
//! It is a fork of the runner, outside of the sandbox but without its privileges, and ends with the attempt. What it listens at is inside:
//! the shim makes that socket in the network of the sandbox, and hands it over. Names are looked up here, so that the sandbox needs nobody
//! to ask; and an address of the host's own network is not connected to, whatever name leads there, unless that address is listed.

mod request;

use std::{
    ffi::CString,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use raddle_model::spec::{NetworkPolicy, network::NetworkEndpoint};
use rustix::process::{self, DumpableBehavior, Pid, Signal};

use self::request::ProxyRequest;
use super::{
    filter::{self, Sockets},
    ids, landlock, shim,
};
use crate::sys;

/// Where programs in the sandbox find it. Nobody else is there who could have the port.
const PORT: u16 = 3128;
/// The longest head of a request.
const LONGEST: usize = 16 * 1024;
/// How long a program may take to say what it wants, and a place to answer at all.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections at a time, each of which is two threads. Whoever wants more waits for one to end.
const MOST: usize = 64;

/// A proxy that waits for what it is to listen at.
pub(super) struct EgressProxy {
    pub(super) pid: u32,
    /// The shim's end of the way to it.
    door: OwnedFd,
}

/// The variables that lead programs to it.
pub(super) fn environment(network: &NetworkPolicy) -> Vec<CString> {
    if network.places().is_empty() {
        return Vec::new();
    }
    // What a program serves to itself is not for the proxy. An address that is listed means the host's.
    let listed: Vec<_> = network
        .places()
        .iter()
        .filter_map(NetworkEndpoint::address)
        .map(|address| address.to_string())
        .collect();
    let own = ["localhost", "127.0.0.1", "::1"]
        .into_iter()
        .filter(|own| !listed.iter().any(|listed| listed == own));
    let own = own.collect::<Vec<_>>().join(",");
    let at = format!("http://{}:{PORT}", Ipv4Addr::LOCALHOST);
    let pairs = [
        ("HTTP_PROXY", &at),
        ("HTTPS_PROXY", &at),
        ("NO_PROXY", &own),
    ];
    let both = pairs.iter().flat_map(|(name, value)| {
        [
            format!("{name}={value}"),
            format!("{}={value}", name.to_lowercase()),
        ]
    });
    both.filter_map(|variable| CString::new(variable).ok())
        .collect()
}

impl EgressProxy {
    /// Forks one. The runner has one thread, so the child is a whole process.
    pub(super) fn fork(network: &NetworkPolicy) -> io::Result<Self> {
        let (door, theirs) = sys::seqpacket_pair()?;
        let parent = process::getpid();
        let child = || {
            live(parent, &theirs, network);
            0
        };
        // SAFETY: a runner has one thread.
        let pid = unsafe { sys::fork(libc::SIGCHLD, child) }?;
        Ok(Self { pid, door })
    }

    /// What the shim keeps open.
    pub(super) fn door(&self) -> BorrowedFd<'_> {
        self.door.as_fd()
    }

    /// Ends it before it was of use.
    pub(super) fn discard(self) {
        sys::kill(self.pid, Signal::KILL);
        sys::wait_for_end(self.pid);
    }
}

/// Makes what a proxy listens at, in the network of this process, and hands it over.
pub(super) fn open(door: BorrowedFd<'_>) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))?;
    sys::send_with(door, b"L", &[listener.as_fd()])
}

/// The proxy's part. It reads what nobody trusts, and so has no more than it needs.
fn live(parent: Pid, door: &OwnedFd, network: &NetworkPolicy) {
    let _ = process::setpgid(None, None);
    shim::end_with_the_runner();
    let _ = process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    // What a panic would say is nothing for the worker's log: the runner's standard input is empty, and so is this.
    let _ = rustix::stdio::dup2_stderr(rustix::stdio::stdin());
    shim::close_all_but(&mut [0, 1, 2, door.as_raw_fd()]);
    let bound = || {
        ids::bound_capabilities();
        if sys::is_root() {
            ids::become_nobody()?;
            // Whoever changes its user loses what it had asked for.
            shim::end_with_the_runner();
        }
        ids::give_up_privileges()
    };
    // The parent may have died before its death was asked about.
    if bound().is_err() || process::getppid() != Some(parent) {
        return;
    }
    // The sandbox has these too, or may do without; what is here is a second lock.
    let _ = landlock::restrict(&["/"], &[], None);
    let _ = filter::install(Sockets::Usual);
    let listener = match sys::receive_with(door.as_fd(), 1) {
        Ok((_, mut passed)) => passed.pop().map(TcpListener::from),
        Err(_) => None,
    };
    if let Some(listener) = listener {
        serve(&listener, &Arc::new(network.clone()));
    }
}

fn serve(listener: &TcpListener, network: &Arc<NetworkPolicy>) {
    let open = Arc::new(AtomicUsize::new(0));
    for client in listener.incoming() {
        let Ok(client) = client else {
            // No descriptor is to be had; a connection that ends gives one back.
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        while open.load(Ordering::Acquire) >= MOST {
            thread::sleep(Duration::from_millis(5));
        }
        open.fetch_add(1, Ordering::AcqRel);
        let (network, open) = (Arc::clone(network), Arc::clone(&open));
        // It ends with its connection, or with the process.
        let started = thread::Builder::new().spawn({
            let open = Arc::clone(&open);
            move || {
                let _ = attend(client, &network);
                open.fetch_sub(1, Ordering::AcqRel);
            }
        });
        if started.is_err() {
            open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// One connection, from what is asked for to its end.
fn attend(mut client: TcpStream, network: &NetworkPolicy) -> io::Result<()> {
    let read = read_head(&mut client)?;
    let answer = |mut client: TcpStream, status: &str, why: &str| {
        let (length, why) = (why.len() + 9, format!("raddle: {why}\n"));
        write!(
            client,
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{why}"
        )
    };
    let (wanted, rest) = match read {
        Ok(read) => read,
        Err(why) => {
            return answer(
                client,
                "400 Bad Request",
                &format!("the request is not understood: {why}"),
            );
        }
    };
    let (ProxyRequest::Tunnel(place) | ProxyRequest::Forward(place, _)) = &wanted;
    let mut there = match reach(place, network) {
        Ok(there) => there,
        Err(ConnectError::Forbidden(why)) => return answer(client, "403 Forbidden", &why),
        Err(ConnectError::Failed(error)) => {
            return answer(client, "502 Bad Gateway", &format!("{place}: {error}"));
        }
    };
    match wanted {
        ProxyRequest::Tunnel(_) => {
            client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?
        }
        ProxyRequest::Forward(_, head) => there.write_all(&head)?,
    }
    there.write_all(&rest)?;
    join(client, there)
}

/// What a program asks for first, and what it has sent beyond that; or why it is not understood.
fn read_head(client: &mut TcpStream) -> io::Result<Result<(ProxyRequest, Vec<u8>), String>> {
    let until = Instant::now() + PATIENCE;
    let mut received = Vec::new();
    let mut part = [0; 2048];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || received.len() > LONGEST {
            return Err(io::ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
        let n = client.read(&mut part)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        received.extend_from_slice(&part[..n]);
        match request::parse(&received) {
            Ok(None) => {}
            Ok(Some((wanted, length))) => {
                client.set_read_timeout(None)?;
                return Ok(Ok((wanted, received.split_off(length))));
            }
            Err(why) => return Ok(Err(why)),
        }
    }
}

/// Why there is no connection.
enum ConnectError {
    Forbidden(String),
    Failed(io::Error),
}

fn reach(place: &NetworkEndpoint, network: &NetworkPolicy) -> Result<TcpStream, ConnectError> {
    if !network.lists(place) {
        return Err(ConnectError::Forbidden(format!(
            "{place} is not in the network of this task"
        )));
    }
    let found = raddle_dns::lookup_host_blocking(&place.host(), place.port())
        .map_err(ConnectError::Failed)?;
    let is_meant = |address: &SocketAddr| {
        NetworkEndpoint::new(&address.ip().to_string(), address.port())
            .is_ok_and(|own| network.lists(&own))
    };
    let (admitted, others): (Vec<SocketAddr>, Vec<_>) = found
        .into_iter()
        .partition(|address| network.admits(*address) && (is_meant(address) || !is_own(*address)));
    if admitted.is_empty() && !others.is_empty() {
        let why = "leads into the network of the host: list the address itself, if that is meant";
        return Err(ConnectError::Forbidden(format!("{place} {why}")));
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    for address in admitted {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(there) => return Ok(there),
            Err(error) => last = error,
        }
    }
    Err(ConnectError::Failed(last))
}

/// Whether an address is one of this host's own: what goes there passes by whatever guards the host from outside. Nothing is sent to find out.
fn is_own(address: SocketAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let from = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(address)?;
        socket.local_addr()
    });
    from.is_ok_and(|from| from.ip() == address.ip())
}

/// Passes on what either says, until both have ended.
fn join(client: TcpStream, there: TcpStream) -> io::Result<()> {
    let (from, to) = (client.try_clone()?, there.try_clone()?);
    let out = thread::Builder::new().spawn(move || pass(from, to))?;
    pass(there, client);
    let _ = out.join();
    Ok(())
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    if io::copy(&mut from, &mut to).is_err() {
        // Nobody listens there any more: then nothing more is to be said here either.
        let _ = from.shutdown(Shutdown::Both);
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_led_to_it_and_not_when_they_mean_themselves() {
        assert_eq!(environment(&NetworkPolicy::None), Vec::<CString>::new());
        assert_eq!(environment(&NetworkPolicy::Host), Vec::<CString>::new());
        let of = |network: &str| environment(&network.parse().unwrap());
        let named = of("example.org:443");
        for variable in [
            c"HTTPS_PROXY=http://127.0.0.1:3128",
            c"no_proxy=localhost,127.0.0.1,::1",
        ] {
            assert!(named.contains(&variable.into()), "{named:?}");
        }
        assert!(of("127.0.0.1:80").contains(&c"NO_PROXY=localhost,::1".into()));
    }
}
