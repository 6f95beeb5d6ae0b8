//! The egress proxy of a sandbox: connects to the endpoints that the task lists, and to no others.
//!
//! It is a fork of the runner outside the sandbox, without the runner's privileges, and ends with
//! the attempt. The shim creates the listening socket in the sandbox's network namespace and passes
//! it over. The proxy resolves names, so the sandbox needs no name server. It does not connect to
//! addresses of the host itself, whatever name resolves to them, unless that address is listed.

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

/// Port in the sandbox. The network namespace is new, so the port is free.
const PORT: u16 = 3128;
/// Maximum length of a request head.
const MAX_HEAD: usize = 16 * 1024;
/// Maximum time for a program to send its request, and for a connection to be established.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of connections at a time. Each needs two threads. Further connections wait.
const MAX_CONNECTIONS: usize = 64;

/// A proxy that waits for its listening socket.
pub(super) struct EgressProxy {
    pub(super) pid: u32,
    /// The shim's end of the connection over which the listener is passed.
    socket: OwnedFd,
}

/// The variables that direct programs to the proxy.
pub(super) fn environment(network: &NetworkPolicy) -> Vec<CString> {
    if network.endpoints().is_empty() {
        return Vec::new();
    }
    // A program's own services bypass the proxy. A listed loopback address means the host's.
    let listed: Vec<_> = network
        .endpoints()
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
    /// Forks a proxy. The runner has one thread, so the child is a complete process.
    pub(super) fn fork(network: &NetworkPolicy) -> io::Result<Self> {
        let (socket, theirs) = sys::seqpacket_pair()?;
        let parent = process::getpid();
        let child = || {
            run(parent, &theirs, network);
            0
        };
        // SAFETY: a runner has one thread.
        let pid = unsafe { sys::fork(libc::SIGCHLD, child) }?;
        Ok(Self { pid, socket })
    }

    /// The socket that the shim keeps open.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Kills a proxy that was not used.
    pub(super) fn discard(self) {
        sys::kill(self.pid, Signal::KILL);
        sys::wait_for_end(self.pid);
    }
}

/// Creates the listening socket in the network of this process, and passes it to the proxy.
pub(super) fn open_listener(socket: BorrowedFd<'_>) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))?;
    sys::send_with(socket, b"L", &[listener.as_fd()])
}

/// Main function of the proxy. It parses untrusted input, so it keeps no more privileges than it
/// needs.
fn run(parent: Pid, socket: &OwnedFd, network: &NetworkPolicy) {
    let _ = process::setpgid(None, None);
    shim::die_with_the_runner();
    let _ = process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    // Panic messages must not reach the worker's log. The runner's standard input is `/dev/null`.
    let _ = rustix::stdio::dup2_stderr(rustix::stdio::stdin());
    shim::close_all_except(&mut [0, 1, 2, socket.as_raw_fd()]);
    let bound = || {
        ids::bound_capabilities();
        if sys::is_root() {
            ids::become_overflow_user()?;
            // The kernel clears PR_SET_PDEATHSIG when the user changes.
            shim::die_with_the_runner();
        }
        ids::give_up_privileges()
    };
    // The parent may have died before PR_SET_PDEATHSIG was set.
    if bound().is_err() || process::getppid() != Some(parent) {
        return;
    }
    // Defence in depth: the proxy also works where the kernel refuses these.
    let _ = landlock::restrict(&["/"], &[], None);
    let _ = filter::install(Sockets::Usual);
    let listener = match sys::receive_with(socket.as_fd(), 1) {
        Ok((_, mut passed)) => passed.pop().map(TcpListener::from),
        Err(_) => None,
    };
    if let Some(listener) = listener {
        serve(&listener, &Arc::new(network.clone()));
    }
}

fn serve(listener: &TcpListener, network: &Arc<NetworkPolicy>) {
    let connections = Arc::new(AtomicUsize::new(0));
    for client in listener.incoming() {
        let Ok(client) = client else {
            // Out of descriptors: a connection that ends gives one back.
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        while connections.load(Ordering::Acquire) >= MAX_CONNECTIONS {
            thread::sleep(Duration::from_millis(5));
        }
        connections.fetch_add(1, Ordering::AcqRel);
        let (network, connections) = (Arc::clone(network), Arc::clone(&connections));
        // The thread ends with its connection, or with the process.
        let started = thread::Builder::new().spawn({
            let connections = Arc::clone(&connections);
            move || {
                let _ = handle_connection(client, &network);
                connections.fetch_sub(1, Ordering::AcqRel);
            }
        });
        if started.is_err() {
            connections.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Handles one connection.
fn handle_connection(mut client: TcpStream, network: &NetworkPolicy) -> io::Result<()> {
    let read = read_request(&mut client)?;
    let respond = |mut client: TcpStream, status: &str, why: &str| {
        let (length, why) = (why.len() + 9, format!("raddle: {why}\n"));
        write!(
            client,
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{why}"
        )
    };
    let (request, rest) = match read {
        Ok(read) => read,
        Err(why) => {
            return respond(
                client,
                "400 Bad Request",
                &format!("invalid request: {why}"),
            );
        }
    };
    let (ProxyRequest::Tunnel(endpoint) | ProxyRequest::Forward(endpoint, _)) = &request;
    let mut server = match connect(endpoint, network) {
        Ok(server) => server,
        Err(ConnectError::Forbidden(why)) => return respond(client, "403 Forbidden", &why),
        Err(ConnectError::Failed(error)) => {
            return respond(client, "502 Bad Gateway", &format!("{endpoint}: {error}"));
        }
    };
    match request {
        ProxyRequest::Tunnel(_) => {
            client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?
        }
        ProxyRequest::Forward(_, head) => server.write_all(&head)?,
    }
    server.write_all(&rest)?;
    copy_both(client, server)
}

/// Reads the request and the bytes received beyond it; or the reason why it is invalid.
fn read_request(client: &mut TcpStream) -> io::Result<Result<(ProxyRequest, Vec<u8>), String>> {
    let until = Instant::now() + TIMEOUT;
    let mut received = Vec::new();
    let mut part = [0; 2048];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || received.len() > MAX_HEAD {
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
            Ok(Some((request, length))) => {
                client.set_read_timeout(None)?;
                return Ok(Ok((request, received.split_off(length))));
            }
            Err(why) => return Ok(Err(why)),
        }
    }
}

/// Why no connection was made.
enum ConnectError {
    Forbidden(String),
    Failed(io::Error),
}

fn connect(endpoint: &NetworkEndpoint, network: &NetworkPolicy) -> Result<TcpStream, ConnectError> {
    if !network.allows(endpoint) {
        return Err(ConnectError::Forbidden(format!(
            "{endpoint} is not in the network of this task"
        )));
    }
    let found = raddle_dns::lookup_host_blocking(&endpoint.host(), endpoint.port())
        .map_err(ConnectError::Failed)?;
    let is_listed = |address: &SocketAddr| {
        NetworkEndpoint::new(&address.ip().to_string(), address.port())
            .is_ok_and(|own| network.allows(&own))
    };
    let (admitted, others): (Vec<SocketAddr>, Vec<_>) = found.into_iter().partition(|address| {
        network.allows_address(*address) && (is_listed(address) || !is_host_address(*address))
    });
    if admitted.is_empty() && !others.is_empty() {
        let why = "resolves to an address of the host itself: list that address to allow it";
        return Err(ConnectError::Forbidden(format!("{endpoint} {why}")));
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    for address in admitted {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(server) => return Ok(server),
            Err(error) => last = error,
        }
    }
    Err(ConnectError::Failed(last))
}

/// Whether an address belongs to this host: a firewall that protects the host from outside does not
/// see such connections. A connected UDP socket shows the source address without sending anything.
fn is_host_address(address: SocketAddr) -> bool {
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

/// Copies both directions until both have ended.
fn copy_both(client: TcpStream, server: TcpStream) -> io::Result<()> {
    let (from, to) = (client.try_clone()?, server.try_clone()?);
    let out = thread::Builder::new().spawn(move || copy_one_way(from, to))?;
    copy_one_way(server, client);
    let _ = out.join();
    Ok(())
}

fn copy_one_way(mut from: TcpStream, mut to: TcpStream) {
    if io::copy(&mut from, &mut to).is_err() {
        // The receiver is gone, so the sender must stop too.
        let _ = from.shutdown(Shutdown::Both);
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_proxy_variables_and_bypasses_loopback() {
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
