//! Stopping in stages, and giving back what was not done.

use raddle_broker::{Fence, Release};
use raddle_core::stop::Stage;
use raddle_exec::Order;

use super::{ledger::Entry, service::Service};

impl Service {
    /// Goes as many stages further as it was asked to since the last time.
    pub(super) fn heed(&mut self) {
        let asked = *self.asked.borrow_and_update();
        for _ in self.heeded..asked {
            self.stop_further();
        }
        self.heeded = asked;
    }

    pub(super) fn stop_further(&mut self) {
        let stage = self.stop.request(self.began.elapsed());
        self.carry_out(stage);
    }

    pub(super) fn carry_out(&mut self, stage: Stage) {
        for claim in self.backlog.drain() {
            self.give_back(claim.fence, "its worker is stopping");
        }
        let order = match stage {
            Stage::Running | Stage::Draining => return,
            Stage::Terminating => Order::Stop,
            Stage::Killing => Order::Kill,
        };
        for (slot, running) in self.slots.iter().zip(&mut self.running) {
            if let Some(running) = running {
                // Who was told to end by name ends; the others go on elsewhere.
                running.give_back |= running.told.is_none();
                slot.order(order);
            }
        }
    }

    pub(super) fn give_back(&mut self, fence: Fence, reason: &str) {
        self.unsettled.insert(fence);
        self.ledger.write(Entry::Release(Release { fence, reason: reason.into() }));
    }

    pub(super) fn lose_lease(&mut self) {
        self.lease_lost = true;
        // Others have these by now; what is still written about them is refused by their fences.
        self.backlog.drain();
        self.slots.iter().for_each(|slot| slot.order(Order::Kill));
    }
}
