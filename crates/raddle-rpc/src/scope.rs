//! What surrounds a call: the pool it goes to, the values that travel with it, its trace, and its time.

use std::{
    env,
    future::Future,
    sync::{Arc, LazyLock},
    time::Duration,
};

use raddle_model::{
    Trace,
    trace::{TRACEPARENT, TRACESTATE},
};
use tokio::{task::JoinHandle, time::Instant};

use crate::{WorkerProxy, context::ContextValues, proxy::CallerRoute};

tokio::task_local! {
    static SCOPE: Scope;
}

/// The trace that this process belongs to, as whoever started it says.
static OF_PROCESS: LazyLock<Option<Trace>> = LazyLock::new(|| {
    let parent = env::var(TRACEPARENT).ok()?.parse().ok()?;
    Some(Trace {
        parent,
        state: env::var(TRACESTATE)
            .ok()
            .and_then(|state| state.parse().ok()),
    })
});

/// What surrounds the calls of a piece of code.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    pub(crate) to: CallDestination,
    pub(crate) values: ContextValues,
    pub(crate) trace: Option<Trace>,
    /// When whoever called this code stops waiting.
    pub(crate) deadline: Option<Instant>,
    /// How many routines have called each other up to this code.
    pub(crate) depth: u32,
}

/// Where calls go.
#[derive(Clone, Debug, Default)]
pub(crate) enum CallDestination {
    #[default]
    Nowhere,
    Proxy(WorkerProxy),
    /// To the pool that the code itself was called in. It is looked for when something is called.
    Route(CallerRoute),
}

/// Something that calls can be made on: a pool, or a proxy.
pub trait CallTarget {
    /// Who hands calls to its workers.
    fn proxy(&self) -> &WorkerProxy;
}

/// Spawns a task that calls routines where the code does that spawns it, with the same values, trace and time left. A task of [`tokio::spawn`] is outside of every
/// scope.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(Scope::current().around(future))
}

impl Scope {
    /// What surrounds the code that asks.
    pub(crate) fn current() -> Self {
        SCOPE.try_with(Clone::clone).unwrap_or_default()
    }

    /// The trace that calls carry on.
    pub(crate) fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref().or(OF_PROCESS.as_ref())
    }

    /// Runs a future with these surroundings.
    pub(crate) fn around<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        SCOPE.scope(self, future)
    }

    /// Runs a function with these surroundings.
    pub(crate) fn around_plain<T>(self, function: impl FnOnce() -> T) -> T {
        SCOPE.sync_scope(self, function)
    }

    /// How long a call may take that says so itself, or nothing of it.
    pub(crate) fn timeout(&self, own: Option<Duration>) -> Option<Duration> {
        let left = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match (own, left) {
            (Some(own), Some(left)) => Some(own.min(left)),
            (own, left) => own.or(left),
        }
    }
}

impl<T: CallTarget> CallTarget for &T {
    fn proxy(&self) -> &WorkerProxy {
        (**self).proxy()
    }
}

impl<T: CallTarget> CallTarget for Arc<T> {
    fn proxy(&self) -> &WorkerProxy {
        (**self).proxy()
    }
}
