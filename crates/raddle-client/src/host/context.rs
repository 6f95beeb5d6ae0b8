//! The attempt that a routine in a host belongs to: how it reports, and whether it was cancelled.

use std::{
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use raddle_model::{
    ReplyLine, Trace,
    host::{ChainedTask, FromHost, HostLog, HostProgress},
};
use tokio::sync::Notify;

use super::program::Outbox;

tokio::task_local! {
    static CURRENT: Arc<AttemptContext>;
}

/// One attempt in a host.
pub(crate) struct AttemptContext {
    pub(super) id: u64,
    pub(super) outbox: Arc<Outbox>,
    pub(super) trace: Option<Trace>,
    /// Whether it was asked to end.
    is_cancelled: AtomicBool,
    /// Whether it looks for that itself, so that it is not dropped.
    cooperates: AtomicBool,
    cancelled: Notify,
}

impl AttemptContext {
    pub(super) fn new(id: u64, outbox: Arc<Outbox>, trace: Option<Trace>) -> Arc<Self> {
        Arc::new(Self {
            id,
            outbox,
            trace,
            is_cancelled: AtomicBool::new(false),
            cooperates: AtomicBool::new(false),
            cancelled: Notify::new(),
        })
    }

    /// Asks the attempt to end. Returns whether it looks for that itself.
    pub(super) fn cancel(&self) -> bool {
        self.is_cancelled.store(true, Ordering::Release);
        self.cancelled.notify_waiters();
        self.cooperates.load(Ordering::Acquire)
    }

    pub(super) fn was_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    /// Runs a future as this attempt.
    pub(super) fn scope<F: Future>(
        self: &Arc<Self>,
        running: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(Arc::clone(self), running)
    }

    /// Runs a function as this attempt.
    pub(super) fn scope_sync<T>(self: &Arc<Self>, run: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(Arc::clone(self), run)
    }

    pub(crate) fn say(&self, reply: &ReplyLine) -> io::Result<()> {
        let id = self.id;
        let message = match reply {
            ReplyLine::Progress(progress) => FromHost::Progress(HostProgress {
                id,
                percent: progress.percent,
                message: progress.message.clone(),
            }),
            ReplyLine::Log(line) => FromHost::Log(HostLog {
                id: Some(id),
                level: line.level,
                message: line.message.clone(),
                fields: serde_json::Map::new(),
            }),
            ReplyLine::Chain(spec) => FromHost::Chain(ChainedTask {
                id,
                spec: spec.clone(),
            }),
            // The host itself sends these at the end.
            ReplyLine::Result(_) | ReplyLine::Error(_) => return Ok(()),
        };
        self.outbox.send(&message, None);
        Ok(())
    }

    /// Returns whether the attempt was asked to end. From now on a cancellation does not drop it.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cooperates.store(true, Ordering::Release);
        self.was_cancelled()
    }

    /// Returns when the attempt is asked to end.
    pub(crate) async fn cancelled(&self) {
        loop {
            let notified = self.cancelled.notified();
            if self.is_cancelled() {
                return;
            }
            notified.await;
        }
    }

    pub(crate) fn trace(&self) -> Option<Trace> {
        self.trace.clone()
    }
}

/// The attempt that this task or thread runs, if it runs one in a host.
pub(crate) fn current() -> Option<Arc<AttemptContext>> {
    CURRENT.try_with(Arc::clone).ok()
}
