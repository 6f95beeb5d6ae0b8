//! A network of its own for a sandbox. In it is one interface, by which programs talk to themselves.
//!
//! To make one is the kernel's longest work on a sandbox, and to take it away again is longer still. A runner that is root keeps the one that it has
//! made ([`Visit`]), and starts its next shim in there, if nobody has ever sent anything by its interface: then it is as good as new. No command could
//! have changed anything else about it, for it belongs to root's own user namespace, and those who were in it are gone.
//!
//! Other runners have the shim make one. The root does not wait for it: a thread makes it while the shim builds the root, and the shim then
//! enters what the thread has made. User, privileges, rules and filter belong to each thread by itself, so the thread must be gone before the
//! shim gives anything up.

use std::{
    cell::RefCell,
    fs::{self, File},
    io, mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    process,
    thread::{self, JoinHandle},
};

use super::{super::child::Step, Layer, NotBegun};
use crate::sys;

/// More than its few calls need; only the pages that are touched cost memory.
const STACK_SIZE: usize = 64 * 1024;

/// Of the interface there is in each.
const INTERFACE: &str = "lo";
/// How much has come in by each interface of the caller's network, and how much has gone out.
const TRAFFIC: &str = "/proc/thread-self/net/dev";

thread_local! {
    /// The network of the last attempt. A runner has one thread, and one attempt at a time.
    static KEPT: RefCell<Option<OwnedFd>> = const { RefCell::new(None) };
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
            if !kept.as_ref().is_some_and(|network| enter(network).is_ok() && is_unused()) {
                *kept = Some(make().and_then(|socket| of_socket(&socket)).ok()?);
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

/// Whether nobody has sent anything by the interface of the caller's network.
fn is_unused() -> bool {
    fs::read_to_string(TRAFFIC).is_ok_and(|traffic| is_silent(&traffic))
}

/// Whether there is nothing but the one interface, and no traffic there.
fn is_silent(traffic: &str) -> bool {
    let mut interfaces = traffic.lines().filter_map(|line| line.split_once(':'));
    let is_silent =
        |(name, counts): (&str, &str)| name.trim() == INTERFACE && counts.split_whitespace().all(|count| count == "0");
    interfaces.next().is_some_and(is_silent) && interfaces.next().is_none()
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
    // SAFETY: a new descriptor, which nobody else owns.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        OwnedFd::from_raw_fd(sys::check(fd)?)
    };
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

fn enter(network: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: plain integers.
    sys::check(unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

fn own_id() -> libc::pid_t {
    // SAFETY: cannot fail, and touches no memory.
    unsafe { libc::syscall(libc::SYS_gettid) as libc::pid_t }
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
    fn traffic_and_other_interfaces_are_seen() {
        let head = "Inter-|   Receive  |  Transmit\n face |bytes    packets|bytes    packets\n";
        assert!(is_silent(&format!("{head}    lo:       0       0    0    0\n")));
        assert!(!is_silent(&format!("{head}    lo:      84       1    0    0\n")));
        assert!(!is_silent(&format!("{head}    lo:       0       0    0    0\n  eth0:       0       0\n")));
        assert!(!is_silent(head) && !is_silent(""));
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
