//! `MeteredBroker`: counts what passes to and from a broker. It changes nothing, and counts only
//! what the broker has accepted.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use raddle_broker::{
    AttemptId, Broker, Call, CallHandler, LeaseRenewer, LeaseStatus, Leases, Reply, Result,
};
use raddle_model::{Tid, worker::Heartbeat};

use super::Metrics;

/// A broker that counts the tasks that workers claim and finish.
pub struct MeteredBroker {
    broker: Arc<dyn Broker>,
    metrics: Arc<Metrics>,
}

impl MeteredBroker {
    /// Wraps `broker` and counts in `metrics`.
    pub fn new(broker: Arc<dyn Broker>, metrics: Arc<Metrics>) -> Self {
        Self { broker, metrics }
    }
}

#[async_trait]
impl CallHandler for MeteredBroker {
    async fn call(&self, call: Call) -> Result<Reply> {
        let broker = &*self.broker;
        Ok(match call {
            // A claim for one task is an inline worker's: not one of the workers that are counted.
            Call::Claim { request } if request.only.is_none() => {
                let asked = self.metrics.now();
                let claims = broker.claim(request).await?;
                self.metrics
                    .counters()
                    .claimed(&claims, asked, self.metrics.now());
                Reply::Claim(claims)
            }
            Call::Complete { batch } => {
                let ended: Vec<_> = batch
                    .iter()
                    .map(|finish| (finish.attempt_id, finish.report.clone()))
                    .collect();
                let outcomes = broker.complete(batch).await?;
                let (mut counters, now) = (self.metrics.counters(), self.metrics.now());
                for ((attempt_id, report), outcome) in ended.iter().zip(&outcomes) {
                    counters.finished(*attempt_id, report, *outcome, now);
                }
                Reply::Complete(outcomes)
            }
            Call::Release { batch } => {
                let attempt_ids: Vec<AttemptId> =
                    batch.iter().map(|release| release.attempt_id).collect();
                let outcomes = broker.release(batch).await?;
                let (mut counters, now) = (self.metrics.counters(), self.metrics.now());
                attempt_ids
                    .into_iter()
                    .zip(&outcomes)
                    .for_each(|(attempt_id, outcome)| counters.released(attempt_id, *outcome, now));
                Reply::Release(outcomes)
            }
            Call::Reclaim {} => {
                let reclaimed = broker.reclaim().await?;
                self.metrics.reclaimed(&reclaimed);
                Reply::Reclaim(reclaimed)
            }
            call => call.perform(broker).await?,
        })
    }
}

impl Leases for MeteredBroker {
    fn lease_renewer(&self, worker: Tid, ttl: Duration) -> Box<dyn LeaseRenewer> {
        Box::new(MeteredLeaseRenewer {
            renewer: self.broker.lease_renewer(worker, ttl),
            metrics: Arc::clone(&self.metrics),
        })
    }

    fn acquire_liveness_lock(&self, worker: Tid) -> bool {
        self.broker.acquire_liveness_lock(worker)
    }

    fn suspend_unlocked(&self, stop: &mut dyn FnMut()) {
        self.broker.suspend_unlocked(stop);
    }
}

struct MeteredLeaseRenewer {
    renewer: Box<dyn LeaseRenewer>,
    metrics: Arc<Metrics>,
}

impl LeaseRenewer for MeteredLeaseRenewer {
    fn renew(&mut self, heartbeat: Heartbeat) -> Result<LeaseStatus> {
        let status = self.renewer.renew(heartbeat)?;
        if let LeaseStatus::Alive(reclaimed) = &status {
            self.metrics.reclaimed(reclaimed);
        }
        Ok(status)
    }
}
