//! A broker that keeps account of what passes through it. It changes nothing: what is written here is what the broker has answered.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use raddle_broker::{
    AttemptId, Broker, Call, CallHandler, LeaseRenewer, LeaseStatus, Leases, Reply, Result,
};
use raddle_model::{Tid, worker::Heartbeat};

use super::Metrics;

/// A broker that keeps account of the tasks that workers take from it.
pub struct MeteredBroker {
    broker: Arc<dyn Broker>,
    book: Arc<Metrics>,
}

impl MeteredBroker {
    /// `broker`, with its account in `book`.
    pub fn new(broker: Arc<dyn Broker>, book: Arc<Metrics>) -> Self {
        Self { broker, book }
    }
}

#[async_trait]
impl CallHandler for MeteredBroker {
    async fn call(&self, call: Call) -> Result<Reply> {
        let broker = &*self.broker;
        Ok(match call {
            // Who is there for one task that it has submitted itself is no worker of ours.
            Call::Claim { request } if request.only.is_none() => {
                let asked = self.book.now();
                let claims = broker.claim(request).await?;
                self.book.account().claimed(&claims, asked, self.book.now());
                Reply::Claim(claims)
            }
            Call::Complete { batch } => {
                let ended: Vec<_> = batch
                    .iter()
                    .map(|finish| (finish.attempt_id, finish.report.clone()))
                    .collect();
                let verdicts = broker.complete(batch).await?;
                let (mut account, now) = (self.book.account(), self.book.now());
                for ((attempt_id, report), verdict) in ended.iter().zip(&verdicts) {
                    account.finished(*attempt_id, report, *verdict, now);
                }
                Reply::Complete(verdicts)
            }
            Call::Release { batch } => {
                let fences: Vec<AttemptId> =
                    batch.iter().map(|release| release.attempt_id).collect();
                let verdicts = broker.release(batch).await?;
                let (mut account, now) = (self.book.account(), self.book.now());
                fences
                    .into_iter()
                    .zip(&verdicts)
                    .for_each(|(attempt_id, verdict)| account.released(attempt_id, *verdict, now));
                Reply::Release(verdicts)
            }
            Call::Reclaim {} => {
                let reclaimed = broker.reclaim().await?;
                self.book.reclaimed(&reclaimed);
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
            book: Arc::clone(&self.book),
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
    book: Arc<Metrics>,
}

impl LeaseRenewer for MeteredLeaseRenewer {
    fn renew(&mut self, heartbeat: Heartbeat) -> Result<LeaseStatus> {
        let pulse = self.renewer.renew(heartbeat)?;
        if let LeaseStatus::Alive(reclaimed) = &pulse {
            self.book.reclaimed(reclaimed);
        }
        Ok(pulse)
    }
}
