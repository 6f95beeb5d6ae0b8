//! `DelayLine`: delays the frames of a cable.
//!
//! Not every kernel has `netem`. So a slow cable is cut at the switch, and this process carries the
//! frames over the gap, each after a delay, with one thread per direction. A helper thread enters
//! the switch's namespace to create the sockets, and exits.

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

/// Maximum frame size, with the virtio header before it. The kernel may not have segmented the
/// frame yet.
const MAX_FRAME: usize = 80 * 1024;
/// Maximum number of frames in flight. Further frames are dropped, as on a real link.
const MAX_IN_FLIGHT: usize = 16 * 1024;
/// Interval between checks whether the line was dropped.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Carries frames in one direction until it is dropped.
#[derive(Debug)]
pub(crate) struct DelayLine {
    micros: Arc<AtomicU64>,
    has_ended: Arc<AtomicBool>,
}

impl DelayLine {
    /// Starts a line from one socket to another.
    fn new(from: Arc<OwnedFd>, to: Arc<OwnedFd>) -> Self {
        let line = Self {
            micros: Arc::default(),
            has_ended: Arc::default(),
        };
        let (micros, has_ended) = (Arc::clone(&line.micros), Arc::clone(&line.has_ended));
        thread::Builder::new()
            .name("delay".into())
            .spawn(move || carry(&from, &to, &micros, &has_ended))
            .expect("a thread can be started");
        line
    }

    /// Sets the delay of frames that arrive from now on.
    pub(crate) fn set(&self, delay: Duration) {
        self.micros
            .store(delay.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Drop for DelayLine {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }
}

/// Creates the lines between two interfaces, in both directions, in the network namespace of
/// `process`.
pub(crate) fn connect_interfaces(process: u32, interfaces: [String; 2]) -> [DelayLine; 2] {
    let open = move || -> io::Result<[OwnedFd; 2]> {
        let namespace = File::open(format!("/proc/{process}/ns/net"))?;
        // Only this thread changes its namespace.
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        let [one, other] = interfaces.map(|interface| socket(&interface));
        Ok([one?, other?])
    };
    let sockets = thread::spawn(open)
        .join()
        .expect("the thread does not panic")
        .expect("packet sockets can be opened");
    let [one, other] = sockets.map(Arc::new);
    [
        DelayLine::new(Arc::clone(&one), Arc::clone(&other)),
        DelayLine::new(other, one),
    ]
}

/// Creates a socket for all frames of an interface. PACKET_VNET_HDR puts the pending offload work,
/// such as the checksum, in front of each frame.
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
    // SAFETY: plain integers; nothing else owns the new descriptor.
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
    // SAFETY: all-zero bytes are a valid address, and the name ends with a NUL.
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
    // SAFETY: the address has the socket's family and this length.
    result(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(socket)
}

fn carry(from: &OwnedFd, to: &OwnedFd, micros: &AtomicU64, has_ended: &AtomicBool) {
    let (mut in_flight, mut frame) = (VecDeque::<(Instant, Vec<u8>)>::new(), vec![0; MAX_FRAME]);
    while !has_ended.load(Ordering::Relaxed) {
        let now = Instant::now();
        while in_flight.front().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, frame)) = in_flight.pop_front() {
                // A frame that cannot be sent is lost: the interface may be down.
                let _ = rustix::io::write(to, &frame);
            }
        }
        let left = in_flight.front().map_or(CHECK_INTERVAL, |(due, _)| {
            due.saturating_duration_since(now).min(CHECK_INTERVAL)
        });
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let _ = poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&timeout));
        // An error means that the interface was down for a while.
        while let Ok(length) = rustix::io::read(from, &mut frame) {
            let due = Instant::now() + Duration::from_micros(micros.load(Ordering::Relaxed));
            if in_flight.len() < MAX_IN_FLIGHT {
                // Frames keep their order.
                let due = in_flight.back().map_or(due, |(before, _)| due.max(*before));
                in_flight.push_back((due, frame[..length].to_vec()));
            }
        }
    }
}
