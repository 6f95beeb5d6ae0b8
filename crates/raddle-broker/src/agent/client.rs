//! The asking side: a broker that is in another process.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use raddle_core::{Control, Event, QueueName, TaskView, Tid, WorkerEntry, tid::ShortTid, worker::WorkerInfo};
use serde::de::DeserializeOwned;

use super::{
    claims::Claims,
    direct::Direct,
    heart::Pacemaker,
    link::{Link, refused},
    protocol::{Bytes, Call, read},
};
use crate::{
    Agenda, Chain, Check, Claim, ClaimRequest, Conversion, Cursor, Delivered, Delivery, Demand, Error, Fence, Finish,
    Health, Heart, Log, Message, Messages, Output, Own, OwnRequest, Peek, Progress, Purged, QueueDepth, Reclaimed,
    Registry, Release, Result, ScheduleChange, ScheduleChanged, ScheduleView, Schedules, Started, Stream, Submit,
    Submitted, Summary, TaskFilter, Tasks, Url, Verdict, WaitingRequest, doubt::Doubts,
};

/// A broker that another process serves. When that ends, calls fail with an error that can be retried, and the next one looks for
/// whoever serves there then.
pub struct Remote {
    path: PathBuf,
    link: Mutex<Option<Arc<Link>>>,
    /// Held while a connection is made, so that calls which find none share one.
    connecting: tokio::sync::Mutex<()>,
    claims: Arc<Claims>,
    doubts: Doubts,
    direct: Option<Arc<Direct>>,
}

impl Remote {
    /// Connects to the agent at `path`.
    pub async fn connect(path: &Path) -> Result<Self> {
        let remote = Self::new(path, None);
        remote.link().await?;
        Ok(remote)
    }

    /// Connects to the agent at `path`, and to `url` instead when nobody serves there, or from when on nobody does: for a worker that has
    /// to finish what it runs also without whoever started it.
    pub async fn connect_or(path: &Path, url: Url) -> Result<Self> {
        let remote = Self::new(path, Some(Arc::new(Direct::new(url))));
        match (remote.link().await, &remote.direct) {
            (Err(Error::AgentGone { .. }), Some(direct)) => drop(direct.broker().await?),
            (link, _) => drop(link?),
        }
        Ok(remote)
    }

    fn new(path: &Path, direct: Option<Arc<Direct>>) -> Self {
        Self {
            path: path.into(),
            link: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            claims: Arc::default(),
            doubts: Doubts::default(),
            direct,
        }
    }

    /// The connection, made anew if there is none.
    async fn link(&self) -> Result<Arc<Link>> {
        let present = || {
            let link = self.link.lock().unwrap_or_else(PoisonError::into_inner).clone();
            link.filter(|link| !link.is_gone())
        };
        if let Some(link) = present() {
            return Ok(link);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(link) = present() {
            return Ok(link);
        }
        let link = Arc::new(Link::open(&self.path, Arc::clone(&self.claims)).await?);
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&link));
        Ok(link)
    }

    async fn ask<T: DeserializeOwned>(&self, call: Call) -> Result<T> {
        let payload = self.call(call).await?;
        self.read(&payload)
    }

    /// Asks the agent, or the engine itself where there is no agent any more. Nothing is awaited after the answer is there.
    async fn call(&self, call: Call) -> Result<Vec<u8>> {
        let gone = match &self.direct {
            Some(direct) if direct.is_open() => None,
            _ => match self.ask_agent(&call).await {
                Err(error @ Error::AgentGone { .. }) => Some(error),
                answer => return answer,
            },
        };
        match (&self.direct, gone) {
            (Some(direct), _) => direct.call(call).await,
            (None, gone) => Err(gone.unwrap_or(Error::Closed)),
        }
    }

    async fn ask_agent(&self, call: &Call) -> Result<Vec<u8>> {
        Ok(self.link().await?.call(call).await?.take())
    }

    fn read<T: DeserializeOwned>(&self, payload: &[u8]) -> Result<T> {
        read(payload).map_err(|error| refused(&self.path, error.to_string()))
    }

    /// Gives back what this worker was given by an agent that could not tell it.
    async fn settle(&self, owner: Tid) -> Result<()> {
        let Some(_settling) = self.claims.settling() else { return Ok(()) };
        let suspects: Vec<TaskView> = self.ask(Call::Unbegun(owner)).await?;
        let fence = |task: TaskView| (Fence { tid: task.tid, attempt: task.attempt }, task.worker);
        let lost = self.claims.lost(owner, suspects.into_iter().map(fence));
        if !lost.is_empty() {
            tracing::warn!(worker = %owner, tasks = lost.len(), "an agent ended before it had handed over what it had claimed");
            self.release(lost).await?;
        }
        self.claims.settled(owner);
        Ok(())
    }
}

#[async_trait]
impl Tasks for Remote {
    async fn submit(&self, batch: Vec<Submit>) -> Result<Vec<Submitted>> {
        self.ask(Call::Submit(batch)).await
    }

    async fn submit_own(&self, request: OwnRequest) -> Result<Own> {
        let own: Own = self.ask(Call::SubmitOwn(Box::new(request))).await?;
        if let (Some(owner), Some(claim)) = (own.worker, &own.claim) {
            self.claims.given(owner, std::slice::from_ref(claim));
        }
        Ok(own)
    }

    async fn sync(&self) -> Result<()> {
        self.ask(Call::Sync).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>> {
        let owner = request.owner;
        if self.claims.is_in_doubt(owner) {
            self.settle(owner).await?;
        }
        let _claiming = self.claims.claiming().await;
        let payload = match self.call(Call::Claim(request)).await {
            Err(Error::NotFound(gone)) if gone == owner => {
                self.claims.left(owner);
                return Err(Error::NotFound(owner));
            }
            payload => payload?,
        };
        // Nothing is awaited from here on: who is given the claims has them in the books.
        let claims: Vec<Claim> = self.read(&payload)?;
        self.claims.given(owner, &claims);
        Ok(claims)
    }

    async fn started(&self, batch: Vec<Started>) -> Result<()> {
        self.ask(Call::Started(batch)).await
    }

    async fn paused(&self, fence: Fence, paused: bool) -> Result<()> {
        self.ask(Call::Paused { fence, paused }).await
    }

    async fn progress(&self, fence: Fence, progress: raddle_core::Progress) -> Result<()> {
        self.ask(Call::Progress { fence, progress }).await
    }

    async fn chain(&self, chain: Chain) -> Result<u64> {
        self.ask(Call::Chain(chain)).await
    }

    async fn finish(&self, batch: Vec<Finish>) -> Result<Vec<Verdict>> {
        let fences: Vec<Fence> = batch.iter().map(|finish| finish.fence).collect();
        let verdicts = self.doubts.finish(self, batch, async |batch| self.ask(Call::Finish(batch)).await).await?;
        self.claims.over(fences);
        Ok(verdicts)
    }

    async fn release(&self, batch: Vec<Release>) -> Result<Vec<Verdict>> {
        let fences: Vec<Fence> = batch.iter().map(|release| release.fence).collect();
        let verdicts = self.ask(Call::Release(batch)).await?;
        self.claims.over(fences);
        Ok(verdicts)
    }

    async fn reclaim(&self) -> Result<Vec<Reclaimed>> {
        self.ask(Call::Reclaim).await
    }

    async fn control(&self, tid: Tid, message: Control) -> Result<Delivered> {
        self.ask(Call::Control { tid, message }).await
    }

    async fn controls(&self, owner: Tid, wait: Duration) -> Result<Vec<Delivery>> {
        self.ask(Call::Controls { owner, wait }).await
    }

    async fn resubmit(&self, tid: Tid, dead: bool) -> Result<Tid> {
        self.ask(Call::Resubmit { tid, dead }).await
    }

    async fn task(&self, tid: Tid) -> Result<Option<TaskView>> {
        self.ask(Call::Task(tid)).await
    }

    async fn tasks(&self, filter: TaskFilter) -> Result<Vec<TaskView>> {
        self.ask(Call::Tasks(filter)).await
    }

    async fn complete(&self, short: ShortTid) -> Result<Vec<Tid>> {
        self.ask(Call::Complete(short.to_string())).await
    }

    async fn ahead_of(&self, tid: Tid) -> Result<u64> {
        self.ask(Call::AheadOf(tid)).await
    }

    async fn waiting(&self, request: WaitingRequest) -> Result<u64> {
        self.ask(Call::Waiting(request)).await
    }

    async fn demand(&self) -> Result<Demand> {
        self.ask(Call::Demand).await
    }

    async fn summary(&self) -> Result<Summary> {
        self.ask(Call::Summary).await
    }

    async fn purge(&self) -> Result<Purged> {
        self.ask(Call::Purge).await
    }

    /// What the engine behind the agent says, and who serves it.
    async fn health(&self) -> Result<Health> {
        if self.direct.as_ref().is_some_and(|direct| direct.is_open()) {
            return self.ask(Call::Health).await;
        }
        let link = self.link().await?;
        let mut health: Health = self.read(&link.call(&Call::Health).await?.take())?;
        let server = link.server().map(|pid| format!(" by process {pid}")).unwrap_or_default();
        let detail = format!("{} is served{server} at {}", health.engine, self.path.display());
        health.checks.insert(0, Check { name: "agent".into(), ok: true, detail, fix: None });
        Ok(health)
    }
}

#[async_trait]
impl Registry for Remote {
    async fn register(&self, info: WorkerInfo, ttl: Duration) -> Result<Tid> {
        self.ask(Call::Register { info, ttl }).await
    }

    async fn register_own(&self, info: WorkerInfo, ttl: Duration) -> Result<Tid> {
        self.ask(Call::RegisterOwn { info, ttl }).await
    }

    fn heart(&self, worker: Tid, ttl: Duration) -> Box<dyn Heart> {
        Box::new(Pacemaker::new(self.path.clone(), worker, ttl, self.direct.clone()))
    }

    async fn deregister(&self, worker: Tid, failure: Option<String>) -> Result<()> {
        self.ask::<()>(Call::Deregister { worker, failure }).await?;
        self.claims.left(worker);
        Ok(())
    }

    async fn workers(&self) -> Result<Vec<WorkerEntry>> {
        self.ask(Call::Workers).await
    }
}

#[async_trait]
impl Messages for Remote {
    async fn put(&self, queue: &QueueName, bodies: Vec<String>) -> Result<Vec<Tid>> {
        self.ask(Call::Put { queue: queue.clone(), bodies }).await
    }

    async fn take(&self, queue: &QueueName, max: u32, wait: Duration) -> Result<Vec<Message>> {
        self.ask(Call::Take { queue: queue.clone(), max, wait }).await
    }

    async fn look(&self, peek: Peek) -> Result<Vec<Message>> {
        self.ask(Call::Look(peek)).await
    }

    async fn shift(&self, from: &QueueName, to: &QueueName, max: u32) -> Result<u64> {
        self.ask(Call::Shift { from: from.clone(), to: to.clone(), max }).await
    }

    async fn convert(&self, conversion: Conversion) -> Result<Option<Vec<Submitted>>> {
        self.ask(Call::Convert(Box::new(conversion))).await
    }

    async fn depths(&self) -> Result<Vec<QueueDepth>> {
        self.ask(Call::Depths).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<u64> {
        self.ask(Call::Clear(queue.clone())).await
    }
}

#[async_trait]
impl Log for Remote {
    async fn events(&self, after: u64, tid: Option<Tid>, max: u32, wait: Duration) -> Result<Vec<Event>> {
        self.ask(Call::Events { after, tid, max, wait }).await
    }

    async fn last_event(&self) -> Result<u64> {
        self.ask(Call::LastEvent).await
    }
}

#[async_trait]
impl Output for Remote {
    async fn append_output(&self, fence: Fence, stream: Stream, bytes: Vec<u8>) -> Result<()> {
        self.ask(Call::AppendOutput { fence, stream, bytes: Bytes(bytes) }).await
    }

    async fn read_output(&self, fence: Fence, stream: Stream, offset: u64, max: u32) -> Result<Vec<u8>> {
        let Bytes(bytes) = self.ask(Call::ReadOutput { fence, stream, offset, max }).await?;
        Ok(bytes)
    }

    async fn follow(&self, tid: Tid, cursor: Cursor, wait: Duration) -> Result<Progress> {
        self.ask(Call::Follow { tid, cursor, wait }).await
    }
}

#[async_trait]
impl Schedules for Remote {
    async fn schedules(&self) -> Result<Vec<ScheduleView>> {
        self.ask(Call::Schedules).await
    }

    async fn schedule(&self, name: &str) -> Result<Option<ScheduleView>> {
        self.ask(Call::Schedule(name.into())).await
    }

    async fn change_schedule(&self, change: ScheduleChange) -> Result<ScheduleChanged> {
        self.ask(Call::ChangeSchedule(Box::new(change))).await
    }

    async fn agenda(&self, wait: Duration) -> Result<Agenda> {
        self.ask(Call::Agenda { wait }).await
    }

    async fn expire(&self) -> Result<u64> {
        self.ask(Call::Expire).await
    }
}
