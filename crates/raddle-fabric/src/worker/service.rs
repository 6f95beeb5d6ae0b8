//! The worker's loop: waits for what happens, asks [`Core`] what to do about it, and does it. Nothing is decided here, and nothing that takes
//! time is waited for between two events: a signal, a word or a lost lease is heard at once whatever the broker does.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use raddle_broker::{Broker, ClaimRequest, Delivery, Error, Result, Started};
use raddle_core::{Control, Tid, title};
use raddle_exec::{FencePage, Prefork};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

use super::{
    Options, Shutdown, Worker,
    core::{Core, Policy},
    event::{Effect, End, Event, Found},
    ledger::{GIVEN_UP, Ledger},
    pace::{Haste, LAST_TRY},
    pulse::{Pulse, Vitals},
    slot::{Equipment, News, Slot, What},
    standstill::Present,
    words::{Errands, listen},
};

type Claiming = Pin<Box<dyn Future<Output = Result<Found>> + Send>>;

pub(super) struct Service {
    core: Core,
    broker: Arc<dyn Broker>,
    options: Options,
    tid: Tid,
    slots: Vec<Slot>,
    ledger: Ledger,
    errands: Errands,
    haste: Haste,
    /// From slots: at most two for each attempt, so there are few.
    news: mpsc::UnboundedReceiver<News>,
    /// From the ledger.
    written: mpsc::UnboundedReceiver<Event>,
    /// From the listener, as fast as one connection to the broker brings them.
    words: mpsc::UnboundedReceiver<Delivery>,
    listener: JoinHandle<()>,
    claiming: Option<Claiming>,
    purging: Option<JoinHandle<()>>,
    pulse: Pulse,
    vitals: Arc<Vitals>,
    begun: watch::Sender<u64>,
    asked: watch::Receiver<u32>,
    lease_lost: bool,
    began: Instant,
    title: &'static str,
}

impl Service {
    pub(super) fn start(worker: &mut Worker, shutdown: &Shutdown) -> Result<Self> {
        let Worker { broker, options, tid, leased_at, claim, strangers, begun, born, standstill, .. } = worker;
        let page = || Error::Io { path: "the lease page".into(), reason: "the system gives no shared memory".into() };
        let fence = match options.prefork.as_ref().and_then(Prefork::fence) {
            Some(fence) => fence,
            None => Arc::new(FencePage::new().map_err(|_| page())?),
        };
        let vitals = Arc::new(Vitals::default());
        let heart = broker.heart(*tid, options.lease);
        standstill.enter(Present {
            broker: Arc::clone(broker),
            tid: *tid,
            lease: options.lease,
            fence: Arc::clone(&fence),
            vitals: Arc::clone(&vitals),
        });
        let pulse = Pulse::new(heart, options.lease, *leased_at, Arc::clone(&fence), Arc::clone(&vitals));
        let equipment = Arc::new(Equipment {
            broker: Arc::clone(broker),
            fence,
            runner: options.runner.clone(),
            prefork: options.prefork.clone(),
            one_shot: options.only.is_some() || options.max_tasks == Some(1),
            syncs: options.only.is_some(),
            idle_title: title::format(*tid, "runner", "idle"),
            grace: options.grace,
            env: options.env.clone(),
            caps: options.caps.clone(),
            plugins: Arc::clone(&options.plugins),
            said: Mutex::default(),
            strangers: Arc::clone(strangers),
        });
        let policy = Policy::new(*tid, options, born.elapsed(), *begun.borrow());
        let (tell, news) = mpsc::unbounded_channel();
        let slots = (0..policy.slots as usize).map(|number| Slot::start(number, Arc::clone(&equipment), tell.clone()));
        let (write, written) = mpsc::unbounded_channel();
        let (say, words) = mpsc::unbounded_channel();
        let haste = Haste::new();
        Ok(Self {
            core: Core::new(policy, claim.take().into_iter().collect()),
            slots: slots.collect(),
            ledger: Ledger::start(Arc::clone(broker), write, haste.pace()),
            errands: Errands::start(Arc::clone(broker), haste.pace()),
            haste,
            news,
            written,
            words,
            listener: tokio::spawn(listen(Arc::clone(broker), *tid, say)),
            claiming: None,
            purging: None,
            pulse,
            vitals,
            begun: begun.clone(),
            asked: shutdown.watch(),
            lease_lost: false,
            began: Instant::now(),
            title: "",
            broker: Arc::clone(broker),
            options: options.clone(),
            tid: *tid,
        })
    }

    /// Works to the end. Also says whether that was a hasty one, of which the broker need not have heard.
    pub(super) async fn run(mut self) -> (Result<End>, bool) {
        let asked = *self.asked.borrow_and_update();
        let mut event = Event::Asked(asked);
        let end = loop {
            if let Some(end) = self.carry_out(event) {
                break end;
            }
            self.show();
            event = self.next().await;
        };
        let is_hasty = self.haste.pace().is_hasty();
        self.close(is_hasty).await;
        (end, is_hasty)
    }

    async fn next(&mut self) -> Event {
        loop {
            let time = self.core.wake_at().map(|at| self.began + at);
            tokio::select! {
                found = async { self.claiming.as_mut().expect("polled only when there is one").await }, if self.claiming.is_some() => {
                    self.claiming = None;
                    if let Err(error) = &found
                        && error.is_retryable()
                    {
                        tracing::error!(%error, "no tasks can be claimed");
                    }
                    return Event::Claimed(found);
                }
                Some(News { slot, fence, what }) = self.news.recv() => return match what {
                    What::Started { pid } => Event::Started(Started { fence, pid: Some(pid) }),
                    What::Ended(finish) => Event::Ended { slot, finish },
                },
                Some(event) = self.written.recv() => return event,
                Some(Delivery { tid, body }) = self.words.recv() => match body.parse::<Control>() {
                    Ok(message) => return Event::Told { tid, message },
                    Err(error) => tracing::warn!(%tid, %error, "a control message was passed over"),
                },
                Ok(()) = self.asked.changed() => return Event::Asked(*self.asked.borrow_and_update()),
                () = self.pulse.lost(), if !self.lease_lost => {
                    self.lease_lost = true;
                    return Event::LeaseLost;
                }
                () = async { sleep_until(time.expect("polled only when there is one")).await }, if time.is_some() => {
                    return Event::Time;
                }
            }
        }
    }

    fn carry_out(&mut self, event: Event) -> Option<Result<End>> {
        let now = self.began.elapsed();
        for effect in self.core.on(event, now) {
            match effect {
                Effect::Claim { max, wait } => self.claiming = Some(self.claim(max, wait)),
                // Dropping a claim that waits is safe: what it had taken goes back.
                Effect::Unclaim => self.claiming = None,
                Effect::Run { slot, claim } => {
                    self.begun.send_modify(|begun| *begun += 1);
                    self.slots[slot].run(claim);
                }
                Effect::Order { slot, order } => self.slots[slot].order(order),
                Effect::Write(entry) => self.ledger.write(entry),
                Effect::Errand(errand) => self.errands.run(errand),
                Effect::Forsake(fence) => tracing::debug!(tid = %fence.tid, "a task was lost with the lease"),
                Effect::Haste => self.haste.begin(),
                Effect::Purge => self.purge(),
                Effect::End(end) => return Some(end),
            }
        }
        None
    }

    fn claim(&self, max: u32, wait: Duration) -> Claiming {
        let request = ClaimRequest {
            owner: self.tid,
            caps: self.options.caps.clone(),
            queues: self.options.queues.clone(),
            only: self.options.only,
            max,
            wait,
        };
        let broker = Arc::clone(&self.broker);
        Box::pin(async move {
            let only = request.only;
            let claims = broker.claim(request).await?;
            if !claims.is_empty() {
                return Ok(Found::Tasks(claims));
            }
            let Some(tid) = only else { return Ok(Found::Nothing) };
            let is_over = broker.task(tid).await?.is_none_or(|task| task.state.is_terminal());
            Ok(if is_over { Found::Over } else { Found::Nothing })
        })
    }

    fn purge(&mut self) {
        if self.purging.as_ref().is_none_or(JoinHandle::is_finished) {
            self.purging = Some(tokio::spawn(purge(Arc::clone(&self.broker))));
        }
    }

    /// Keeps the title and the registry true, and the ledger informed.
    fn show(&mut self) {
        self.ledger.set_busy(self.core.has_more());
        self.vitals.busy.store(self.core.busy(), Ordering::Relaxed);
        self.vitals.spawned.store(*self.begun.borrow(), Ordering::Relaxed);
        self.vitals.set_status(self.core.registered_status());
        let status = self.core.status();
        if self.title != status {
            self.title = status;
            raddle_exec::title::set(&title::format(self.tid, &self.options.name, status));
        }
    }

    async fn close(self, is_hasty: bool) {
        self.listener.abort();
        if let Some(purging) = self.purging {
            purging.abort();
        }
        for fence in self.core.open() {
            tracing::error!(tid = %fence.tid, attempt = fence.attempt, reason = "there was no time left", "{GIVEN_UP}");
        }
        let Self { slots, ledger, errands, .. } = self;
        let close = async {
            for slot in slots {
                slot.close().await;
            }
            ledger.close().await;
            errands.close().await;
        };
        if is_hasty {
            // What is still there then ends with this process.
            let _ = timeout(3 * LAST_TRY, close).await;
        } else {
            close.await;
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
