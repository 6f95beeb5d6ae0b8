//! A broker that keeps account of what passes through it. It changes nothing: what is written here is what the broker has answered.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use raddle_broker::{
    Agenda, Broker, Chain, Claim, ClaimRequest, Conversion, Cursor, Delivered, Delivery, Demand, Fence, Finish, Health,
    Heart, Log, Message, Messages, Output, Own, OwnRequest, Peek, Progress, Pulse, Purged, QueueDepth, Reclaimed,
    Registry, Release, Result, ScheduleChange, ScheduleChanged, ScheduleView, Schedules, Started, Stream, Submit,
    Submitted, Summary, TaskFilter, Tasks, Verdict, WaitingRequest,
};
use raddle_core::{
    Control, Event, QueueName, TaskView, Tid, WorkerEntry,
    tid::ShortTid,
    worker::{Beat, WorkerInfo},
};

use super::{Book, account::Ending};

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
impl Tasks for Observed {
    async fn submit(&self, batch: Vec<Submit>) -> Result<Vec<Submitted>> {
        self.broker.submit(batch).await
    }

    async fn submit_own(&self, request: OwnRequest) -> Result<Own> {
        self.broker.submit_own(request).await
    }

    async fn sync(&self) -> Result<()> {
        self.broker.sync().await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>> {
        // Who is there for one task that it has submitted itself is no worker of ours.
        let is_counted = request.only.is_none();
        let asked = self.book.now();
        let claims = self.broker.claim(request).await?;
        if is_counted {
            self.book.claimed(&claims, asked);
        }
        Ok(claims)
    }

    async fn started(&self, batch: Vec<Started>) -> Result<()> {
        self.broker.started(batch).await
    }

    async fn paused(&self, fence: Fence, paused: bool) -> Result<()> {
        self.broker.paused(fence, paused).await
    }

    async fn progress(&self, fence: Fence, progress: raddle_core::Progress) -> Result<()> {
        self.broker.progress(fence, progress).await
    }

    async fn chain(&self, chain: Chain) -> Result<u64> {
        self.broker.chain(chain).await
    }

    async fn finish(&self, batch: Vec<Finish>) -> Result<Vec<Verdict>> {
        let endings: Vec<Ending> = batch.iter().map(Ending::from).collect();
        let verdicts = self.broker.finish(batch).await?;
        endings.iter().zip(&verdicts).for_each(|(ending, verdict)| self.book.finished(ending, *verdict));
        Ok(verdicts)
    }

    async fn release(&self, batch: Vec<Release>) -> Result<Vec<Verdict>> {
        let fences: Vec<Fence> = batch.iter().map(|release| release.fence).collect();
        let verdicts = self.broker.release(batch).await?;
        fences.into_iter().zip(&verdicts).for_each(|(fence, verdict)| self.book.released(fence, *verdict));
        Ok(verdicts)
    }

    async fn reclaim(&self) -> Result<Vec<Reclaimed>> {
        let reclaimed = self.broker.reclaim().await?;
        self.book.reclaimed(&reclaimed);
        Ok(reclaimed)
    }

    async fn control(&self, tid: Tid, message: Control) -> Result<Delivered> {
        self.broker.control(tid, message).await
    }

    async fn controls(&self, owner: Tid, wait: Duration) -> Result<Vec<Delivery>> {
        self.broker.controls(owner, wait).await
    }

    async fn resubmit(&self, tid: Tid, dead: bool) -> Result<Tid> {
        self.broker.resubmit(tid, dead).await
    }

    async fn task(&self, tid: Tid) -> Result<Option<TaskView>> {
        self.broker.task(tid).await
    }

    async fn tasks(&self, filter: TaskFilter) -> Result<Vec<TaskView>> {
        self.broker.tasks(filter).await
    }

    async fn complete(&self, short: ShortTid) -> Result<Vec<Tid>> {
        self.broker.complete(short).await
    }

    async fn ahead_of(&self, tid: Tid) -> Result<u64> {
        self.broker.ahead_of(tid).await
    }

    async fn waiting(&self, request: WaitingRequest) -> Result<u64> {
        self.broker.waiting(request).await
    }

    async fn demand(&self) -> Result<Demand> {
        self.broker.demand().await
    }

    async fn summary(&self) -> Result<Summary> {
        self.broker.summary().await
    }

    async fn purge(&self) -> Result<Purged> {
        self.broker.purge().await
    }

    async fn health(&self) -> Result<Health> {
        self.broker.health().await
    }
}

#[async_trait]
impl Registry for Observed {
    async fn register_own(&self, worker: WorkerInfo, ttl: Duration) -> Result<Tid> {
        self.broker.register_own(worker, ttl).await
    }

    async fn register(&self, info: WorkerInfo, ttl: Duration) -> Result<Tid> {
        self.broker.register(info, ttl).await
    }

    fn heart(&self, worker: Tid, ttl: Duration) -> Box<dyn Heart> {
        Box::new(ObservedHeart { heart: self.broker.heart(worker, ttl), book: Arc::clone(&self.book) })
    }

    fn tie(&self, worker: Tid) -> bool {
        self.broker.tie(worker)
    }

    fn shorten(&self, worker: Tid, ttl: Duration) {
        self.broker.shorten(worker, ttl);
    }

    async fn deregister(&self, worker: Tid, failure: Option<String>) -> Result<()> {
        self.broker.deregister(worker, failure).await
    }

    async fn workers(&self) -> Result<Vec<WorkerEntry>> {
        self.broker.workers().await
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

#[async_trait]
impl Messages for Observed {
    async fn put(&self, queue: &QueueName, bodies: Vec<String>) -> Result<Vec<Tid>> {
        self.broker.put(queue, bodies).await
    }

    async fn take(&self, queue: &QueueName, max: u32, wait: Duration) -> Result<Vec<Message>> {
        self.broker.take(queue, max, wait).await
    }

    async fn look(&self, peek: Peek) -> Result<Vec<Message>> {
        self.broker.look(peek).await
    }

    async fn shift(&self, from: &QueueName, to: &QueueName, max: u32) -> Result<u64> {
        self.broker.shift(from, to, max).await
    }

    async fn convert(&self, conversion: Conversion) -> Result<Option<Vec<Submitted>>> {
        self.broker.convert(conversion).await
    }

    async fn depths(&self) -> Result<Vec<QueueDepth>> {
        self.broker.depths().await
    }

    async fn clear(&self, queue: &QueueName) -> Result<u64> {
        self.broker.clear(queue).await
    }
}

#[async_trait]
impl Log for Observed {
    async fn events(&self, after: u64, tid: Option<Tid>, max: u32, wait: Duration) -> Result<Vec<Event>> {
        self.broker.events(after, tid, max, wait).await
    }

    async fn last_event(&self) -> Result<u64> {
        self.broker.last_event().await
    }
}

#[async_trait]
impl Output for Observed {
    async fn append_output(&self, fence: Fence, stream: Stream, bytes: Vec<u8>) -> Result<()> {
        self.broker.append_output(fence, stream, bytes).await
    }

    async fn read_output(&self, fence: Fence, stream: Stream, offset: u64, max: u32) -> Result<Vec<u8>> {
        self.broker.read_output(fence, stream, offset, max).await
    }

    async fn follow(&self, tid: Tid, cursor: Cursor, wait: Duration) -> Result<Progress> {
        self.broker.follow(tid, cursor, wait).await
    }
}

#[async_trait]
impl Schedules for Observed {
    async fn schedules(&self) -> Result<Vec<ScheduleView>> {
        self.broker.schedules().await
    }

    async fn schedule(&self, name: &str) -> Result<Option<ScheduleView>> {
        self.broker.schedule(name).await
    }

    async fn change_schedule(&self, change: ScheduleChange) -> Result<ScheduleChanged> {
        self.broker.change_schedule(change).await
    }

    async fn agenda(&self, wait: Duration) -> Result<Agenda> {
        self.broker.agenda(wait).await
    }

    async fn expire(&self) -> Result<u64> {
        self.broker.expire().await
    }
}
