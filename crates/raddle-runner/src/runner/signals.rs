//! The runner's signals, all of which arrive through a descriptor: nothing ever interrupts it.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    ptr,
};

use super::fork_server;
use crate::sys;

/// What a batch of signals asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceivedSignals {
    /// A child changed its state.
    pub(crate) child: bool,
    /// Somebody wants the runner to end.
    pub(crate) end: u32,
}

const ENDING: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// A descriptor that signals are read from.
pub(crate) struct Signals(OwnedFd);

/// The kernel's own sigaction. The C library keeps two signals for itself and refuses to touch them; whoever started the worker may have
/// left them ignored all the same.
fn set_default(signal: libc::c_int) {
    // At least as large as the kernel's structure on any architecture; all zeros are the default action.
    let action = [0u64; 8];
    let nothing = ptr::null_mut::<u64>();
    // SAFETY: the structure is only read, and eight is the size of the kernel's signal set.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), nothing, 8) };
}

impl Signals {
    /// Blocks every signal, resets every disposition, and opens the descriptor.
    pub(crate) fn take_over() -> io::Result<Self> {
        Self::reset();
        Self::listen()
    }

    /// Resets every disposition.
    ///
    /// Once here and not in each child: what is at its default in the runner stays so across exec. SIGPIPE, which std ignores, is blocked
    /// instead by [`listen`](Self::listen): a write to a closed pipe gives an error either way.
    fn reset() {
        for signal in 1..=64 {
            // The faults keep std's handlers, which report a stack overflow, and exec resets those.
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
        // A child that is stopped, as a paused or throttled one is, is no news to its runner.
        sys::set_default(libc::SIGCHLD, libc::SA_NOCLDSTOP);
    }

    /// Blocks every signal, and opens the descriptor.
    fn listen() -> io::Result<Self> {
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
        // SIGCONT asks for nothing, but wakes a runner that was stopped: the time it slept counts against its deadlines.
        let wanted = sys::signal_set(
            [libc::SIGCHLD, fork_server::ENDED, libc::SIGCONT]
                .into_iter()
                .chain(ENDING),
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

    /// Takes what has arrived.
    pub(crate) fn read(&self) -> ReceivedSignals {
        const RECORD: usize = size_of::<libc::signalfd_siginfo>();
        let (mut received, mut buf) = (ReceivedSignals::default(), Vec::new());
        if sys::read_some(self.0.as_fd(), &mut buf).is_ok() {
            for record in buf.chunks_exact(RECORD) {
                // The signal's number is the first field of the record.
                let signal =
                    record.first_chunk().map_or(0, |n| u32::from_ne_bytes(*n)) as libc::c_int;
                if [libc::SIGCHLD, fork_server::ENDED].contains(&signal) {
                    received.child = true;
                } else if ENDING.contains(&signal) {
                    received.end += 1;
                }
            }
        }
        received
    }
}
