//! A network of its own for a sandbox. In it is one interface, by which programs talk to themselves.
//!
//! To make one is the kernel's longest work on a sandbox, and to take it away again is longer still. A runner that is root keeps the one that it has
//! made ([`Visit`]), and starts its next shim in there, if it is as it was when it was made ([`Traces`]): nothing was sent, tried or counted in it, and nothing
//! of those who were in it is left, who are gone: a socket on its way from one to another outlives them, and so does a flow label. Routes, addresses and rules no
//! command could have changed, for it belongs to root's own user namespace.
//!
//! Other runners have the shim make one. The root does not wait for it: a thread makes it while the shim builds the root, and the shim then
//! enters what the thread has made. User, privileges, rules and filter belong to each thread by itself, so the thread must be gone before the
//! shim gives anything up.

use std::{
    cell::RefCell,
    fs::{self, File},
    io, mem,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    process,
    thread::{self, JoinHandle},
};

use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
    thread::{LinkNameSpaceType, gettid, move_into_link_name_space},
};

use super::{super::child::Step, Layer, NotBegun};
use crate::sys;

/// More than its few calls need; only the pages that are touched cost memory.
const STACK_SIZE: usize = 64 * 1024;

/// Of the interface there is in each.
const INTERFACE: &str = "lo";
/// What the system says of the caller's network.
const STATE: &str = "/proc/thread-self/net";
/// Where it says what was done there: what has come in and gone out by each interface; what protocols have counted, also of what they refused; and the labels that
/// somebody has given to flows.
const ACCOUNTS: [&str; 5] = ["dev", "snmp", "snmp6", "netstat", "ip6_flowlabel"];
/// And how many sockets there are, also those that nobody has open any more. It is the first line.
const SOCKETS: &str = "sockstat";

thread_local! {
    /// The network of the last attempt. A runner has one thread, and one attempt at a time.
    static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

/// A network that may be given to the next attempt.
struct Kept {
    network: OwnedFd,
    /// As it was when it was made.
    new: io::Result<Traces>,
}

/// The runner is in a network for a sandbox. What it forks meanwhile is in there, too. Back home with its end.
pub(super) struct Visit {
    home: File,
}

impl Visit {
    /// Enters the one that was kept, or a new one. Nothing, where the system does not let the runner: then the shim has to make one.
    pub(super) fn begin() -> Option<Self> {
        let home = File::open("/proc/thread-self/ns/net").ok()?;
        // Before it leaves: where there is no way back it must not.
        enter(&home).ok()?;
        KEPT.with_borrow_mut(|kept| {
            // From here on it goes back whatever happens.
            let visit = Self { home };
            if !kept.as_ref().is_some_and(|kept| enter(&kept.network).is_ok() && kept.is_as_new()) {
                let network = make().and_then(|socket| of_socket(&socket)).ok()?;
                *kept = Some(Kept { network, new: Traces::here() });
            }
            Some(visit)
        })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // A runner must not go on as if it were home when it is not: its worker finds that it has ended.
        if enter(&self.home).is_err() {
            process::abort();
        }
    }
}

impl Kept {
    /// Whether it is as it was. The caller is in it.
    fn is_as_new(&self) -> bool {
        // What cannot be told may be anything.
        matches!((&self.new, Traces::here()), (Ok(new), Ok(now)) if *new == now)
    }
}

/// All that there is to see of what was done in a network.
#[derive(Debug, PartialEq, Eq)]
struct Traces(Vec<String>);

impl Traces {
    /// Of the caller's network.
    fn here() -> io::Result<Self> {
        Self::read(|name| fs::read_to_string(format!("{STATE}/{name}")))
    }

    fn read(read: impl Fn(&str) -> io::Result<String>) -> io::Result<Self> {
        let account = |name: &&str| match read(name) {
            // A system without IPv6 says nothing of it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            account => account,
        };
        // The rest of it is of all networks together.
        let sockets = read(SOCKETS)?.lines().next().map(str::to_owned);
        let accounts = ACCOUNTS.iter().map(account).collect::<io::Result<Vec<_>>>()?;
        Ok(Self(accounts.into_iter().chain(sockets).collect()))
    }
}

/// A network that a thread is making; without one, the system had no thread to give.
pub(super) struct Making(Option<JoinHandle<Made>>);

/// What has come of it.
struct Made {
    thread: libc::pid_t,
    network: io::Result<OwnedFd>,
}

impl Making {
    /// Begins. The process must be in a user namespace of its own, and have all its privileges there. What it has open is the thread's
    /// too, so it must have closed what it does not keep.
    pub(super) fn begin() -> Self {
        let make = || Made { thread: own_id(), network: make().and_then(|socket| of_socket(&socket)) };
        Self(thread::Builder::new().stack_size(STACK_SIZE).spawn(make).ok())
    }

    /// Enters it. From then on there is no thread but the caller's.
    pub(super) fn enter(self) -> Result<(), NotBegun> {
        let made = self.0.and_then(|thread| thread.join().ok());
        let entered = made.is_some_and(|made| {
            let entered = made.network.and_then(|network| enter(&network));
            outlive(made.thread);
            entered.is_ok()
        });
        // Where threads or the way into another's network are not to be had, it takes longer. What is refused now is refused for good.
        if entered { Ok(()) } else { make().map(drop).map_err(not_begun) }
    }
}

/// Puts the calling thread into a new network, takes its interface up, and returns a socket there.
fn make() -> io::Result<OwnedFd> {
    // SAFETY: a plain integer. The calling thread alone is moved.
    sys::check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: plain data, for which zeros are a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(INTERFACE.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the structure that this request takes, which outlives the call.
    sys::check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) })?;
    Ok(socket)
}

/// The network that a socket is in. Its name in `/proc` would lead there too, but who knows what `/proc` is by now.
fn of_socket(socket: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: this request takes nothing, and gives a new descriptor, which nobody else owns.
    unsafe { Ok(OwnedFd::from_raw_fd(sys::check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGSKNS as _))?)) }
}

fn enter(network: &impl AsFd) -> io::Result<()> {
    Ok(move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?)
}

fn own_id() -> libc::pid_t {
    gettid().as_raw_nonzero().get()
}

/// Waits until a thread that was joined is gone. It was joined when it had let go of its memory, and counts as a process of the task for a
/// moment longer: a task that may have no more than its command would not get it. Should that never end, the runner's patience does.
fn outlive(thread: libc::pid_t) {
    // SAFETY: no signal is sent, and tgkill has no memory effects.
    while unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) } == 0 {
        thread::yield_now();
    }
}

/// Want is no refusal: what is to be had later is nothing to do without.
fn not_begun(error: io::Error) -> NotBegun {
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN | libc::ENOBUFS | libc::EMFILE | libc::ENFILE) => {
            NotBegun::Step(Step::Clone, error)
        }
        _ => Layer::Namespaces.refused("its network")(error).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_done_leaves_a_trace() {
        let with = |changed: &'static str, text: &'static str| {
            let said = move |name: &str| match name {
                name if name == changed => Ok(text.to_owned()),
                "ip6_flowlabel" => Err(io::ErrorKind::NotFound.into()),
                "sockstat" => Ok("sockets: used 0\nTCP: inuse 0 orphan 0 tw 0 alloc 7 mem 9\n".to_owned()),
                name => Ok(format!("{name}: 0\n")),
            };
            Traces::read(said)
        };
        let new = with("", "").unwrap();
        assert_eq!(with("sockstat", "sockets: used 0\nTCP: inuse 0 orphan 0 tw 0 alloc 8 mem 9\n").unwrap(), new);
        for name in ["dev", "snmp", "snmp6", "netstat", "ip6_flowlabel", "sockstat"] {
            assert_ne!(with(name, "1\n").unwrap(), new, "{name}");
        }
        let unreadable = Traces::read(|_| Err(io::ErrorKind::PermissionDenied.into()));
        assert!(unreadable.is_err());
        let kept = |new| Kept { network: File::open("/dev/null").unwrap().into(), new };
        assert!(kept(Traces::here()).is_as_new() && !kept(unreadable).is_as_new() && !kept(Ok(new)).is_as_new());
    }

    #[test]
    fn want_is_told_apart_from_refusal() {
        let of = |errno| not_begun(io::Error::from_raw_os_error(errno));
        assert!(matches!(of(libc::ENOMEM), NotBegun::Step(Step::Clone, _)));
        for errno in [libc::EPERM, libc::ENOSPC, libc::ENOSYS] {
            let NotBegun::Refused(refused) = of(errno) else { panic!("{errno}") };
            assert_eq!(refused.layer, Layer::Namespaces);
        }
    }
}
