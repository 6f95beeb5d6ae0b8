//! What control words mean to a worker: those to itself, and those to the tasks it has. Decisions only.

use std::time::Duration;

use raddle_core::{Control, Exit, State, Tid, Word, stop::Stage};
use raddle_exec::Order;

use super::{
    core::{Core, Running},
    event::Effect,
    ledger::Entry,
    words::Errand,
};

impl Core {
    pub(super) fn obey(&mut self, tid: Tid, message: Control, now: Duration) {
        let of_task = |running: &Running| running.fence.tid == tid;
        let state = if tid == self.tid {
            self.obey_self(message.command, now)
        } else if let Some(slot) = self.slots.iter().position(|slot| slot.as_ref().is_some_and(of_task)) {
            self.obey_running(slot, &message)
        } else if self.backlog.holds(tid) {
            match self.obey_waiting(tid, &message) {
                Some(state) => state,
                None => return,
            }
        } else if self.unsettled.iter().any(|fence| fence.tid == tid) {
            // Its attempt is over; whether the task is as well is for the broker to say.
            self.late.push((tid, message));
            return;
        } else {
            self.act(Effect::Errand(Errand::PassOn { tid, message }));
            return;
        };
        self.act(Effect::Errand(Errand::Reply { of: tid, reply: message.reply("ok", state) }));
    }

    fn obey_self(&mut self, word: Word, now: Duration) -> &'static str {
        match word {
            // Once is enough: to ask again is to ask whether it was heard. Who wants more says KILL.
            Word::Stop if self.stop.stage() == Stage::Running => self.stop_further(now),
            Word::Kill => self.kill(now),
            Word::Pause => {
                self.paused = true;
                self.return_backlog("its worker was told to pause");
            }
            Word::Resume => self.paused = false,
            _ => {}
        }
        self.status()
    }

    fn obey_running(&mut self, slot: usize, message: &Control) -> &'static str {
        let running = self.slots[slot].as_mut().expect("the caller has just found it");
        let fence = running.fence;
        let order = match message.command {
            Word::Stop => Some(Order::Stop),
            Word::Kill => Some(Order::Kill),
            Word::Pause => Some(Order::Pause),
            Word::Resume => Some(Order::Resume),
            _ => None,
        };
        match order {
            Some(Order::Stop | Order::Kill) => {
                running.give_back |= message.command == Word::Stop && message.requeue;
                running.told = Some(message.clone());
            }
            Some(_) => running.paused = order == Some(Order::Pause),
            None => {}
        }
        let (paused, changes) = (running.paused, matches!(order, Some(Order::Pause | Order::Resume)));
        if let Some(order) = order {
            self.act(Effect::Order { slot, order });
        }
        if changes {
            self.act(Effect::Errand(Errand::Paused { fence, paused }));
        }
        match message.command {
            Word::Stop | Word::Kill => "stopping",
            _ if paused => "paused",
            _ => State::Running.as_str(),
        }
    }

    /// A word to a task that is claimed but not begun. What the broker can obey better goes back to it with the task; then it is the
    /// broker that answers, and there is no state to tell.
    fn obey_waiting(&mut self, tid: Tid, message: &Control) -> Option<&'static str> {
        if matches!(message.command, Word::Ping | Word::Status) {
            return Some(State::Spawning.as_str());
        }
        let fence = self.backlog.take(tid)?.fence;
        let exit = match message.command {
            Word::Stop if !message.requeue => Exit::Cancelled,
            Word::Kill => Exit::Killed,
            _ => {
                self.late.push((tid, message.clone()));
                self.give_back(fence, "a control word came before it began");
                return None;
            }
        };
        self.unsettled.insert(fence);
        self.act(Effect::Write(Entry::Unbegun { fence, exit }));
        Some("stopping")
    }
}
