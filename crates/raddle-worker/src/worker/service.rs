//! `WorkerService`: the worker's loop. It waits for events, passes them to [`WorkerCore`] and
//! carries out the effects. It decides nothing, and awaits nothing slow between two events:
//! signals, commands and a lost lease are handled at once, even if the broker hangs.

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
use raddle_model::{
    ControlMessage, ExitStatus, TaskState, Tid, stop::StopStage, title, worker::WorkerStatus,
};
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
    shutdown_deadline::{LAST_TRY_TIMEOUT, ShutdownDeadline},
    slot::{Slot, SlotContext},
};

type PendingClaim = Pin<Box<dyn Future<Output = Result<ClaimResult>> + Send>>;

pub(super) struct WorkerService<'a> {
    core: WorkerCore,
    worker: &'a mut Worker,
    slots: Vec<Slot>,
    /// The hosts of each program.
    pools: Vec<HostPool>,
    batcher: CompletionBatcher,
    jobs: CommandJobs,
    deadline: ShutdownDeadline,
    /// From slots and the `CompletionBatcher`: a few events for each attempt, so the channel needs
    /// no bound.
    events: mpsc::UnboundedReceiver<WorkerLoopEvent>,
    claiming: Option<PendingClaim>,
    /// For events that the service itself produces.
    events_tx: mpsc::UnboundedSender<WorkerLoopEvent>,
    /// The last retryable claim error, to log each only once.
    last_claim_error: Option<String>,
    purging: Option<JoinHandle<()>>,
    auditing: Option<JoinHandle<()>>,
    /// Searches for containers that dead workers have left in the Docker engine.
    #[cfg(feature = "docker")]
    container_search: Option<JoinHandle<()>>,
    stop_requests: watch::Receiver<u32>,
    began: Instant,
    title: &'static str,
    /// Attempts that were killed during a stop.
    killed: u64,
}

/// How the loop ended.
pub(super) struct LoopClosed {
    pub(super) end: Result<LoopEnd>,
    /// The shutdown deadline has passed, so the broker may not know of the end.
    pub(super) deadline_passed: bool,
    /// At least one task was finished by this worker.
    pub(super) has_finished_task: bool,
    /// Attempts that were killed during a stop.
    pub(super) killed: u64,
}

impl<'a> WorkerService<'a> {
    pub(super) fn start(worker: &'a mut Worker, shutdown: &Shutdown) -> Self {
        let Worker {
            broker,
            options,
            registration,
            claim,
            preexisting_children,
            attempts_started,
            created_at,
            ..
        } = worker;
        attempt_tracing::remember_traces(claim.as_slice());
        let context = Arc::new(SlotContext {
            broker: Arc::clone(broker),
            options: options.clone(),
            attempt_id: Arc::clone(&registration.lease.deadline),
            idle_title: title::format(registration.tid, "runner", "idle"),
            logged: Mutex::default(),
            preexisting_children: Arc::clone(preexisting_children),
        });
        let (events_tx, events) = mpsc::unbounded_channel();
        let slots = (0..options.slots())
            .map(|number| Slot::start(number, Arc::clone(&context), events_tx.clone()));
        let pools = options
            .hosts
            .iter()
            .map(|hosts| {
                let (hosts, context) = (Arc::clone(hosts), Arc::clone(&context));
                HostPool::start(hosts, context, registration.tid, events_tx.clone())
            })
            .collect();
        let deadline = ShutdownDeadline::new();
        let core = WorkerCore::new(
            registration.tid,
            options.clone(),
            created_at.elapsed(),
            *attempts_started.borrow(),
            claim.take(),
        );
        Self {
            slots: slots.collect(),
            pools,
            core,
            batcher: CompletionBatcher::start(Arc::clone(broker), events_tx.clone(), deadline.watch()),
            jobs: CommandJobs::start(Arc::clone(broker), deadline.watch()),
            deadline,
            events,
            claiming: None,
            events_tx,
            last_claim_error: None,
            purging: None,
            auditing: None,
            #[cfg(feature = "docker")]
            // A spawner searches once for all its warm workers.
            container_search: options.task_image.clone().filter(|_| !options.in_cgroup).map(|image| {
                tokio::spawn(async move { raddle_container::task::prepare_engine(&image).await })
            }),
            stop_requests: shutdown.subscribe(),
            began: Instant::now(),
            title: "",
            killed: 0,
            worker,
        }
    }

    /// Runs until the core ends the loop.
    pub(super) async fn run(mut self) -> LoopClosed {
        let requests = *self.stop_requests.borrow_and_update();
        let mut event = WorkerLoopEvent::StopRequested(requests);
        let end = loop {
            if let Some(end) = self.handle_event(event) {
                break end;
            }
            self.publish_status();
            event = self.next_event().await;
        };
        let deadline_passed = self.deadline.watch().has_passed();
        let (has_finished_task, killed) = (self.core.has_finished_task(), self.killed);
        self.close(deadline_passed).await;
        LoopClosed {
            end,
            deadline_passed,
            has_finished_task,
            killed,
        }
    }

    async fn next_event(&mut self) -> WorkerLoopEvent {
        loop {
            let time = self.core.wake_at().map(|at| self.began + at);
            let registration = &mut self.worker.registration;
            tokio::select! {
                found = async { self.claiming.as_mut().expect("polled only when there is one").await }, if self.claiming.is_some() => {
                    self.claiming = None;
                    let error_text = found.as_ref().err().filter(|error| error.is_retryable()).map(ToString::to_string);
                    // Log each error once, not at every retry.
                    if let Some(error) = error_text.as_ref().filter(|_| error_text != self.last_claim_error) {
                        tracing::error!(%error, "tasks cannot be claimed: retrying");
                    }
                    self.last_claim_error = error_text;
                    return WorkerLoopEvent::Claimed(found);
                }
                Some(event) = self.events.recv() => return event,
                Some(ControlDelivery { tid, body }) = registration.commands.recv() => match body.parse::<ControlMessage>() {
                    Ok(message) => return WorkerLoopEvent::Command { tid, message },
                    Err(error) => tracing::warn!(%tid, %error, "skipped a malformed control command"),
                },
                Ok(()) = self.stop_requests.changed() => return WorkerLoopEvent::StopRequested(*self.stop_requests.borrow_and_update()),
                () = registration.renewer.lost() => return WorkerLoopEvent::LeaseLost,
                () = async { sleep_until(time.expect("polled only when there is one")).await }, if time.is_some() => {
                    return WorkerLoopEvent::TimerFired;
                }
            }
        }
    }

    fn handle_event(&mut self, event: WorkerLoopEvent) -> Option<Result<LoopEnd>> {
        let now = self.began.elapsed();
        log_event(&event);
        if let WorkerLoopEvent::AttemptEnded {
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
        for effect in self.core.handle_event(event, now) {
            match effect {
                WorkerEffect::Claim { max, wait, without } => {
                    self.claiming = Some(self.claim(max, wait, &without));
                }
                // Safe to drop: the broker releases what the claim had taken.
                WorkerEffect::CancelClaim => self.claiming = None,
                WorkerEffect::Run { slot, task } => {
                    attempt_tracing::log!(
                        info,
                        task.attempt_id,
                        name = task.spec.display_name(),
                        "an attempt begins"
                    );
                    self.worker
                        .attempts_started
                        .send_modify(|attempts_started| *attempts_started += 1);
                    match self.core.classes.pool_of(slot) {
                        Some(pool) => self.pools[pool].run(slot, task),
                        None => self.slots[slot].run(task),
                    }
                }
                WorkerEffect::SendCommand { slot, command } => {
                    match self.core.classes.pool_of(slot) {
                        Some(pool) => self.pools[pool].order(slot, command),
                        None => self.slots[slot].send(command),
                    }
                }
                WorkerEffect::Write(entry) => self.batcher.write(entry),
                WorkerEffect::RunJob(job) => self.jobs.push(job),
                WorkerEffect::Abandon(attempt_id) => {
                    attempt_tracing::log!(
                        warn,
                        attempt_id,
                        "dropped a task that was claimed under a lost lease"
                    );
                    attempt_tracing::forget_trace(attempt_id.tid);
                }
                WorkerEffect::StartDeadline => self.deadline.pass(),
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
            registration,
            ..
        } = &*self.worker;
        let request = ClaimRequest {
            owner: registration.tid,
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
                return Ok(ClaimResult::Empty);
            };
            let is_over = broker
                .task(tid)
                .await?
                .is_none_or(|task| task.state.is_terminal());
            Ok(if is_over {
                ClaimResult::TaskFinished
            } else {
                ClaimResult::Empty
            })
        })
    }

    fn purge(&mut self) {
        if self.purging.as_ref().is_none_or(JoinHandle::is_finished) {
            let broker = Arc::clone(&self.worker.broker);
            self.purging = Some(tokio::spawn(async move { purge(&*broker).await }));
        }
    }

    /// Queries which attempts the broker assigns to this worker. One query at a time: a server that
    /// was away would answer all of them at once.
    fn audit(&mut self, held: Vec<AttemptId>) {
        if self.auditing.as_ref().is_none_or(JoinHandle::is_finished) {
            let (broker, worker, events_tx) = (
                Arc::clone(&self.worker.broker),
                self.worker.registration.tid,
                self.events_tx.clone(),
            );
            self.auditing = Some(tokio::spawn(async move {
                match assigned_to(&*broker, worker).await {
                    Ok(assigned) => _ = events_tx.send(WorkerLoopEvent::Audited { held, assigned }),
                    Err(error) => {
                        tracing::debug!(%error, "the broker could not be queried for an audit")
                    }
                }
            }));
        }
    }

    /// Updates the process title, the registration and the `CompletionBatcher`.
    fn publish_status(&mut self) {
        self.batcher.set_more_expected(self.core.has_backlog());
        let Worker {
            options,
            registration,
            attempts_started,
            ..
        } = &*self.worker;
        registration
            .stats
            .busy
            .store(self.core.busy(), Ordering::Relaxed);
        registration
            .stats
            .spawned
            .store(*attempts_started.borrow(), Ordering::Relaxed);
        let status = match self.core.registered_status() {
            WorkerStatus::Active if self.pools.iter().any(HostPool::is_failing) => {
                WorkerStatus::BackingOff
            }
            status => status,
        };
        registration.stats.set_status(status);
        let status = self.core.status();
        if self.title != status {
            self.title = status;
            raddle_runner::title::set(&title::format(registration.tid, &options.name, status));
        }
    }

    async fn close(self, deadline_passed: bool) {
        self.worker.registration.close();
        for query in [self.purging, self.auditing].into_iter().flatten() {
            query.abort();
        }
        #[cfg(feature = "docker")]
        if let Some(container_search) = self.container_search {
            container_search.abort();
        }
        for attempt_id in self.core.open_attempts() {
            attempt_tracing::log!(
                error,
                attempt_id,
                reason = "the shutdown deadline has passed",
                "{GIVEN_UP}"
            );
        }
        let Self {
            slots,
            pools,
            batcher,
            jobs,
            ..
        } = self;
        let close = async {
            for pool in pools {
                pool.close().await;
            }
            for slot in slots {
                slot.close().await;
            }
            batcher.close().await;
            jobs.close().await;
        };
        if deadline_passed {
            // Anything left ends with this process.
            let _ = timeout(3 * LAST_TRY_TIMEOUT, close).await;
        } else {
            close.await;
        }
    }
}

/// Logs an event, and keeps the map of trace ids up to date.
fn log_event(event: &WorkerLoopEvent) {
    match event {
        WorkerLoopEvent::Claimed(Ok(ClaimResult::Tasks(claims))) => {
            attempt_tracing::remember_traces(claims)
        }
        WorkerLoopEvent::AttemptEnded { finish, .. } => {
            if let ExitStatus::ResourceExhausted { message } = &finish.report.exit {
                tracing::error!(tid = %finish.attempt_id.tid, reason = message, "releasing a task that cannot be started");
            }
        }
        WorkerLoopEvent::Recorded {
            attempt_id,
            outcome,
        } => {
            match outcome {
                Some(CompletionOutcome::Finished(state)) => {
                    attempt_tracing::log!(info, *attempt_id, %state, "a task is finished")
                }
                Some(CompletionOutcome::Retry(at)) => {
                    attempt_tracing::log!(info, *attempt_id, %at, "an attempt is over, and another follows")
                }
                // Logged by `CompletionBatcher`.
                Some(CompletionOutcome::Stale) | None => {}
            }
            attempt_tracing::forget_trace(attempt_id.tid);
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
    // One call removes a limited number of records. Repeat until none is left.
    while let Ok(purged) = broker.purge().await {
        if purged == 0 {
            return;
        }
        tracing::debug!(tasks = purged, "removed expired records");
    }
}
