//! The process of a runner.

use tokio::process::Child;

use crate::sys;

/// A runner's process.
#[derive(Debug)]
pub(crate) enum Process {
    /// Started from the program's file; the runtime waits for it.
    Spawned(Child),
    /// Forked by a zygote, which waits for it and for what it leaves behind.
    Ward { pid: u32 },
}

impl Process {
    pub(crate) fn is_ward(&self) -> bool {
        matches!(self, Self::Ward { .. })
    }

    pub(crate) fn is_running(&mut self) -> bool {
        match self {
            Self::Spawned(child) => matches!(child.try_wait(), Ok(None)),
            // Its socket tells when it is not.
            Self::Ward { .. } => true,
        }
    }

    /// Waits for its end, and returns its exit code if it had one. It is told once.
    pub(crate) async fn wait(&mut self) -> Option<i32> {
        match self {
            Self::Spawned(child) => child.wait().await.ok()?.code(),
            // It is the zygote's child, and reaped there.
            Self::Ward { .. } => None,
        }
    }

    pub(crate) fn kill(&mut self) {
        match self {
            Self::Spawned(child) => drop(child.start_kill()),
            Self::Ward { pid } => sys::kill(*pid, libc::SIGKILL),
        }
    }
}
