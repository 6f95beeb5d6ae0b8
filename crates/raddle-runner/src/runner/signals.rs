//! Signals of the runner. All of them arrive through a signalfd, so no handler ever interrupts the
//! runner.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    ptr,
};

use super::fork_server;
use crate::sys;

/// A batch of received signals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceivedSignals {
    /// A child changed its state.
    pub(crate) child: bool,
    /// Number of signals that ask the runner to exit.
    pub(crate) end: u32,
}

const EXIT_SIGNALS: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// A signalfd.
pub(crate) struct Signals(OwnedFd);

/// Resets a signal with the kernel's own sigaction. The C library refuses to touch two signals that
/// it uses itself, but the parent of the worker may have left them ignored.
fn set_default(signal: libc::c_int) {
    // At least as large as the kernel's structure on any architecture. All zeros are the default
    // action.
    let action = [0u64; 8];
    let nothing = ptr::null_mut::<u64>();
    // SAFETY: the structure is only read, and 8 is the size of the kernel's signal set.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), nothing, 8) };
}

impl Signals {
    /// Blocks every signal, resets every disposition, and opens the descriptor.
    pub(crate) fn take_over() -> io::Result<Self> {
        Self::reset();
        Self::open()
    }

    /// Resets every disposition.
    ///
    /// Once here and not in each child: default dispositions survive exec. SIGPIPE, which std
    /// ignores, is blocked by [`open`](Self::open) instead: a write to a closed pipe gives an error
    /// either way.
    fn reset() {
        for signal in 1..=64 {
            // Fault signals keep std's handlers, which report a stack overflow; exec resets those.
            // SIGKILL and SIGSTOP cannot be changed.
            if ![
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGKILL,
                libc::SIGSTOP,
                libc::SIGCHLD,
            ]
            .contains(&signal)
            {
                set_default(signal);
            }
        }
        // SA_NOCLDSTOP: a stopped child, such as a paused or throttled one, must not wake the
        // runner.
        sys::set_default(libc::SIGCHLD, libc::SA_NOCLDSTOP);
    }

    /// Blocks every signal, and opens the descriptor.
    fn open() -> io::Result<Self> {
        let faults = [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGABRT,
            libc::SIGTRAP,
        ];
        sys::block_signals(&sys::signal_set(
            (1..=64).filter(|signal| !faults.contains(signal)),
        ))?;
        // SIGCONT wakes a runner that was stopped, so that it checks its deadlines: time while
        // stopped counts.
        let wanted = sys::signal_set(
            [libc::SIGCHLD, fork_server::EXIT_SIGNAL, libc::SIGCONT]
                .into_iter()
                .chain(EXIT_SIGNALS),
        );
        // SAFETY: the set outlives the call, and the descriptor is new.
        unsafe {
            let fd = sys::check(libc::signalfd(
                -1,
                &raw const wanted,
                libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
            ))?;
            Ok(Self(OwnedFd::from_raw_fd(fd)))
        }
    }

    pub(crate) fn pollfd(&self) -> libc::pollfd {
        libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }
    }

    /// Reads the signals that have arrived.
    pub(crate) fn read(&self) -> ReceivedSignals {
        const RECORD: usize = size_of::<libc::signalfd_siginfo>();
        let (mut received, mut buf) = (ReceivedSignals::default(), Vec::new());
        if sys::read_some(self.0.as_fd(), &mut buf).is_ok() {
            for record in buf.chunks_exact(RECORD) {
                // The signal number is the first field of the record.
                let signal =
                    record.first_chunk().map_or(0, |n| u32::from_ne_bytes(*n)) as libc::c_int;
                if [libc::SIGCHLD, fork_server::EXIT_SIGNAL].contains(&signal) {
                    received.child = true;
                } else if EXIT_SIGNALS.contains(&signal) {
                    received.end += 1;
                }
            }
        }
        received
    }
}
