//! A runner's process, however it came to be.

use std::{io, os::fd::OwnedFd};

use tokio::{io::unix::AsyncFd, process::Child};

use crate::sys::{self, Wait};

/// A runner's process.
#[derive(Debug)]
pub(crate) enum Process {
    /// Started from the program's file; the runtime waits for it.
    Spawned(Child),
    /// Forked from this process; waited for here.
    Forked { pid: u32, pidfd: AsyncFd<OwnedFd> },
    /// Forked by a zygote, which waits for it and for what it leaves behind.
    Ward { pid: u32 },
}

impl Process {
    /// Takes over a process that was forked.
    pub(crate) fn forked(pid: u32) -> io::Result<Self> {
        // SAFETY: the descriptor is owned by the value that is registered, and nothing can replace it there.
        let pidfd = unsafe { AsyncFd::register(sys::pidfd_open(pid)?)? };
        Ok(Self::Forked { pid, pidfd })
    }

    pub(crate) fn is_ward(&self) -> bool {
        matches!(self, Self::Ward { .. })
    }

    pub(crate) fn is_running(&mut self) -> bool {
        match self {
            Self::Spawned(child) => matches!(child.try_wait(), Ok(None)),
            Self::Forked { pid, .. } => matches!(sys::try_wait(Some(*pid)), Wait::StillRunning),
            // Its socket tells when it is not.
            Self::Ward { .. } => true,
        }
    }

    /// Waits for its end, and returns its exit code if it had one. It is told once.
    pub(crate) async fn wait(&mut self) -> Option<i32> {
        match self {
            Self::Spawned(child) => child.wait().await.ok()?.code(),
            Self::Forked { pid, pidfd } => {
                // Readable when the process has ended; it is reaped whatever the descriptor says.
                let _ = pidfd.readable().await;
                match sys::try_wait(Some(*pid)) {
                    Wait::Reaped(reaped) if libc::WIFEXITED(reaped.status) => Some(libc::WEXITSTATUS(reaped.status)),
                    _ => None,
                }
            }
            // It is the zygote's child, and reaped there.
            Self::Ward { .. } => None,
        }
    }

    pub(crate) fn kill(&mut self) {
        match self {
            Self::Spawned(child) => drop(child.start_kill()),
            Self::Forked { pid, .. } | Self::Ward { pid } => sys::kill(*pid, libc::SIGKILL),
        }
    }
}
