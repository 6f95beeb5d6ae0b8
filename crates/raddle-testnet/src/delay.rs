//! A cable on which frames take their time.
//!
//! Not every kernel has `netem`. So a cable that is to be slow is cut at the switch, and this process carries the frames over the gap, each a while after it
//! came: two threads, one for each way. The sockets are made by a thread that goes to the switch for it, and ends there.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    mem::size_of,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

/// The largest frame, which the kernel may not have cut into packets yet, with what is said before it.
const LARGEST: usize = 80 * 1024;
/// So many frames are under way. What comes besides is lost, as on other long lines.
const UNDER_WAY: usize = 16 * 1024;
/// How often it is looked whether there is still something to do.
const LOOK: Duration = Duration::from_millis(100);

/// Carries frames in one way. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Way {
    micros: Arc<AtomicU64>,
    has_ended: Arc<AtomicBool>,
}

impl Way {
    /// From one socket to another.
    fn new(from: Arc<OwnedFd>, to: Arc<OwnedFd>) -> Self {
        let way = Self {
            micros: Arc::default(),
            has_ended: Arc::default(),
        };
        let (micros, has_ended) = (Arc::clone(&way.micros), Arc::clone(&way.has_ended));
        thread::Builder::new()
            .name("cable".into())
            .spawn(move || carry(&from, &to, &micros, &has_ended))
            .expect("a thread");
        way
    }

    /// From now on, what comes takes so long.
    pub(crate) fn set(&self, delay: Duration) {
        self.micros
            .store(delay.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }
}

/// The ways between two interfaces of the namespace that a process is in: there, and back.
pub(crate) fn between(process: u32, interfaces: [String; 2]) -> [Way; 2] {
    let open = move || -> io::Result<[OwnedFd; 2]> {
        let namespace = File::open(format!("/proc/{process}/ns/net"))?;
        // It is this thread that moves.
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        let [one, other] = interfaces.map(|interface| socket(&interface));
        Ok([one?, other?])
    };
    let sockets = thread::spawn(open)
        .join()
        .expect("it does not panic")
        .expect("sockets for frames");
    let [one, other] = sockets.map(Arc::new);
    [
        Way::new(Arc::clone(&one), Arc::clone(&other)),
        Way::new(other, one),
    ]
}

/// A socket for all frames of an interface. Before each stands what the kernel has left to do to it, such as its checksum.
fn socket(interface: &str) -> io::Result<OwnedFd> {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    let result = |value: i32| {
        if value < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(value)
        }
    };
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: plain integers; the descriptor is nobody's yet.
    let socket = unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        OwnedFd::from_raw_fd(result(libc::socket(libc::AF_PACKET, kind, 0))?)
    };
    for option in [libc::PACKET_VNET_HDR, libc::PACKET_IGNORE_OUTGOING] {
        let (on, length) = (1_i32, size_of::<i32>() as libc::socklen_t);
        // SAFETY: the option is an integer of this length.
        result(unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                option,
                (&raw const on).cast(),
                length,
            )
        })?;
    }
    // SAFETY: all bytes of it may be zero, and the name ends with one.
    let (mut address, index) = unsafe {
        (
            std::mem::zeroed::<libc::sockaddr_ll>(),
            libc::if_nametoindex(name.as_ptr()),
        )
    };
    (
        address.sll_family,
        address.sll_protocol,
        address.sll_ifindex,
    ) = (libc::AF_PACKET as u16, protocol, index as i32);
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is of the family that the socket has, and of this length.
    result(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(socket)
}

fn carry(from: &OwnedFd, to: &OwnedFd, micros: &AtomicU64, has_ended: &AtomicBool) {
    let (mut under_way, mut frame) = (VecDeque::<(Instant, Vec<u8>)>::new(), vec![0; LARGEST]);
    while !has_ended.load(Ordering::Relaxed) {
        let now = Instant::now();
        while under_way.front().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, frame)) = under_way.pop_front() {
                // What cannot be sent is lost: its interface may be down.
                let _ = rustix::io::write(to, &frame);
            }
        }
        let left = under_way.front().map_or(LOOK, |(due, _)| {
            due.saturating_duration_since(now).min(LOOK)
        });
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let _ = poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&timeout));
        // An error says that the interface was down for a while.
        while let Ok(length) = rustix::io::read(from, &mut frame) {
            let due = Instant::now() + Duration::from_micros(micros.load(Ordering::Relaxed));
            if under_way.len() < UNDER_WAY {
                // None overtakes another.
                let due = under_way.back().map_or(due, |(before, _)| due.max(*before));
                under_way.push_back((due, frame[..length].to_vec()));
            }
        }
    }
}
