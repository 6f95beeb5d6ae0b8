//! The worker's loop: waits for what happens, asks [`WorkerCore`] what to do about it, and does it. Nothing is decided here, and nothing that takes
//! time is waited for between two events: a signal, a word or a lost lease is heard at once whatever the broker does.

use std::{
    collections::HashSet,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use raddle_broker::{
    AttemptId, Broker, ClaimRequest, CompletionOutcome, ControlDelivery, Result, TaskFilter,
};
use raddle_model::{ControlMessage, ExitStatus, TaskState, Tid, stop::StopStage, title};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

use super::{
    Shutdown, Worker, attempt_tracing,
    completion_batcher::{CompletionBatcher, GIVEN_UP},
    control_commands::CommandJobs,
    core::WorkerCore,
    event::{ClaimResult, LoopEnd, WorkerEffect, WorkerLoopEvent},
    host_pool::HostPool,
    shutdown_deadline::{LAST_TRY, ShutdownDeadline},
    slot::{Slot, SlotContext},
};

type PendingClaim = Pin<Box<dyn Future<Output = Result<ClaimResult>> + Send>>;

pub(super) struct WorkerService<'a> {
    core: WorkerCore,
    worker: &'a mut Worker,
    slots: Vec<Slot>,
    /// The hosts of each program.
    pools: Vec<HostPool>,
    ledger: CompletionBatcher,
    errands: CommandJobs,
    haste: ShutdownDeadline,
    /// From slots and the ledger: a few for each attempt, so the channel needs no bound.
    events: mpsc::UnboundedReceiver<WorkerLoopEvent>,
    claiming: Option<PendingClaim>,
    /// For what the service itself has asked.
    tell: mpsc::UnboundedSender<WorkerLoopEvent>,
    /// Why the last claim failed, if it may succeed later.
    claim_refusal: Option<String>,
    purging: Option<JoinHandle<()>>,
    auditing: Option<JoinHandle<()>>,
    /// Looks for what others have left in the engine.
    #[cfg(feature = "docker")]
    looking: Option<JoinHandle<()>>,
    asked: watch::Receiver<u32>,
    began: Instant,
    title: &'static str,
    /// Attempts that had to be killed in a stop.
    killed: u64,
}

/// How the loop ended.
pub(super) struct LoopClosed {
    pub(super) end: Result<LoopEnd>,
    /// The broker need not have heard of it.
    pub(super) is_hasty: bool,
    /// A task has come to its end here.
    pub(super) has_ended_task: bool,
    /// Attempts that had to be killed in a stop.
    pub(super) killed: u64,
}

impl<'a> WorkerService<'a> {
    pub(super) fn start(worker: &'a mut Worker, shutdown: &Shutdown) -> Self {
        let Worker {
            broker,
            options,
            line,
            claim,
            strangers,
            begun,
            born,
            ..
        } = worker;
        attempt_tracing::take(claim.as_slice());
        let context = Arc::new(SlotContext {
            broker: Arc::clone(broker),
            options: options.clone(),
            attempt_id: Arc::clone(&line.lease.attempt_id),
            idle_title: title::format(line.tid, "runner", "idle"),
            logged: Mutex::default(),
            strangers: Arc::clone(strangers),
        });
        let (tell, events) = mpsc::unbounded_channel();
        let slots = (0..options.slots())
            .map(|number| Slot::start(number, Arc::clone(&context), tell.clone()));
        let pools = options
            .hosts
            .iter()
            .map(|hosts| {
                let (hosts, context) = (Arc::clone(hosts), Arc::clone(&context));
                HostPool::start(hosts, context, line.tid, tell.clone())
            })
            .collect();
        let haste = ShutdownDeadline::new();
        let core = WorkerCore::new(
            line.tid,
            options.clone(),
            born.elapsed(),
            *begun.borrow(),
            claim.take(),
        );
        Self {
            slots: slots.collect(),
            pools,
            core,
            ledger: CompletionBatcher::start(Arc::clone(broker), tell.clone(), haste.pace()),
            errands: CommandJobs::start(Arc::clone(broker), haste.pace()),
            haste,
            events,
            claiming: None,
            tell,
            claim_refusal: None,
            purging: None,
            auditing: None,
            #[cfg(feature = "docker")]
            // The spawner of a warm worker looks once for all its workers.
            looking: options.task_image.clone().filter(|_| !options.grouped).map(|image| {
                tokio::spawn(async move { crate::contained::look_around(&image).await })
            }),
            asked: shutdown.watch(),
            began: Instant::now(),
            title: "",
            killed: 0,
            worker,
        }
    }

    /// Works to the end.
    pub(super) async fn run(mut self) -> LoopClosed {
        let asked = *self.asked.borrow_and_update();
        let mut event = WorkerLoopEvent::Asked(asked);
        let end = loop {
            if let Some(end) = self.carry_out(event) {
                break end;
            }
            self.show();
            event = self.next().await;
        };
        let is_hasty = self.haste.pace().is_hasty();
        let (has_ended_task, killed) = (self.core.has_ended_task(), self.killed);
        self.close(is_hasty).await;
        LoopClosed {
            end,
            is_hasty,
            has_ended_task,
            killed,
        }
    }

    async fn next(&mut self) -> WorkerLoopEvent {
        loop {
            let time = self.core.wake_at().map(|at| self.began + at);
            let line = &mut self.worker.line;
            tokio::select! {
                found = async { self.claiming.as_mut().expect("polled only when there is one").await }, if self.claiming.is_some() => {
                    self.claiming = None;
                    let refusal = found.as_ref().err().filter(|error| error.is_retryable()).map(ToString::to_string);
                    // Once, and not with every try.
                    if let Some(error) = refusal.as_ref().filter(|_| refusal != self.claim_refusal) {
                        tracing::error!(%error, "no tasks can be claimed");
                    }
                    self.claim_refusal = refusal;
                    return WorkerLoopEvent::Claimed(found);
                }
                Some(event) = self.events.recv() => return event,
                Some(ControlDelivery { tid, body }) = line.words.recv() => match body.parse::<ControlMessage>() {
                    Ok(message) => return WorkerLoopEvent::Told { tid, message },
                    Err(error) => tracing::warn!(%tid, %error, "a control message was passed over"),
                },
                Ok(()) = self.asked.changed() => return WorkerLoopEvent::Asked(*self.asked.borrow_and_update()),
                () = line.pulse.lost() => return WorkerLoopEvent::LeaseLost,
                () = async { sleep_until(time.expect("polled only when there is one")).await }, if time.is_some() => {
                    return WorkerLoopEvent::Time;
                }
            }
        }
    }

    fn carry_out(&mut self, event: WorkerLoopEvent) -> Option<Result<LoopEnd>> {
        let now = self.began.elapsed();
        note(&event);
        if let WorkerLoopEvent::Ended {
            finish,
            killed: true,
            ..
        } = &event
            && self.core.stop.stage() >= StopStage::Terminating
        {
            self.killed += 1;
            attempt_tracing::log!(
                error,
                finish.attempt_id,
                "a task did not end when its worker stopped, and was killed (SIGKILL)"
            );
        }
        for effect in self.core.on(event, now) {
            match effect {
                WorkerEffect::Claim { max, wait, without } => {
                    self.claiming = Some(self.claim(max, wait, &without));
                }
                // Dropping a claim that waits is safe: what it had taken goes back.
                WorkerEffect::Unclaim => self.claiming = None,
                WorkerEffect::Run { slot, claim } => {
                    attempt_tracing::log!(
                        info,
                        claim.attempt_id,
                        name = claim.spec.display_name(),
                        "an attempt begins"
                    );
                    self.worker.begun.send_modify(|begun| *begun += 1);
                    match self.core.classes.pool_of(slot) {
                        Some(pool) => self.pools[pool].run(slot, claim),
                        None => self.slots[slot].run(claim),
                    }
                }
                WorkerEffect::Order { slot, order } => match self.core.classes.pool_of(slot) {
                    Some(pool) => self.pools[pool].order(slot, order),
                    None => self.slots[slot].order(order),
                },
                WorkerEffect::Write(entry) => self.ledger.write(entry),
                WorkerEffect::Errand(errand) => self.errands.run(errand),
                WorkerEffect::Forsake(attempt_id) => {
                    attempt_tracing::log!(warn, attempt_id, "a task was lost with the lease");
                    attempt_tracing::leave(attempt_id.tid);
                }
                WorkerEffect::Haste => self.haste.begin(),
                WorkerEffect::Purge => self.purge(),
                WorkerEffect::Audit { held } => self.audit(held),
                WorkerEffect::Warn {
                    attempt_id,
                    message,
                } => attempt_tracing::log!(warn, attempt_id, "{message}"),
                WorkerEffect::End(end) => return Some(end),
            }
        }
        None
    }

    fn claim(&self, max: u32, wait: Duration, without: &[String]) -> PendingClaim {
        let Worker {
            broker,
            options,
            line,
            ..
        } = &*self.worker;
        let request = ClaimRequest {
            owner: line.tid,
            caps: if without.is_empty() {
                options.caps.clone()
            } else {
                options.caps.without(without)
            },
            queues: options.queues.clone(),
            only: options.only,
            max,
            wait,
        };
        let broker = Arc::clone(broker);
        Box::pin(async move {
            let only = request.only;
            let claims = broker.claim(request).await?;
            if !claims.is_empty() {
                return Ok(ClaimResult::Tasks(claims));
            }
            let Some(tid) = only else {
                return Ok(ClaimResult::Nothing);
            };
            let is_over = broker
                .task(tid)
                .await?
                .is_none_or(|task| task.state.is_terminal());
            Ok(if is_over {
                ClaimResult::Over
            } else {
                ClaimResult::Nothing
            })
        })
    }

    fn purge(&mut self) {
        if self.purging.as_ref().is_none_or(JoinHandle::is_finished) {
            let broker = Arc::clone(&self.worker.broker);
            self.purging = Some(tokio::spawn(async move { purge(&*broker).await }));
        }
    }

    /// Asks the broker which attempts it assigns to this worker. One question at a time: a server that is away answers all of them when it is back.
    fn audit(&mut self, held: Vec<AttemptId>) {
        if self.auditing.as_ref().is_none_or(JoinHandle::is_finished) {
            let (broker, worker, tell) = (
                Arc::clone(&self.worker.broker),
                self.worker.line.tid,
                self.tell.clone(),
            );
            self.auditing = Some(tokio::spawn(async move {
                match assigned_to(&*broker, worker).await {
                    Ok(assigned) => _ = tell.send(WorkerLoopEvent::Audited { held, assigned }),
                    Err(error) => {
                        tracing::debug!(%error, "the broker could not be asked what it assigns to this worker")
                    }
                }
            }));
        }
    }

    /// Keeps the title and the registry true, and the ledger informed.
    fn show(&mut self) {
        self.ledger.set_busy(self.core.has_more());
        let Worker {
            options,
            line,
            begun,
            ..
        } = &*self.worker;
        line.vitals.busy.store(self.core.busy(), Ordering::Relaxed);
        line.vitals
            .spawned
            .store(*begun.borrow(), Ordering::Relaxed);
        line.vitals.set_status(self.core.registered_status());
        let status = self.core.status();
        if self.title != status {
            self.title = status;
            raddle_runner::title::set(&title::format(line.tid, &options.name, status));
        }
    }

    async fn close(self, is_hasty: bool) {
        self.worker.line.close();
        for asking in [self.purging, self.auditing].into_iter().flatten() {
            asking.abort();
        }
        #[cfg(feature = "docker")]
        if let Some(looking) = self.looking {
            looking.abort();
        }
        for attempt_id in self.core.open() {
            attempt_tracing::log!(
                error,
                attempt_id,
                reason = "there was no time left",
                "{GIVEN_UP}"
            );
        }
        let Self {
            slots,
            pools,
            ledger,
            errands,
            ..
        } = self;
        let close = async {
            for pool in pools {
                pool.close().await;
            }
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

/// Keeps the log's knowledge of what is in hand true.
fn note(event: &WorkerLoopEvent) {
    match event {
        WorkerLoopEvent::Claimed(Ok(ClaimResult::Tasks(claims))) => attempt_tracing::take(claims),
        WorkerLoopEvent::Ended { finish, .. } => {
            if let ExitStatus::ResourceExhausted { message } = &finish.report.exit {
                tracing::error!(tid = %finish.attempt_id.tid, reason = message, "a task is given back, for it cannot be started");
            }
        }
        WorkerLoopEvent::Settled {
            attempt_id,
            outcome,
        } => {
            match outcome {
                Some(CompletionOutcome::Done(state)) => {
                    attempt_tracing::log!(info, *attempt_id, %state, "a task is over")
                }
                Some(CompletionOutcome::Again(at)) => {
                    attempt_tracing::log!(info, *attempt_id, %at, "an attempt is over, and another follows")
                }
                // Said by who has written it, or could not.
                Some(CompletionOutcome::Stale) | None => {}
            }
            attempt_tracing::leave(attempt_id.tid);
        }
        _ => {}
    }
}

/// The attempts that the broker assigns to a worker.
async fn assigned_to(broker: &dyn Broker, worker: Tid) -> Result<HashSet<AttemptId>> {
    let states = vec![TaskState::Spawning, TaskState::Running];
    let tasks = broker
        .tasks(TaskFilter {
            states,
            worker: Some(worker),
            ..TaskFilter::default()
        })
        .await?;
    Ok(tasks
        .iter()
        .map(|task| AttemptId {
            tid: task.tid,
            attempt: task.attempt,
            owner: worker,
        })
        .collect())
}

pub(super) async fn purge(broker: &dyn Broker) {
    // One call removes a bounded number; the rest follows at once, so that the records of a burst go together.
    while let Ok(purged) = broker.purge().await {
        if purged == 0 {
            return;
        }
        tracing::debug!(tasks = purged, "removed expired records");
    }
}
