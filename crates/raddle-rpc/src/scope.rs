//! The scope of calls: destination, context values, trace and deadline of the surrounding code.

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

/// The trace that the environment assigns to this process (`TRACEPARENT`).
static PROCESS_TRACE: LazyLock<Option<Trace>> = LazyLock::new(|| {
    let parent = env::var(TRACEPARENT).ok()?.parse().ok()?;
    Some(Trace {
        parent,
        state: env::var(TRACESTATE)
            .ok()
            .and_then(|state| state.parse().ok()),
    })
});

/// The scope of the calls of a piece of code.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    pub(crate) destination: CallDestination,
    pub(crate) values: ContextValues,
    pub(crate) trace: Option<Trace>,
    /// When the caller of this code stops waiting.
    pub(crate) deadline: Option<Instant>,
    /// Number of routines in the chain of nested calls that leads to this code.
    pub(crate) depth: u32,
}

/// Where calls go.
#[derive(Clone, Debug, Default)]
pub(crate) enum CallDestination {
    #[default]
    None,
    Proxy(WorkerProxy),
    /// The pool that the code itself was called in; resolved on the first call.
    Route(CallerRoute),
}

/// A pool or a proxy.
pub trait CallTarget {
    /// The proxy that sends the calls.
    fn proxy(&self) -> &WorkerProxy;
}

/// Spawns a task in the scope of the calling code: same destination, context values, trace and
/// deadline. A task of [`tokio::spawn`] is outside every scope.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(Scope::current().run(future))
}

impl Scope {
    /// The scope of the calling code.
    pub(crate) fn current() -> Self {
        SCOPE.try_with(Clone::clone).unwrap_or_default()
    }

    /// The trace that calls continue.
    pub(crate) fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref().or(PROCESS_TRACE.as_ref())
    }

    /// Runs a future in this scope.
    pub(crate) fn run<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        SCOPE.scope(self, future)
    }

    /// Runs a function in this scope.
    pub(crate) fn run_sync<T>(self, function: impl FnOnce() -> T) -> T {
        SCOPE.sync_scope(self, function)
    }

    /// The timeout of a call: the shorter of its own and the time left in the scope.
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
