//! A broker that keeps account of what passes through it. It changes nothing: what is written here is what the broker has answered.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use raddle_broker::{Broker, Call, Fence, Heart, Leases, Proxy, Pulse, Reply, Result};
use raddle_core::{Tid, worker::Beat};

use super::Book;

/// A broker that keeps account of the tasks that workers take from it.
pub struct Observed {
    broker: Arc<dyn Broker>,
    book: Arc<Book>,
}

impl Observed {
    /// `broker`, with its account in `book`.
    pub fn new(broker: Arc<dyn Broker>, book: Arc<Book>) -> Self {
        Self { broker, book }
    }
}

#[async_trait]
impl Proxy for Observed {
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
            Call::Finish { batch } => {
                let ended: Vec<_> = batch.iter().map(|finish| (finish.fence, finish.report.clone())).collect();
                let verdicts = broker.finish(batch).await?;
                let (mut account, now) = (self.book.account(), self.book.now());
                for ((fence, report), verdict) in ended.iter().zip(&verdicts) {
                    account.finished(*fence, report, *verdict, now);
                }
                Reply::Finish(verdicts)
            }
            Call::Release { batch } => {
                let fences: Vec<Fence> = batch.iter().map(|release| release.fence).collect();
                let verdicts = broker.release(batch).await?;
                let (mut account, now) = (self.book.account(), self.book.now());
                fences.into_iter().zip(&verdicts).for_each(|(fence, verdict)| account.released(fence, *verdict, now));
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

impl Leases for Observed {
    fn heart(&self, worker: Tid, ttl: Duration) -> Box<dyn Heart> {
        Box::new(ObservedHeart { heart: self.broker.heart(worker, ttl), book: Arc::clone(&self.book) })
    }

    fn tie(&self, worker: Tid) -> bool {
        self.broker.tie(worker)
    }

    fn stop_unlocked(&self, stop: &mut dyn FnMut()) {
        self.broker.stop_unlocked(stop);
    }
}

struct ObservedHeart {
    heart: Box<dyn Heart>,
    book: Arc<Book>,
}

impl Heart for ObservedHeart {
    fn beat(&mut self, beat: Beat) -> Result<Pulse> {
        let pulse = self.heart.beat(beat)?;
        if let Pulse::Alive(reclaimed) = &pulse {
            self.book.reclaimed(reclaimed);
        }
        Ok(pulse)
    }
}
