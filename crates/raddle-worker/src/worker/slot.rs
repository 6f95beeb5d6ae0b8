//! `Slot`: one runner, and the attempt that runs in it.

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
    chaining::{store_chain, store_chain_in_time},
    event::WorkerLoopEvent,
    exec_request::build_exec_request,
    options::secret_variables,
    output_forwarding::{RunnerCommandRelay, store_output},
};
use raddle_client::orphan_processes;
use raddle_container::task;

/// The state that all slots of a worker share.
pub(super) struct SlotContext {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) options: Options,
    pub(super) attempt_id: Arc<LeaseDeadlinePage>,
    pub(super) idle_title: String,
    /// Reasons for releasing tasks that were already logged.
    pub(super) logged: Mutex<HashSet<String>>,
    /// Child processes from before the worker started. They are not part of any attempt.
    pub(super) preexisting_children: Arc<[u32]>,
}

/// Shortest time between two writes of an attempt's progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// How many characters of the last line of stderr go to the log.
const LAST_LINE_CHARS: usize = 200;
/// How many different reasons for releasing tasks are logged.
const MAX_LOGGED_REASONS: usize = 1000;

impl SlotContext {
    /// Logs why a task is released, once per reason: such tasks come again and again.
    pub(super) fn log_release(&self, reason: &str) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() < MAX_LOGGED_REASONS && logged.insert(reason.to_owned()) {
            tracing::warn!("tasks are released: {reason}");
        }
    }
}

/// The worker's handle of a slot.
pub(super) struct Slot {
    commands: mpsc::UnboundedSender<SlotCommand>,
    task: JoinHandle<()>,
}

/// Commands to a slot. At most one task and a few commands are under way, so the channel needs no
/// bound.
pub(super) enum SlotCommand {
    Run(Box<LeasedTask>),
    Send(RunnerCommand),
}

impl Slot {
    pub(super) fn start(
        number: usize,
        context: Arc<SlotContext>,
        events: mpsc::UnboundedSender<WorkerLoopEvent>,
    ) -> Self {
        let (commands, queue) = mpsc::unbounded_channel();
        let task = tokio::spawn(
            SlotTask {
                number,
                context,
                events,
                runner: None,
                killed: false,
                #[cfg(feature = "docker")]
                sweep: None,
            }
            .run(queue),
        );
        Self { commands, task }
    }

    /// Runs an attempt. The slot must be free.
    pub(super) fn run(&self, claim: Box<LeasedTask>) {
        let _ = self.commands.send(SlotCommand::Run(claim));
    }

    /// Sends a command to the running attempt. Ignored if none runs.
    pub(super) fn send(&self, command: RunnerCommand) {
        let _ = self.commands.send(SlotCommand::Send(command));
    }

    /// Ends the slot and its runner.
    pub(super) async fn close(self) {
        drop(self.commands);
        let _ = self.task.await;
    }
}

struct SlotTask {
    number: usize,
    context: Arc<SlotContext>,
    events: mpsc::UnboundedSender<WorkerLoopEvent>,
    /// Started with the first task, and kept for the next.
    runner: Option<Runner>,
    /// Whether the runner killed the last attempt.
    killed: bool,
    /// Searches for the container of a supervisor that was killed. `close` waits for it.
    #[cfg(feature = "docker")]
    sweep: Option<JoinHandle<()>>,
}

impl SlotTask {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<SlotCommand>) {
        if self.context.options.is_single_task() {
            // Start the runner before the task arrives, so that a warm worker has done it. If it
            // fails, the task tries again.
            self.runner = self.ready_runner().await.ok();
        }
        while let Some(command) = queue.recv().await {
            // A command without a running attempt has crossed the end of the attempt.
            let SlotCommand::Run(claim) = command else {
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
            self.send_event(WorkerLoopEvent::AttemptEnded {
                slot: self.number,
                finish,
                killed,
            });
        }
        if let Some(runner) = self.runner {
            runner.close().await;
        }
        #[cfg(feature = "docker")]
        if let Some(sweep) = self.sweep {
            let _ = sweep.await;
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
        orphan_processes::kill_orphans_of_earlier_attempts(&*self.context.broker, attempt_id).await;
        // Chained tasks join this trace unless they name one. Commands have no reply.
        let trace = (!matches!(spec.target, Target::Command(_)))
            .then(|| spec.trace(attempt_id.tid, attempt_id.attempt));
        let (request, channel) = match build_exec_request(&self.context, claim) {
            Ok(built) => built,
            Err(exit) => return bare_completion(attempt_id, exit),
        };
        let may_chain = request.sandbox.is_none();
        let mut reply_state = channel
            .zip(trace)
            .map(|(on, trace)| AttemptReply::new(on, trace, may_chain));
        let is_contained = matches!(request.program, ExecTarget::ContainerSupervisor(_));
        let mut container_reply = is_contained.then(Vec::new);
        let mut runner = match self.ready_runner().await {
            Ok(runner) => runner,
            Err(error) => {
                return bare_completion(
                    attempt_id,
                    ExitStatus::ResourceExhausted {
                        message: format!("no process could be started for the task: {error}"),
                    },
                );
            }
        };
        self.context
            .options
            .time_limits
            .attempt_started(self.number, &request);
        let outcome = self
            .watch(
                &mut runner,
                &request,
                attempt_id,
                queue,
                &mut reply_state,
                &mut container_reply,
            )
            .await;
        self.context.options.time_limits.attempt_ended(self.number);
        match outcome {
            Ok(mut result) => {
                self.runner = Some(runner);
                self.killed = result.killed;
                if let Some(mut container_reply) = container_reply {
                    container_reply.append(&mut result.reply);
                    self.finish_container(&mut result, &container_reply, attempt_id)
                        .await;
                }
                self.finish(attempt_id, *result, reply_state).await
            }
            Err(lost) if lost.never_started() => bare_completion(
                attempt_id,
                ExitStatus::ResourceExhausted {
                    message: "the system gave the runner fewer resources than a process needs"
                        .into(),
                },
            ),
            Err(lost) => {
                if is_contained {
                    // The container supervisor was killed with the runner.
                    self.remove_container(attempt_id).await;
                }
                self.finish_killed(attempt_id, &lost, runner).await
            }
        }
    }

    /// Finishes an attempt whose runner was killed.
    async fn finish_killed(
        &self,
        attempt_id: AttemptId,
        lost: &RunnerLost,
        runner: Runner,
    ) -> Completion {
        let message = "the runner was killed, and its task with it";
        match self.context.options.only {
            // The caller waits for this task and reports its end.
            Some(_) => attempt_tracing::log!(warn, attempt_id, %lost, "{message}"),
            None => attempt_tracing::log!(error, attempt_id, %lost, "{message}"),
        }
        drop(runner);
        // Processes that the command had started were reparented to this subreaper.
        let keep = Arc::clone(&self.context.preexisting_children);
        let _ = tokio::task::spawn_blocking(move || raddle_runner::reap_orphans(&keep)).await;
        bare_completion(attempt_id, ExitStatus::Killed)
    }

    /// Reads the result of a container from its supervisor's reply.
    async fn finish_container(
        &mut self,
        result: &mut ExecResult,
        container_reply: &[u8],
        attempt_id: AttemptId,
    ) {
        task::apply_container_result(result, container_reply);
        if container_reply.is_empty() {
            self.remove_container(attempt_id).await;
        }
        if let ExitStatus::NoHandler { message } = &result.exit {
            self.context.log_release(message);
        }
    }

    /// Removes the container of a supervisor that was killed. It may have just created one.
    async fn remove_container(&mut self, attempt_id: AttemptId) {
        #[cfg(feature = "docker")]
        {
            task::end_container(attempt_id).await;
            self.sweep = Some(tokio::spawn(task::remove_orphans_later()));
        }
        #[cfg(not(feature = "docker"))]
        let _ = attempt_id;
    }

    /// Returns the runner, and starts a new one if it was killed while idle.
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
            lease_deadline: Some(Arc::clone(attempt_id)),
            removed_variables: secret_variables(),
        })
        .await
    }

    async fn watch(
        &self,
        runner: &mut Runner,
        request: &ExecRequest,
        attempt_id: AttemptId,
        queue: &mut mpsc::UnboundedReceiver<SlotCommand>,
        reply_state: &mut Option<AttemptReply>,
        container_reply: &mut Option<Vec<u8>>,
    ) -> Result<Box<ExecResult>, RunnerLost> {
        runner.start(request).await?;
        let broker = &*self.context.broker;
        let mut relay = RunnerCommandRelay::new(queue, |command| {
            self.context
                .options
                .time_limits
                .command_sent(self.number, command)
        });
        let (mut unreported_progress, mut report_at) = (None, Instant::now());
        loop {
            tokio::select! {
                biased;
                () = sleep_until(report_at), if unreported_progress.is_some() => {
                    report_at = Instant::now() + PROGRESS_INTERVAL;
                    if let Some(progress) = unreported_progress.take() {
                        let reporting = broker.report_progress(attempt_id, progress);
                        // A later progress report replaces this one.
                        if let Some(Err(error)) = relay.relay_during(reporting, runner).await? {
                            attempt_tracing::log!(debug, attempt_id, %error, "progress was not stored");
                        }
                    }
                }
                command = relay.next() => relay.relay(command, runner).await?,
                event = runner.next() => match event? {
                    RunnerEvent::Started { pid } => self.send_event(WorkerLoopEvent::Started(AttemptStarted { attempt_id, pid: Some(pid) })),
                    RunnerEvent::Output { stream: raddle_runner::OutputChannel::Reply, bytes } if container_reply.is_some() => {
                        // Only the worker needs it, at the end of the attempt, so it is not stored.
                        container_reply.iter_mut().for_each(|container_reply| container_reply.extend_from_slice(&bytes));
                    }
                    RunnerEvent::Output { stream, bytes } => match reply_state {
                        Some(reply_state) if reply_state.is_on_channel(stream) => {
                            let ReplyUpdate { log, progress, chained, is_malformed } = reply_state.parse(&bytes);
                            unreported_progress = progress.or(unreported_progress);
                            if !log.is_empty() {
                                let storing = store_output(broker, attempt_id, raddle_runner::OutputChannel::Stderr, log);
                                relay.relay_while_storing(storing, attempt_id, runner).await?;
                            }
                            if !chained.is_empty() {
                                let passing = store_chain(broker, reply_state.chain_request(attempt_id, chained));
                                reply_state.record_chain_result(relay.relay_during(passing, runner).await?);
                            }
                            if is_malformed || reply_state.chain_just_failed() {
                                runner.send(RunnerCommand::Kill).await?;
                            }
                        }
                        _ => relay.relay_while_storing(store_output(broker, attempt_id, stream, bytes), attempt_id, runner).await?,
                    },
                    RunnerEvent::Done(done) => return Ok(done),
                    _ => {}
                },
            }
        }
    }

    /// Finishes an attempt with an `ExecResult`. Its last output may contain chained tasks.
    async fn finish(
        &self,
        attempt_id: AttemptId,
        result: ExecResult,
        reply_state: Option<AttemptReply>,
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
        } = result;
        let (exit, value) = match reply_state {
            None => (exit, None),
            Some(mut reply_state) => {
                // The reply on stdout is not output of the task. Its log lines are.
                let rest = if reply_state.is_on_channel(raddle_runner::OutputChannel::Stdout) {
                    stdout_bytes = 0;
                    std::mem::take(&mut stdout)
                } else {
                    reply
                };
                let ReplyUpdate { log, chained, .. } = reply_state.parse_last(&rest);
                stderr.extend(log);
                stderr_bytes += reply_state.logged_bytes();
                // Chained tasks follow only a successful attempt.
                if exit.is_success() && !chained.is_empty() {
                    let passing = store_chain_in_time(
                        &*self.context.broker,
                        reply_state.chain_request(attempt_id, chained),
                    );
                    reply_state.record_chain_result(passing.await);
                }
                reply_state.into_result(exit)
            }
        };
        let (started_at, ended_at) = (result.started_at, result.ended_at);
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

    fn send_event(&self, event: WorkerLoopEvent) {
        let _ = self.events.send(event);
    }
}

/// Logs a failed attempt. A released attempt has not failed, and its release is logged.
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
    let stderr: Option<String> = last.map(|line| line.chars().take(LAST_LINE_CHARS).collect());
    let (exit, tid) = (&report.exit, attempt_id.tid);
    attempt_tracing::log!(error, *attempt_id, queue, name, %exit, stderr, "an attempt failed: 'raddle logs {tid}' shows its output");
}

fn is_failure(exit: &ExitStatus) -> bool {
    use ExitStatus::{
        Cancelled, Error, Expired, Killed, LeaseExpired, NoHandler, Rejected, ResourceExhausted,
        WorkerLost,
    };
    // Requested, or logged where the task is reclaimed or rejected.
    let is_logged = matches!(
        exit,
        Cancelled | Expired | Killed | LeaseExpired | WorkerLost { .. }
    );
    let is_returned = matches!(
        exit,
        Rejected { .. }
            | ResourceExhausted { .. }
            | NoHandler { .. }
            | Error {
                retry_after_ms: Some(_),
                ..
            }
    );
    !exit.is_success() && !is_logged && !is_returned
}

/// A completion without output.
pub(super) fn bare_completion(attempt_id: AttemptId, exit: ExitStatus) -> Completion {
    let report = AttemptReport::bare(exit, Timestamp::now());
    Completion {
        attempt_id,
        report,
        stdout: Vec::new(),
        stderr: Vec::new(),
    }
}
