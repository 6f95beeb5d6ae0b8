//! Control words, as a worker obeys them: those to itself, and those to the tasks it has.

use std::{sync::Arc, time::Duration};

use raddle_broker::{Broker, Delivery, Error};
use raddle_core::{Control, Exit, QueueName, State, Tid, Word, queue_name::Port, stop::Stage};
use raddle_exec::Order;
use tokio::sync::mpsc;

use super::{
    ledger::Entry,
    service::{ERROR_PAUSE, Service, WAIT},
    slot::ended,
};

/// How old a worker is when it begins to listen to control words.
const LISTEN_AFTER: Duration = Duration::from_millis(20);

/// Passes on control messages as they come.
pub(super) async fn listen(broker: Arc<dyn Broker>, tid: Tid, words: mpsc::UnboundedSender<Delivery>) {
    // A word in the first moment of a worker's life waits for so long; a worker that lives no longer does not pay for listening.
    tokio::time::sleep(LISTEN_AFTER).await;
    loop {
        match broker.controls(tid, WAIT).await {
            Ok(deliveries) => {
                for delivery in deliveries {
                    if words.send(delivery).is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                tracing::error!(%error, "control messages cannot be read");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
}

impl Service {
    pub(super) async fn obey(&mut self, delivery: Delivery) {
        let Delivery { tid, body } = delivery;
        let message: Control = match body.parse() {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!(%tid, %error, "a control message was passed over");
                return;
            }
        };
        let state = if tid == self.tid {
            self.obey_self(message.command)
        } else if let Some(slot) =
            self.running.iter().position(|r| r.as_ref().is_some_and(|r| r.claim_fence.tid == tid))
        {
            self.obey_running(slot, &message).await
        } else if self.backlog.holds(tid) {
            match self.obey_waiting(tid, &message).await {
                Some(state) => state,
                None => return,
            }
        } else if self.unsettled.iter().any(|fence| fence.tid == tid) {
            // Its attempt is over; whether the task is as well is for the broker to say.
            self.late.push((tid, message));
            return;
        } else {
            self.pass_on(vec![(tid, message)]).await;
            return;
        };
        let reply = serde_json::to_string(&message.reply("ok", state)).expect("a reply has only string keys");
        if let Err(error) = self.broker.put(&QueueName::Task(tid, Port::CtrlOut), vec![reply]).await {
            tracing::warn!(%tid, %error, "a control message could not be answered");
        }
    }

    fn obey_self(&mut self, word: Word) -> &'static str {
        match word {
            // Once is enough: to ask again is to ask whether it was heard. Who wants more says KILL.
            Word::Stop if self.stop.stage() == Stage::Running => self.stop_further(),
            Word::Kill => {
                self.stop.kill(self.began.elapsed());
                self.carry_out(Stage::Killing);
            }
            Word::Pause => self.paused = true,
            Word::Resume => self.paused = false,
            _ => {}
        }
        self.status()
    }

    async fn obey_running(&mut self, slot: usize, message: &Control) -> &'static str {
        let running = self.running[slot].as_mut().expect("the caller has just found it");
        if let Deed::Order { order, give_back } = deed(message) {
            running.give_back |= give_back;
            self.slots[slot].order(order);
            if matches!(order, Order::Stop | Order::Kill) {
                running.told = Some(message.clone());
            }
            if matches!(order, Order::Pause | Order::Resume) {
                running.paused = order == Order::Pause;
                if let Err(error) = self.broker.paused(running.claim_fence, running.paused).await {
                    tracing::warn!(tid = %running.claim_fence.tid, %error, "the pause could not be noted");
                }
            }
        }
        match message.command {
            Word::Stop | Word::Kill => "stopping",
            _ if running.paused => "paused",
            _ => State::Running.as_str(),
        }
    }

    /// A word to a task that is claimed but not begun. What the broker can obey better goes back to it with the task; then it is the
    /// broker that answers, and there is no state to tell.
    async fn obey_waiting(&mut self, tid: Tid, message: &Control) -> Option<&'static str> {
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
        self.ledger.write(Entry::Finish(ended(fence, exit)));
        Some("stopping")
    }

    /// Gives words to the broker, for tasks that this worker no longer has.
    pub(super) async fn pass_on(&mut self, words: Vec<(Tid, Control)>) {
        for (tid, message) in words {
            match self.broker.control(tid, message).await {
                Ok(_) | Err(Error::Finished(..) | Error::NotFound(_)) => {}
                Err(error) => tracing::warn!(%tid, %error, "a control message was lost"),
            }
        }
    }
}

/// What a word to a task that runs here asks of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    /// Pass the order on; with `give_back`, the attempt that ends by it goes back to the queue.
    Order { order: Order, give_back: bool },
    /// Nothing but the reply.
    Answer,
}

fn deed(message: &Control) -> Deed {
    let order = |order| Deed::Order { order, give_back: false };
    match message.command {
        Word::Stop => Deed::Order { order: Order::Stop, give_back: message.requeue },
        Word::Kill => order(Order::Kill),
        Word::Pause => order(Order::Pause),
        Word::Resume => order(Order::Resume),
        _ => Deed::Answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_that_asks_for_it_gives_the_task_back() {
        let mut stop = Control::new(Word::Stop);
        assert_eq!(deed(&stop), Deed::Order { order: Order::Stop, give_back: false });
        stop.requeue = true;
        assert_eq!(deed(&stop), Deed::Order { order: Order::Stop, give_back: true });
        assert_eq!(deed(&Control::new(Word::Ping)), Deed::Answer);
    }
}
