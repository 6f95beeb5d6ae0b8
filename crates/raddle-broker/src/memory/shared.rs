//! The state behind its lock, and the bells that wake those who wait for a change of it.

use std::{
    fmt, mem,
    pin::pin,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::state::{Now, State, Wake};
use crate::{Result, wait::FOR_EVER};

/// What one can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    /// A task may be ready, or one has a new due time.
    Ready,
    /// A control message is on its way to a worker.
    Controls,
    /// A queue has a new message.
    Messages,
    /// The log or an attempt's output has grown.
    Progress,
    /// A schedule has changed, or a task expires sooner than all others.
    Agenda,
}

/// The state and its bells.
#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    ready: Notify,
    controls: Notify,
    messages: Notify,
    progress: Notify,
    agenda: Notify,
    /// The most tasks that anybody was given at once.
    #[cfg(test)]
    pub(super) longest_list: std::sync::atomic::AtomicUsize,
}

impl Shared {
    /// Lets `act` see and change the state, and wakes those whom that concerns.
    pub(super) fn change<T>(&self, act: impl FnOnce(&mut State, Now) -> T) -> T {
        let mut state = self.lock();
        // Read under the lock, so that ids and times come in the order in which changes are made.
        let now = Now::read();
        state.promote(now);
        let result = act(&mut state, now);
        let wake = mem::take(&mut state.wake);
        drop(state);
        self.ring(wake);
        result
    }

    /// Repeats `act` whenever `topic` rings, until it finds something or `wait` is over.
    ///
    /// What `act` takes is returned by the very poll that took it: a future dropped while it waits holds nothing.
    pub(super) async fn wait_for<T>(
        &self,
        topic: Topic,
        wait: Duration,
        mut act: impl FnMut(&mut State, Now) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let deadline = after(Instant::now(), wait);
        loop {
            // Listening begins before looking: what changes in between rings a bell that is already heard.
            let mut bell = pin!(self.bell(topic).notified());
            bell.as_mut().enable();
            let (found, due) = self.change(|state, now| {
                let found = act(state, now);
                let due = match topic {
                    Topic::Ready => state.next_due(),
                    Topic::Agenda => state.next_on_agenda(now),
                    _ => None,
                };
                (found, due)
            });
            if let Some(found) = found? {
                return Ok(Some(found));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            let until = due.map_or(deadline, |due| due.min(deadline));
            // Rung or late makes no difference: either way the state is looked at again.
            let _ = timeout_at(until, bell).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no change of the state panics")
    }

    fn bell(&self, topic: Topic) -> &Notify {
        match topic {
            Topic::Ready => &self.ready,
            Topic::Controls => &self.controls,
            Topic::Messages => &self.messages,
            Topic::Progress => &self.progress,
            Topic::Agenda => &self.agenda,
        }
    }

    fn ring(&self, wake: Wake) {
        let bells = [
            (wake.ready, &self.ready),
            (wake.controls, &self.controls),
            (wake.messages, &self.messages),
            (wake.progress, &self.progress),
            (wake.agenda, &self.agenda),
        ];
        for (_, bell) in bells.into_iter().filter(|(rings, _)| *rings) {
            bell.notify_waiters();
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// The time `span` after `start`, or one that nobody lives to see.
pub(super) fn after(start: Instant, span: Duration) -> Instant {
    start + span.min(FOR_EVER)
}
