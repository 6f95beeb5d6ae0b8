//! A slot: one runner, and the attempt that runs in it.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use raddle_broker::{AttemptId, AttemptStarted, Broker, Completion, LeasedTask};
use raddle_model::{AttemptReport, ExitStatus, Target};
use raddle_runner::{
    ExecRequest, ExecResult, ExecTarget, LeaseDeadlinePage, Runner, RunnerCommand, RunnerEvent,
    RunnerLost, RunnerOptions,
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use super::{
    Options,
    attempt_reply::{AttemptReply, ReplyUpdate},
    attempt_tracing,
    chaining::{pass_on, pass_on_at_last},
    event::WorkerLoopEvent,
    exec_request,
    options::secret_variables,
    output_forwarding::{RunnerCommands, store},
};
use crate::{contained, orphan_processes};

/// What every slot of a worker needs.
pub(super) struct SlotContext {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) options: Options,
    pub(super) attempt_id: Arc<LeaseDeadlinePage>,
    pub(super) idle_title: String,
    /// The reasons for returning tasks that were logged.
    pub(super) logged: Mutex<HashSet<String>>,
    /// The children that this process had before it was a worker: they have nothing to do with tasks.
    pub(super) strangers: Arc<[u32]>,
}

/// How often at most the progress of an attempt is written.
const REPORT_EVERY: Duration = Duration::from_millis(200);
/// How many characters of the last line of standard error are in the log.
const LAST_LINE: usize = 200;
/// How many different reasons for returning tasks are logged.
const REASONS: usize = 1000;

impl SlotContext {
    /// Logs why tasks are returned, each reason once: such tasks come again and again.
    pub(super) fn log_return(&self, reason: &str) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() < REASONS && logged.insert(reason.to_owned()) {
            tracing::warn!("tasks are given back: {reason}");
        }
    }
}

/// The worker's end of a slot.
pub(super) struct Slot {
    jobs: mpsc::UnboundedSender<SlotCommand>,
    task: JoinHandle<()>,
}

/// What a slot can be told. At most one claim and a few orders are ever under way, so the channel needs no bound.
pub(super) enum SlotCommand {
    Run(Box<LeasedTask>),
    Order(RunnerCommand),
}

impl Slot {
    pub(super) fn start(
        number: usize,
        context: Arc<SlotContext>,
        events: mpsc::UnboundedSender<WorkerLoopEvent>,
    ) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        let task = tokio::spawn(
            SlotTask {
                number,
                context,
                events,
                runner: None,
                killed: false,
                #[cfg(feature = "docker")]
                sweeping: None,
            }
            .run(queue),
        );
        Self { jobs, task }
    }

    /// Runs an attempt. The slot must be free.
    pub(super) fn run(&self, claim: Box<LeasedTask>) {
        let _ = self.jobs.send(SlotCommand::Run(claim));
    }

    /// Passes on an order about what runs; ignored when nothing does.
    pub(super) fn order(&self, order: RunnerCommand) {
        let _ = self.jobs.send(SlotCommand::Order(order));
    }

    /// Ends the slot and its runner.
    pub(super) async fn close(self) {
        drop(self.jobs);
        let _ = self.task.await;
    }
}

struct SlotTask {
    number: usize,
    context: Arc<SlotContext>,
    events: mpsc::UnboundedSender<WorkerLoopEvent>,
    /// Started with the first task and kept for the next.
    runner: Option<Runner>,
    /// Whether the runner killed the last attempt.
    killed: bool,
    /// Looking for what a leash that was killed has left. It is waited for.
    #[cfg(feature = "docker")]
    sweeping: Option<JoinHandle<()>>,
}

impl SlotTask {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<SlotCommand>) {
        if self.context.options.is_for_one() {
            // Start the runner ahead of the task: a warm worker has its start-up behind it. If that fails, the task tries again.
            self.runner = self.ready_runner().await.ok();
        }
        while let Some(job) = queue.recv().await {
            // An order that finds nothing running has crossed the end of its task.
            let SlotCommand::Run(claim) = job else {
                continue;
            };
            let (of_queue, name) = (
                claim.spec.queue.clone(),
                claim.spec.display_name().to_owned(),
            );
            let finish = Box::new(self.attempt(*claim, &mut queue).await);
            if self.context.options.only.is_none() {
                log_failure(&of_queue, &name, &finish);
            }
            let killed = std::mem::take(&mut self.killed);
            self.tell(WorkerLoopEvent::Ended {
                slot: self.number,
                finish,
                killed,
            });
        }
        if let Some(runner) = self.runner {
            runner.close().await;
        }
        #[cfg(feature = "docker")]
        if let Some(sweeping) = self.sweeping {
            let _ = sweeping.await;
        }
    }

    async fn attempt(
        &mut self,
        claim: LeasedTask,
        queue: &mut mpsc::UnboundedReceiver<SlotCommand>,
    ) -> Completion {
        let LeasedTask {
            attempt_id,
            ref spec,
            ..
        } = claim;
        orphan_processes::of_earlier_attempts(&*self.context.broker, attempt_id).await;
        // What it chains is of its trace, unless that says otherwise. Commands do not answer.
        let trace = (!matches!(spec.target, Target::Command(_)))
            .then(|| spec.trace(attempt_id.tid, attempt_id.attempt));
        let (request, answers_on) = match exec_request::of(&self.context, claim) {
            Ok(order) => order,
            Err(exit) => return ended(attempt_id, exit),
        };
        let may_chain = request.sandbox.is_none();
        let mut conversation = answers_on
            .zip(trace)
            .map(|(on, trace)| AttemptReply::new(on, trace, may_chain));
        let is_contained = matches!(request.program, ExecTarget::Keeper(_));
        let mut answer = is_contained.then(Vec::new);
        let mut runner = match self.ready_runner().await {
            Ok(runner) => runner,
            Err(error) => {
                return ended(
                    attempt_id,
                    ExitStatus::ResourceExhausted {
                        message: format!("no process could be started for it: {error}"),
                    },
                );
            }
        };
        self.context.options.bound.begun(self.number, &request);
        let watched = self
            .watch(
                &mut runner,
                &request,
                attempt_id,
                queue,
                &mut conversation,
                &mut answer,
            )
            .await;
        self.context.options.bound.over(self.number);
        match watched {
            Ok(mut done) => {
                self.runner = Some(runner);
                self.killed = done.killed;
                if let Some(mut answer) = answer {
                    answer.append(&mut done.reply);
                    self.judge(&mut done, &answer, attempt_id).await;
                }
                self.finish(attempt_id, *done, conversation).await
            }
            Err(gone) if gone.never_began() => ended(
                attempt_id,
                ExitStatus::ResourceExhausted {
                    message: "the system gave its runner less than a process needs".into(),
                },
            ),
            Err(gone) => {
                if is_contained {
                    // Its leash was killed with it.
                    self.unleashed(attempt_id).await;
                }
                self.forsaken(attempt_id, &gone, runner).await
            }
        }
    }

    /// The end of an attempt whose runner was killed.
    async fn forsaken(
        &self,
        attempt_id: AttemptId,
        gone: &RunnerLost,
        runner: Runner,
    ) -> Completion {
        let message = "the runner was killed, and its task with it";
        match self.context.options.only {
            // The caller waits for this task, and shows how it ended.
            Some(_) => attempt_tracing::log!(warn, attempt_id, %gone, "{message}"),
            None => attempt_tracing::log!(error, attempt_id, %gone, "{message}"),
        }
        drop(runner);
        // What the command had started was adopted by this process when the runner died.
        let keep = Arc::clone(&self.context.strangers);
        let _ = tokio::task::spawn_blocking(move || raddle_runner::reap_orphans(&keep)).await;
        ended(attempt_id, ExitStatus::Killed)
    }

    /// What has become of a container, whose leash gave this answer.
    async fn judge(&mut self, done: &mut ExecResult, answer: &[u8], attempt_id: AttemptId) {
        contained::judge(done, answer);
        if answer.is_empty() {
            self.unleashed(attempt_id).await;
        }
        if let ExitStatus::NoHandler { message } = &done.exit {
            self.context.log_return(message);
        }
    }

    /// A leash was killed, and may have just asked for a container, or have one that is about to end.
    async fn unleashed(&mut self, attempt_id: AttemptId) {
        #[cfg(feature = "docker")]
        {
            contained::end(attempt_id).await;
            self.sweeping = Some(tokio::spawn(contained::sweep()));
        }
        #[cfg(not(feature = "docker"))]
        let _ = attempt_id;
    }

    /// The runner, started or started anew: one may have been killed while it had nothing to do.
    async fn ready_runner(&mut self) -> std::io::Result<Runner> {
        if let Some(mut runner) = self.runner.take()
            && runner.is_alive()
        {
            return Ok(runner);
        }
        let SlotContext {
            options,
            attempt_id,
            idle_title,
            ..
        } = &*self.context;
        Runner::spawn(&RunnerOptions {
            program: options.runner.clone(),
            title_idle: idle_title.clone(),
            attempt_id: Some(Arc::clone(attempt_id)),
            without: secret_variables(),
        })
        .await
    }

    async fn watch(
        &self,
        runner: &mut Runner,
        request: &ExecRequest,
        attempt_id: AttemptId,
        queue: &mut mpsc::UnboundedReceiver<SlotCommand>,
        conversation: &mut Option<AttemptReply>,
        answer: &mut Option<Vec<u8>>,
    ) -> Result<Box<ExecResult>, RunnerLost> {
        runner.start(request).await?;
        let broker = &*self.context.broker;
        let mut orders = RunnerCommands::new(queue, |order| {
            self.context.options.bound.told(self.number, order)
        });
        let (mut unreported, mut report_at) = (None, Instant::now());
        loop {
            tokio::select! {
                biased;
                () = sleep_until(report_at), if unreported.is_some() => {
                    report_at = Instant::now() + REPORT_EVERY;
                    if let Some(progress) = unreported.take() {
                        let reporting = broker.report_progress(attempt_id, progress);
                        // What comes later tells as much.
                        if let Some(Err(error)) = orders.obey_during(reporting, runner).await? {
                            attempt_tracing::log!(debug, attempt_id, %error, "progress was not kept");
                        }
                    }
                }
                job = orders.next() => orders.apply_command(job, runner).await?,
                notice = runner.next() => match notice? {
                    RunnerEvent::Started { pid } => self.tell(WorkerLoopEvent::Started(AttemptStarted { attempt_id, pid: Some(pid) })),
                    RunnerEvent::Output { stream: raddle_runner::OutputChannel::Reply, bytes } if answer.is_some() => {
                        // Not known to anybody else until the attempt is over, and so not kept.
                        answer.iter_mut().for_each(|answer| answer.extend_from_slice(&bytes));
                    }
                    RunnerEvent::Output { stream, bytes } => match conversation {
                        Some(with) if with.is_on(stream) => {
                            let ReplyUpdate { log, progress, chained, is_garbled } = with.hear(&bytes);
                            unreported = progress.or(unreported);
                            if !log.is_empty() {
                                let storing = store(broker, attempt_id, raddle_runner::OutputChannel::Stderr, log);
                                orders.obey_while(storing, attempt_id, runner).await?;
                            }
                            if !chained.is_empty() {
                                let passing = pass_on(broker, with.chain(attempt_id, chained));
                                with.passed_on(orders.obey_during(passing, runner).await?);
                            }
                            if is_garbled || with.is_just_refused() {
                                runner.send(RunnerCommand::Kill).await?;
                            }
                        }
                        _ => orders.obey_while(store(broker, attempt_id, stream, bytes), attempt_id, runner).await?,
                    },
                    RunnerEvent::Done(done) => return Ok(done),
                    _ => {}
                },
            }
        }
    }

    /// The end of an attempt that gave an account of itself. What it said last may still be to be passed on.
    async fn finish(
        &self,
        attempt_id: AttemptId,
        done: ExecResult,
        conversation: Option<AttemptReply>,
    ) -> Completion {
        let ExecResult {
            exit,
            usage,
            mut stdout_bytes,
            mut stderr_bytes,
            mut stdout,
            mut stderr,
            reply,
            ..
        } = done;
        let (exit, value) = match conversation {
            None => (exit, None),
            Some(mut with) => {
                // What a handler says to us is no output of its task; what it wants in the log is.
                let rest = if with.is_on(raddle_runner::OutputChannel::Stdout) {
                    stdout_bytes = 0;
                    std::mem::take(&mut stdout)
                } else {
                    reply
                };
                let ReplyUpdate { log, chained, .. } = with.hear_out(&rest);
                stderr.extend(log);
                stderr_bytes += with.logged();
                // Nothing follows what has not succeeded.
                if exit.is_success() && !chained.is_empty() {
                    let passing =
                        pass_on_at_last(&*self.context.broker, with.chain(attempt_id, chained));
                    with.passed_on(passing.await);
                }
                with.conclude(exit)
            }
        };
        let (started_at, ended_at) = (done.started_at, done.ended_at);
        let report = AttemptReport {
            exit,
            started_at,
            ended_at,
            usage,
            stdout_bytes,
            stderr_bytes,
            value,
        };
        Completion {
            attempt_id,
            report,
            stdout,
            stderr,
        }
    }

    fn tell(&self, event: WorkerLoopEvent) {
        let _ = self.events.send(event);
    }
}

/// Logs an attempt that failed, whatever becomes of its task. An attempt that goes back without being charged has not failed: what returns it says so.
fn log_failure(
    queue: &str,
    name: &str,
    Completion {
        attempt_id,
        report,
        stderr,
        ..
    }: &Completion,
) {
    if !is_failure(&report.exit) {
        return;
    }
    let text = String::from_utf8_lossy(stderr);
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    let stderr: Option<String> = last.map(|line| line.chars().take(LAST_LINE).collect());
    let (exit, tid) = (&report.exit, attempt_id.tid);
    attempt_tracing::log!(error, *attempt_id, queue, name, %exit, stderr, "an attempt failed: 'raddle logs {tid}' shows its output");
}

fn is_failure(exit: &ExitStatus) -> bool {
    use ExitStatus::{
        Cancelled, Expired, Killed, LeaseExpired, NoHandler, Rejected, ResourceExhausted,
        WorkerLost,
    };
    // Asked for, or logged by what returns or refuses the task.
    let is_logged = matches!(
        exit,
        Cancelled | Expired | Killed | LeaseExpired | WorkerLost { .. }
    );
    let is_returned = matches!(
        exit,
        Rejected { .. } | ResourceExhausted { .. } | NoHandler { .. }
    );
    !exit.is_success() && !is_logged && !is_returned
}

/// The end of an attempt that has nothing else to tell.
pub(super) fn ended(attempt_id: AttemptId, exit: ExitStatus) -> Completion {
    let report = AttemptReport::bare(exit, Timestamp::now());
    Completion {
        attempt_id,
        report,
        stdout: Vec::new(),
        stderr: Vec::new(),
    }
}
