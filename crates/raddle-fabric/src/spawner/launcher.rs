//! Starting workers somewhere, and hearing of them.

use std::io;

use async_trait::async_trait;
use raddle_core::Tid;

/// A worker that was launched, as its launcher knows it. On this machine, its process.
pub type Id = u32;

/// What a launcher tells of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It is registered and waits for a task.
    Ready(Tid),
    /// It has its task.
    Begun,
    /// It is gone; nothing more is told of it.
    Gone(Gone),
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// What workers can be told all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    /// To stop, or to stop faster if they were told before: SIGTERM.
    Stop,
    /// To give back what they run, and stop.
    GiveBack,
    /// To be gone: SIGKILL.
    Kill,
}

/// Starts one-shot workers. They outlive it: what it starts finishes what it has begun, whatever becomes of the spawner.
#[async_trait]
pub trait Launcher: Send {
    /// Starts a worker.
    async fn launch(&mut self) -> io::Result<Id>;

    /// The next news of any worker. Cancel-safe; waits for ever when there is none.
    async fn next(&mut self) -> (Id, News);

    /// Tells all workers that it has started.
    fn tell(&mut self, what: Tell);
}
