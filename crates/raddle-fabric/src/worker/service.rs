//! The worker's loop: claims in, jobs to slots, outcomes to the ledger, words obeyed, stops carried out in stages.

use std::{
    collections::HashSet,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use raddle_broker::{Broker, Claim, ClaimRequest, Delivery, Error, Fence, Finish, Release, Result, Started, Verdict};
use raddle_core::{
    Control, Exit, Tid,
    stop::{Stage, Stop, StopPolicy},
    title,
    worker::WorkerStatus,
};
use raddle_exec::{FencePage, Prefork};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use super::{
    EndReason, Options, Outcome, Shutdown, Worker,
    backlog::{Backlog, PATIENCE},
    ledger::{Entry, Ledger, Settled},
    obey::listen,
    pulse::{Pulse, Vitals},
    slot::{Equipment, News, Slot, What},
};

/// How long one wait for tasks or words lasts before it is begun again. Nothing depends on it.
pub(super) const WAIT: Duration = Duration::from_secs(3600);
/// How long a worker for one task waits for it between two looks at whether it is over.
const LOOK: Duration = Duration::from_millis(250);
/// How often a resident worker removes what has expired.
const PURGE_EVERY: Duration = Duration::from_secs(60);
/// After an error of the broker, before the next try.
pub(super) const ERROR_PAUSE: Duration = Duration::from_millis(500);
/// Why the loop ended.
pub(super) enum End {
    Left(EndReason, Option<Box<Outcome>>),
    LeaseLost,
}

type Claiming = Pin<Box<dyn Future<Output = Result<Vec<Claim>>> + Send>>;

/// An attempt in a slot.
pub(super) struct Running {
    pub(super) claim_fence: Fence,
    pub(super) began: Instant,
    /// What ends by a stop goes back to the queue instead of counting as cancelled.
    pub(super) give_back: bool,
    pub(super) paused: bool,
    /// The word that is to end it.
    pub(super) told: Option<Control>,
}

pub(super) struct Service {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) options: Options,
    pub(super) tid: Tid,
    pub(super) slots: Vec<Slot>,
    pub(super) running: Vec<Option<Running>>,
    pub(super) backlog: Backlog,
    pub(super) ledger: Ledger,
    pub(super) news: mpsc::UnboundedReceiver<News>,
    pub(super) settled: mpsc::UnboundedReceiver<Settled>,
    pub(super) words: mpsc::UnboundedReceiver<Delivery>,
    pub(super) listener: JoinHandle<()>,
    pub(super) pulse: Pulse,
    pub(super) vitals: Arc<Vitals>,
    pub(super) spawned: Arc<AtomicU64>,
    pub(super) asked: watch::Receiver<u32>,
    /// How many of the requests to stop have been carried out.
    pub(super) heeded: u32,
    pub(super) stop: Stop,
    pub(super) paused: bool,
    pub(super) lease_lost: bool,
    /// The one task this worker is for has reached its end.
    pub(super) only_done: bool,
    /// The last attempt of that task, when it was here.
    pub(super) last: Option<Finish>,
    /// How that task ended, if it did here.
    pub(super) outcome: Option<Box<Outcome>>,
    /// The last look at the queue found nothing.
    pub(super) nothing_waits: bool,
    /// Attempts that are over here, and not yet in the broker.
    pub(super) unsettled: HashSet<Fence>,
    /// Words that came when their attempt was already over. If the task waits again they are for the task.
    pub(super) late: Vec<(Tid, Control)>,
    pub(super) began: Instant,
    pub(super) idle_since: Instant,
    pub(super) title: String,
}

impl Service {
    pub(super) fn start(worker: &mut Worker, spawned: Arc<AtomicU64>, shutdown: &Shutdown) -> Result<Self> {
        let Worker { broker, options, tid, leased_at, claim, strangers, .. } = worker;
        let page = || Error::Io { path: "the lease page".into(), reason: "the system gives no shared memory".into() };
        let fence = match options.prefork.as_ref().and_then(Prefork::fence) {
            Some(fence) => fence,
            None => Arc::new(FencePage::new().map_err(|_| page())?),
        };
        let vitals = Arc::new(Vitals::default());
        let heart = broker.heart(*tid, options.lease);
        let pulse = Pulse::new(heart, options.lease, *leased_at, Arc::clone(&fence), Arc::clone(&vitals));
        let equipment = Arc::new(Equipment {
            broker: Arc::clone(broker),
            fence,
            runner: options.runner.clone(),
            prefork: options.prefork.clone(),
            one_shot: options.only.is_some(),
            idle_title: title::format(*tid, "runner", "idle"),
            grace: options.grace,
            env: options.env.clone(),
            caps: options.caps.clone(),
            plugins: Arc::clone(&options.plugins),
            strangers: Arc::clone(strangers),
        });
        let (tell, news) = mpsc::unbounded_channel();
        let count = options.concurrency.max(1) as usize;
        let slots = (0..count).map(|number| Slot::start(number, Arc::clone(&equipment), tell.clone())).collect();
        let (settle, settled) = mpsc::unbounded_channel();
        let (say, words) = mpsc::unbounded_channel();
        let now = Instant::now();
        let mut backlog = Backlog::new(count as u32);
        backlog.push(claim.take().into_iter().collect(), Duration::ZERO);
        Ok(Self {
            slots,
            running: (0..count).map(|_| None).collect(),
            backlog,
            ledger: Ledger::start(Arc::clone(broker), settle),
            news,
            settled,
            words,
            listener: tokio::spawn(listen(Arc::clone(broker), *tid, say)),
            pulse,
            vitals,
            spawned,
            asked: shutdown.watch(),
            heeded: 0,
            stop: Stop::new(StopPolicy::drain(options.grace)),
            paused: false,
            lease_lost: false,
            only_done: false,
            last: None,
            outcome: None,
            nothing_waits: false,
            unsettled: HashSet::new(),
            late: Vec::new(),
            began: now,
            idle_since: now,
            title: String::new(),
            broker: Arc::clone(broker),
            options: options.clone(),
            tid: *tid,
        })
    }

    pub(super) async fn run(mut self) -> Result<End> {
        let outcome = self.work().await;
        self.listener.abort();
        let Self { slots, ledger, .. } = self;
        for slot in slots {
            slot.close().await;
        }
        ledger.close().await;
        outcome
    }

    async fn work(&mut self) -> Result<End> {
        let mut claiming: Option<Claiming> = None;
        let mut purging: Option<JoinHandle<()>> = None;
        let mut purge_at = Instant::now() + PURGE_EVERY;
        self.heed();
        loop {
            self.fill_slots();
            self.show();
            if let Some(end) = self.end() {
                return Ok(end);
            }
            if self.takes_tasks() {
                claiming = claiming.or_else(|| self.claim());
            } else {
                // Dropping a claim that waits is safe: what it had taken goes back.
                claiming = None;
            }
            let timer = self.next_timer(purge_at);
            tokio::select! {
                claims = async { claiming.as_mut().expect("polled only when there is one").await }, if claiming.is_some() => {
                    claiming = None;
                    self.claimed(claims).await?;
                }
                Some(news) = self.news.recv() => self.hear(news),
                Some(settled) = self.settled.recv() => self.settle(settled).await,
                Some(delivery) = self.words.recv() => self.obey(delivery).await,
                Ok(()) = self.asked.changed() => self.heed(),
                () = self.pulse.lost(), if !self.lease_lost => self.lose_lease(),
                () = sleep_until(timer) => self.tick(),
            }
            if Instant::now() >= purge_at && self.options.only.is_none() {
                purge_at = Instant::now() + PURGE_EVERY;
                if purging.as_ref().is_none_or(JoinHandle::is_finished) {
                    purging = Some(tokio::spawn(purge(Arc::clone(&self.broker))));
                }
            }
        }
    }

    // -- intake

    fn takes_tasks(&self) -> bool {
        !self.paused && !self.lease_lost && !self.only_done && self.stop.stage() == Stage::Running
    }

    fn claim(&self) -> Option<Claiming> {
        let free = self.running.iter().filter(|slot| slot.is_none()).count() as u32;
        let max = if self.options.only.is_some() { free.min(1) } else { self.backlog.wants(free) };
        if max == 0 || (self.options.only.is_some() && !self.unsettled.is_empty()) {
            return None;
        }
        let request = ClaimRequest {
            owner: self.tid,
            caps: self.options.caps.clone(),
            queues: self.options.queues.clone(),
            only: self.options.only,
            max,
            wait: match self.options {
                Options { only: Some(_), .. } => LOOK,
                Options { idle_exit: Some(patience), .. } if patience.is_zero() => Duration::ZERO,
                _ => WAIT,
            },
        };
        let broker = Arc::clone(&self.broker);
        Some(Box::pin(async move { broker.claim(request).await }))
    }

    async fn claimed(&mut self, claims: Result<Vec<Claim>>) -> Result<()> {
        match claims {
            Ok(claims) if !claims.is_empty() => {
                let now = self.began.elapsed();
                self.backlog.push(claims, now);
            }
            Ok(_) => self.found_nothing().await?,
            Err(Error::NotFound(owner)) if owner == self.tid => self.lose_lease(),
            // The engine has tried for as long as it was told to. A worker that cannot be given tasks says so and ends.
            Err(error @ Error::Unreachable { .. }) => return Err(error),
            Err(error) if error.is_retryable() => {
                tracing::error!(%error, "no tasks can be claimed yet");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn found_nothing(&mut self) -> Result<()> {
        match self.options.only {
            Some(tid) => {
                let over = self.broker.task(tid).await?.is_none_or(|task| task.state.is_terminal());
                self.only_done |= over;
            }
            None => self.nothing_waits = true,
        }
        Ok(())
    }

    fn fill_slots(&mut self) {
        if self.stop.stage() != Stage::Running || self.lease_lost {
            return;
        }
        for (slot, running) in self.slots.iter().zip(&mut self.running).filter(|(_, running)| running.is_none()) {
            let Some(claim) = self.backlog.pop() else { break };
            *running = Some(Running {
                claim_fence: claim.fence,
                began: Instant::now(),
                give_back: false,
                paused: false,
                told: None,
            });
            self.spawned.fetch_add(1, Ordering::Relaxed);
            slot.run(claim);
        }
        self.ledger.set_busy(!self.backlog.is_empty());
    }

    // -- what slots and broker tell

    fn hear(&mut self, news: News) {
        let News { slot, fence, what } = news;
        match what {
            What::Started { pid } => self.ledger.write(Entry::Started(Started { fence, pid: Some(pid) })),
            What::Ended(finish) => {
                let Some(running) = self.running[slot].take() else { return };
                let obeyed = matches!(finish.report.exit, Exit::Cancelled | Exit::Killed);
                self.late.extend(running.told.filter(|_| !obeyed).map(|word| (fence.tid, word)));
                self.backlog.ran_for(running.began.elapsed());
                self.idle_since = Instant::now();
                self.nothing_waits = false;
                self.unsettled.insert(fence);
                // What was killed because the lease is lost was not killed on request: the task goes on elsewhere.
                if (running.give_back || self.lease_lost) && obeyed {
                    self.ledger
                        .write(Entry::Release(Release { fence, reason: "its worker was told to give it back".into() }));
                } else {
                    self.last = self.options.only.map(|_| (*finish).clone());
                    self.ledger.write(Entry::Finish(*finish));
                }
            }
        }
    }

    async fn settle(&mut self, settled: Settled) {
        let Settled { fence, verdict } = settled;
        self.unsettled.remove(&fence);
        // It may be one that waits again.
        self.nothing_waits = false;
        if let Verdict::Done(state) = verdict
            && self.options.only == Some(fence.tid)
        {
            self.only_done = true;
            self.outcome = self.last.take().map(|finish| Box::new(Outcome { state, finish }));
        }
        let (of_task, others) = std::mem::take(&mut self.late).into_iter().partition(|(tid, _)| *tid == fence.tid);
        self.late = others;
        if matches!(verdict, Verdict::Again(_)) {
            self.pass_on(of_task).await;
        }
    }

    fn end(&mut self) -> Option<End> {
        let idle_for = || self.options.idle_exit.is_some_and(|patience| self.idle_since.elapsed() >= patience);
        if !self.is_quiet() {
            return None;
        }
        // Its registration may have ended with its task: that is no loss.
        let reason = if self.only_done {
            EndReason::Done
        } else if self.lease_lost {
            return Some(End::LeaseLost);
        } else if self.stop.stage() != Stage::Running {
            EndReason::Stopped
        } else if self.options.idle_exit.is_some_and(|p| p.is_zero()) {
            // Zero means: when a look at the queue has found nothing since the last task.
            return self.nothing_waits.then_some(End::Left(EndReason::Idle, None));
        } else {
            return (!self.paused && idle_for()).then_some(End::Left(EndReason::Idle, None));
        };
        Some(End::Left(reason, self.outcome.take()))
    }

    /// Whether nothing runs, waits for a slot, or waits to be written.
    pub(super) fn is_quiet(&self) -> bool {
        self.running.iter().all(Option::is_none) && self.backlog.is_empty() && self.unsettled.is_empty()
    }

    // -- time and looks

    fn next_timer(&self, purge_at: Instant) -> Instant {
        let mut at = purge_at;
        if let Some(since) = self.backlog.oldest() {
            at = at.min(self.began + since + PATIENCE);
        }
        if let Some(deadline) = self.stop.deadline() {
            at = at.min(self.began + deadline);
        }
        if let Some(patience) = self.options.idle_exit.filter(|p| !p.is_zero() && self.is_quiet() && !self.paused) {
            at = at.min(self.idle_since + patience);
        }
        at
    }

    fn tick(&mut self) {
        let now = self.began.elapsed();
        for claim in self.backlog.overdue(now) {
            self.give_back(claim.fence, "it waited too long for a slot");
        }
        if let Some(stage) = self.stop.tick(now) {
            self.carry_out(stage);
        }
    }

    pub(super) fn status(&self) -> &'static str {
        match self.stop.stage() {
            Stage::Running if self.paused => "paused",
            Stage::Running if self.running.iter().all(Option::is_none) => "listening",
            Stage::Running => "running",
            Stage::Draining => "draining",
            Stage::Terminating | Stage::Killing => "stopping",
        }
    }

    /// Keeps the title and the registry true.
    fn show(&mut self) {
        let busy = self.running.iter().flatten().count() as u32;
        self.vitals.busy.store(busy, Ordering::Relaxed);
        self.vitals.spawned.store(self.spawned.load(Ordering::Relaxed), Ordering::Relaxed);
        self.vitals.set_status(match self.stop.stage() {
            Stage::Running if self.paused => WorkerStatus::Paused,
            Stage::Running => WorkerStatus::Active,
            _ => WorkerStatus::Draining,
        });
        let status = self.status();
        if self.title != status {
            self.title = status.into();
            raddle_exec::title::set(&title::format(self.tid, &self.options.name, status));
        }
    }
}
async fn purge(broker: Arc<dyn Broker>) {
    // One call removes a bounded number; the rest follows at once, so that the records of a burst go together.
    while let Ok(purged) = broker.purge().await {
        if purged.tasks == 0 {
            return;
        }
        tracing::debug!(tasks = purged.tasks, "removed expired records");
    }
}
