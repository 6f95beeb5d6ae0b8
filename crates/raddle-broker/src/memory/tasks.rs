//! The way of a task, as the contract has it: each call is one change of the state, or waits for one.

use std::time::Duration;

use async_trait::async_trait;
use raddle_core::{Control, TaskView, Tid};

use super::{Memory, shared::Topic, state::State};
use crate::{
    Demand, Result, Tasks,
    request::{
        Chain, Claim, ClaimRequest, Delivered, Delivery, Fence, Finish, Health, Own, OwnRequest, Purged, Reclaimed,
        Release, Started, Submit, Submitted, Summary, TaskFilter, Verdict, WaitingRequest,
    },
};

#[async_trait]
impl Tasks for Memory {
    async fn submit(&self, batch: Vec<Submit>) -> Result<Vec<Submitted>> {
        self.shared.change(|state, now| state.submit(batch, now))
    }

    async fn submit_own(&self, request: OwnRequest) -> Result<Own> {
        self.shared.change(|state, now| state.submit_own(request, now))
    }

    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>> {
        let claims = self.shared.wait_for(Topic::Ready, request.wait, |state, now| state.claim(&request, now)).await?;
        Ok(claims.unwrap_or_default())
    }

    async fn started(&self, batch: Vec<Started>) -> Result<()> {
        self.shared.change(|state, now| batch.into_iter().for_each(|started| state.started(started, now)));
        Ok(())
    }

    async fn paused(&self, fence: Fence, paused: bool) -> Result<()> {
        self.shared.change(|state, now| state.paused(fence, paused, now));
        Ok(())
    }

    async fn progress(&self, fence: Fence, progress: raddle_core::Progress) -> Result<()> {
        self.shared.change(|state, _| state.progress(fence, progress));
        Ok(())
    }

    async fn chain(&self, chain: Chain) -> Result<u64> {
        self.shared.change(|state, now| state.chain(&chain, now))
    }

    async fn finish(&self, batch: Vec<Finish>) -> Result<Vec<Verdict>> {
        Ok(self.shared.change(|state, now| batch.into_iter().map(|finish| state.finish(finish, now)).collect()))
    }

    async fn release(&self, batch: Vec<Release>) -> Result<Vec<Verdict>> {
        Ok(self.shared.change(|state, now| batch.into_iter().map(|release| state.release(release, now)).collect()))
    }

    async fn reclaim(&self) -> Result<Vec<Reclaimed>> {
        Ok(self.shared.change(|state, now| state.reclaim(now)))
    }

    async fn control(&self, tid: Tid, message: Control) -> Result<Delivered> {
        self.shared.change(|state, now| state.control(tid, &message, now))
    }

    async fn controls(&self, owner: Tid, wait: Duration) -> Result<Vec<Delivery>> {
        let taken = self.shared.wait_for(Topic::Controls, wait, |state, _| Ok(state.controls(owner))).await?;
        Ok(taken.unwrap_or_default())
    }

    async fn resubmit(&self, tid: Tid, dead: bool) -> Result<Tid> {
        self.shared.change(|state, now| state.resubmit(tid, dead, now))
    }

    async fn tasks(&self, filter: TaskFilter) -> Result<Vec<TaskView>> {
        let tasks = self.shared.change(|state, _| state.list(&filter));
        #[cfg(test)]
        self.shared.longest_list.fetch_max(tasks.len(), std::sync::atomic::Ordering::Relaxed);
        Ok(tasks)
    }

    async fn ahead_of(&self, tid: Tid) -> Result<u64> {
        self.shared.change(|state, _| state.ahead_of(tid))
    }

    async fn waiting(&self, request: WaitingRequest) -> Result<u64> {
        let WaitingRequest { caps, queues, max, wait } = request;
        let count = |state: &mut State, _| {
            let waiting = state.ready.count(|part| queues.contains(&part.queue) && part.needs.is_subset(&caps));
            Ok(Some(waiting.min(max.into())).filter(|waiting| *waiting > 0))
        };
        Ok(self.shared.wait_for(Topic::Ready, wait, count).await?.unwrap_or(0))
    }

    async fn demand(&self) -> Result<Demand> {
        Ok(self.shared.change(|state, now| state.demand(now)))
    }

    async fn summary(&self) -> Result<Summary> {
        Ok(self.shared.change(|state, _| state.summary()))
    }

    async fn purge(&self) -> Result<Purged> {
        Ok(self.shared.change(|state, now| state.purge(now)))
    }

    async fn health(&self) -> Result<Health> {
        Ok(Health {
            engine: "memory".into(),
            location: "this process".into(),
            durability: "nothing outlives the process".into(),
            checks: Vec::new(),
        })
    }
}
