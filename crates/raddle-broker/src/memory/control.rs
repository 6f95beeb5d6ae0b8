//! Control words: obeyed here for tasks that wait, passed on to workers for those that run.

use raddle_core::{
    Control, EventKind, Exit, QueueName, State as TaskState, Tid, Word,
    obey::{self, Effect},
    queue_name::Port,
    spec::Reserved,
};

use super::state::{End, Now, Place, State, Task};
use crate::{
    Error, Result,
    request::{Delivered, Delivery, Fence, Verdict},
};

impl State {
    /// Sends a control word to a task.
    pub(super) fn control(&mut self, tid: Tid, message: &Control, now: Now) -> Result<Delivered> {
        let task = self.tasks.get(&tid).ok_or(Error::NotFound(tid))?;
        match &task.place {
            Place::Done(end) => Err(Error::Finished(tid, end.state)),
            Place::Active(_) => {
                self.put(&QueueName::Task(tid, Port::CtrlIn), vec![message.to_text()], now);
                Ok(Delivered::Sent)
            }
            Place::Ready | Place::Delayed(_) | Place::Held(_) => {
                self.obey(tid, message, now);
                Ok(Delivered::Applied(self.known(tid).state()))
            }
        }
    }

    /// Takes the messages to a worker and to what it has, in the order in which they were sent. A word that ends a task is noted with it, so that it
    /// outlives the worker.
    pub(super) fn controls(&mut self, owner: Tid) -> Option<Vec<Delivery>> {
        let active = self.workers.get(&owner).map(|worker| worker.active.clone()).unwrap_or_default();
        let mut taken = Vec::new();
        for tid in active.into_iter().chain([owner]) {
            let queue = self.queues.remove(&QueueName::Task(tid, Port::CtrlIn)).unwrap_or_default();
            if let Some(Task { place: Place::Active(run), .. }) = self.tasks.get_mut(&tid) {
                let said = queue.values().filter_map(|body| body.parse().ok());
                run.told = said.fold(run.told, |told, said| obey::told(told, &said));
            }
            taken.extend(queue.into_iter().map(|(id, body)| (id, Delivery { tid, body })));
        }
        taken.sort_by_key(|(id, _)| *id);
        Some(taken.into_iter().map(|(_, delivery)| delivery).collect::<Vec<_>>()).filter(|taken| !taken.is_empty())
    }

    /// Obeys what was meant for the last attempt of a task that waits again: the word by which its worker was told to end it, and what was sent and did not
    /// reach it. Says so if that ended the task.
    pub(super) fn obey_pending(&mut self, tid: Tid, told: Option<Word>, now: Now) -> Option<Verdict> {
        let goes_back = self.known(tid).spec.on_stop == Reserved::Requeue;
        if let Some(word) = told
            && let Effect::End(state, exit) = obey::obey(&Control::new(word), false, goes_back)
        {
            let fence = self.known(tid).fence(tid);
            self.end_waiting(fence, state, exit, now);
            return Some(Verdict::Done(state));
        }
        let pending = self.queues.remove(&QueueName::Task(tid, Port::CtrlIn)).unwrap_or_default();
        for body in pending.into_values() {
            match body.parse::<Control>() {
                Ok(message) => self.obey(tid, &message, now),
                Err(error) => {
                    let fence = self.known(tid).fence(tid);
                    self.log(fence, EventKind::ControlIgnored, None, Some(error.to_string()), now);
                }
            }
            let state = self.known(tid).state();
            if state.is_terminal() {
                return Some(Verdict::Done(state));
            }
        }
        None
    }

    /// Does to a waiting task what a message asks for, and answers unless that ended it.
    fn obey(&mut self, tid: Tid, message: &Control, now: Now) {
        let task = self.known(tid);
        let fence = task.fence(tid);
        let (held, due) = match task.place {
            Place::Held(due) => (true, due),
            Place::Delayed(due) => (false, Some(due)),
            _ => (false, None),
        };
        match obey::obey(message, held, task.spec.on_stop == Reserved::Requeue) {
            Effect::End(state, exit) => return self.end_waiting(fence, state, exit, now),
            Effect::Hold => {
                self.log(fence, EventKind::Paused, None, None, now);
                self.move_to(tid, Place::Held(due));
            }
            Effect::Free => {
                self.log(fence, EventKind::Resumed, None, None, now);
                self.line_up(tid, due, now);
            }
            Effect::Nothing => {}
        }
        let held = matches!(self.known(tid).place, Place::Held(_));
        let text = serde_json::to_string(&obey::answer(message, held)).expect("words and strings serialize");
        self.put(&QueueName::Task(tid, Port::CtrlOut), vec![text], now);
    }

    pub(super) fn end_waiting(&mut self, fence: Fence, state: TaskState, exit: Exit, now: Now) {
        let report = self.report_of(fence, exit, now);
        self.end(fence, None, End { state, dead: false, report, when: now });
    }
}
