//! Forgetting tasks that finished long enough ago.

use raddle_core::{QueueName, Tid, queue_name::Port};

use super::{
    shared::after,
    state::{Now, Place, State, Task},
};
use crate::request::{Fence, Purged};

const PORTS: [Port; 5] = [Port::Inbox, Port::Reserved, Port::Outbox, Port::CtrlIn, Port::CtrlOut];

impl State {
    /// Removes old tasks with all that belongs to them.
    pub(super) fn purge(&mut self, now: Now) -> Purged {
        let old: Vec<Tid> = self.tasks.iter().filter(|(_, task)| task.is_old(now)).map(|(tid, _)| *tid).collect();
        for tid in &old {
            self.forget(*tid);
        }
        Purged { tasks: old.len() as u64 }
    }

    fn forget(&mut self, tid: Tid) {
        let Some(task) = self.tasks.remove(&tid) else { return };
        for id in &task.events {
            self.events.remove(id);
        }
        for port in PORTS {
            self.queues.remove(&QueueName::Task(tid, port));
        }
        for attempt in 1..=task.tally.attempt {
            self.output.remove(&Fence { tid, attempt });
        }
    }
}

impl Task {
    fn is_old(&self, now: Now) -> bool {
        match &self.place {
            Place::Done(end) => after(end.when.mono, self.spec.result_ttl().0) < now.mono,
            _ => false,
        }
    }
}
