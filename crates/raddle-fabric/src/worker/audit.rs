//! Audits: what the worker holds against what the broker assigns to it. Decisions only.
//!
//! A Redis server that loses its last writes, by a power cut under `appendfsync everysec` or by a failover to a replica that lags, forgets claims and
//! completions that it has confirmed. An attempt whose claim is forgotten runs here while the task waits for another worker. A task whose completion is
//! forgotten stays assigned to this worker for as long as the worker lives, and no lease runs out.

use std::collections::HashSet;

use raddle_broker::Fence;
use raddle_exec::Order;

use super::{core::Core, event::Effect};

impl Core {
    /// Whether it compares from time to time. One that leaves at once, or whose tasks are others' by now, has no use for it.
    pub(super) fn audits(&self) -> bool {
        !self.lease_lost && self.leave_by.is_none()
    }

    /// The attempts that run here, or wait for a slot.
    pub(super) fn held(&self) -> Vec<Fence> {
        self.slots.iter().flatten().map(|running| running.fence).chain(self.backlog.fences()).collect()
    }

    /// Whether this attempt runs here, waits for a slot, or waits to be written.
    pub(super) fn holds(&self, fence: Fence) -> bool {
        self.unsettled.contains(&fence) || self.held().contains(&fence)
    }

    /// Stops attempts that the broker does not assign to this worker, and gives back those that only the broker knows of.
    ///
    /// `held` was true before the broker was asked. An attempt that was claimed or ended since then is judged by the next audit.
    pub(super) fn compare(&mut self, held: &[Fence], assigned: &HashSet<Fence>) {
        for fence in held.iter().filter(|fence| !assigned.contains(fence)) {
            self.abandon(*fence);
        }
        // The answer to a claim may be on its way, and the end of an attempt may have crossed the question: only the second audit in a row is sure.
        let unknown: HashSet<Fence> = assigned.iter().copied().filter(|fence| !self.holds(*fence)).collect();
        for fence in unknown.intersection(&std::mem::take(&mut self.unknown)) {
            self.warn(*fence, "the broker has lost what became of an attempt: its task goes back to the queue");
            self.give_back(*fence, "the broker has lost what its worker wrote of it");
        }
        self.unknown = unknown;
    }

    /// Ends an attempt here whose task may be another worker's by now. The release is refused, counted and logged by the broker.
    fn abandon(&mut self, fence: Fence) {
        if self.backlog.take_attempt(fence) {
            return self.give_back(fence, "the broker has forgotten its claim");
        }
        for slot in 0..self.slots.len() {
            if let Some(running) = &mut self.slots[slot]
                && running.fence == fence
            {
                running.give_back = true;
                self.act(Effect::Order { slot, order: Order::Kill });
                self.warn(
                    fence,
                    "the broker does not assign a running task to this worker any more: its attempt is killed",
                );
            }
        }
    }

    fn warn(&mut self, fence: Fence, message: &'static str) {
        self.act(Effect::Warn { fence, message });
    }
}
