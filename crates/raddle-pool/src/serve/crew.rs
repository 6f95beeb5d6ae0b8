//! The threads that routines run on, and more of them when all are held up.

use std::{
    io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::oneshot,
};
use tracing::warn;

/// How long a new task may wait for a thread before all of them count as held up.
pub(super) const HELD_UP: Duration = Duration::from_millis(200);
/// Runtimes at a time. Whoever blocks the threads of all of them has no more to hope for.
const MOST: usize = 32;

/// The threads of routines.
///
/// A routine that blocks its thread takes that from all others, and if enough do it nobody is left. Then there is a second set of threads, and
/// so on; a set whose threads come free again is used no more, and ends with the process. What has begun on a set stays there: a call that
/// sleeps on threads that others then block for ever does not wake.
pub(super) struct Crew {
    runtimes: Mutex<Vec<Runtime>>,
    /// All threads are held up, and there are no more to be had.
    is_exhausted: AtomicBool,
}

impl Crew {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { runtimes: Mutex::new(vec![runtime()?]), is_exhausted: AtomicBool::new(false) })
    }

    /// Where new calls are run.
    pub(super) fn current(&self) -> Handle {
        let runtimes = self.runtimes();
        runtimes.last().expect("there is one from the beginning").handle().clone()
    }

    /// Whether a new call would have to wait for a thread for too long, be it a plain function or not.
    pub(super) async fn is_held_up(&self) -> bool {
        let ((say, hear), (say_plain, hear_plain)) = (oneshot::channel(), oneshot::channel());
        let crew = self.current();
        // Over at once, or stuck like all others.
        crew.spawn(async { say.send(()) });
        crew.spawn_blocking(|| say_plain.send(()));
        let both = async { tokio::join!(hear, hear_plain) };
        let is_held_up = tokio::time::timeout(HELD_UP, both).await.is_err();
        if !is_held_up {
            self.is_exhausted.store(false, Ordering::Relaxed);
        }
        is_held_up
    }

    /// Whether there is no hope for a new call.
    pub(super) fn is_exhausted(&self) -> bool {
        self.is_exhausted.load(Ordering::Relaxed)
    }

    /// Takes on more threads. Returns whether there are any.
    pub(super) fn grow(&self) -> bool {
        let mut runtimes = self.runtimes();
        let more = if runtimes.len() < MOST { runtime() } else { Err(io::Error::other("there are enough")) };
        match more {
            Ok(more) => {
                warn!(sets = runtimes.len() + 1, "routines block all threads: there are more now");
                runtimes.push(more);
                true
            }
            Err(error) => {
                warn!(%error, "routines block all threads, and there are no more to be had");
                self.is_exhausted.store(true, Ordering::Relaxed);
                false
            }
        }
    }

    /// Lets go of all threads without waiting for those that are blocked.
    pub(super) fn leave(&self) {
        std::mem::take(&mut *self.runtimes()).into_iter().for_each(Runtime::shutdown_background);
    }

    fn runtimes(&self) -> MutexGuard<'_, Vec<Runtime>> {
        self.runtimes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn runtime() -> io::Result<Runtime> {
    let threads = thread::available_parallelism().map_or(2, usize::from).max(2);
    Builder::new_multi_thread().worker_threads(threads).thread_name("routine").enable_all().build()
}
