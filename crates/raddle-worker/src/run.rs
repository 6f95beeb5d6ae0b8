//! `run_task`: submits a task and follows it to its end. The task runs on an inline worker with one
//! slot, unless it requires what only other workers have.
//!
//! [`run_task`] prints nothing and installs no signal handler: the caller shows [`RunEvent`]s and
//! sends [`RunCommand`]s.

use std::{future::Future, ops::ControlFlow, pin::Pin, sync::Arc, time::Duration};

use raddle_broker::{
    Broker, DeliveryOutcome, Error, NewTask, OutputStream, Result, Submitted, TaskUpdate,
};
use raddle_model::{
    ControlCommand, ControlMessage, HumanDuration, Target, TaskEventKind, TaskSpec, TaskState,
    TaskView, Tid,
    spec::{DEFAULT_QUEUE, Isolation, ReservedPolicy},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};

use raddle_client::wait::{
    MAX_WAIT, TaskFollower, WATCH_WORKERS, is_within, reclaim_if_worker_lost,
};

use crate::worker::{Options, Shutdown, SuspendGuard, Worker, WorkerEnd, WorkerEndReason};

/// How often to read the progress of a task if [`RunOptions::progress`] is set.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
/// Shortest time to keep the record of a finished task, because this run reads it.
const KEPT_FOR: HumanDuration = HumanDuration::secs(60);
/// How long an inline worker without a task may take to exit.
const DRAIN_WITHIN: Duration = Duration::from_millis(100);
/// How long an inline worker may take to pause its task before the process is suspended anyway.
const PAUSE_WITHIN: Duration = Duration::from_secs(2);
/// How long an inline worker may take to release its task: longer than the grace of a command.
const LEAVE_WITHIN: Duration = Duration::from_secs(10);

/// A task to run, and the options for it.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The task.
    pub task: NewTask,
    /// Whether to report [`RunEvent::Progress`].
    pub progress: bool,
    /// Whether an inline worker may run it. Otherwise other workers must.
    pub inline: bool,
}

/// A request of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunCommand {
    /// Ctrl-C: the first stops the task, the second kills it, the third abandons it.
    Interrupt,
    /// Ctrl-Z: pause the task if it runs in this process, then suspend the process.
    Suspend,
}

/// A report of a run. The observer returns `ControlFlow::Break` if the output has no reader any
/// more: the task is then stopped, and its output no longer reported.
#[derive(Clone, Copy, Debug)]
pub enum RunEvent<'a> {
    /// The task's id. Reported once, before all other events.
    Submitted(Tid),
    /// An unfinished task has the same unique key, and the run follows that one.
    Existing(Tid),
    /// Output of the task.
    Output(OutputStream, &'a [u8]),
    /// Some output was lost.
    OutputLost(&'a str),
    /// Progress of the task.
    Progress(&'a raddle_model::Progress),
    /// The task is being stopped.
    Stopping(Tid),
    /// The task is being killed.
    Killing(Tid),
    /// The run abandons the task, which goes on.
    Leaving(Tid),
    /// The task goes back to its queue, as its spec asks.
    Requeueing(Tid),
    /// The task is back in its queue, as its spec asks.
    Requeued(Tid),
}

/// How a run ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RunOutcome {
    /// It was interrupted before the task was submitted.
    NotSubmitted,
    /// The task with the same unique key is an ancestor of this process: the run would wait for its
    /// own end.
    Recursive(Tid),
    /// It was interrupted, and the task waits in its queue.
    Interrupted,
    /// It was interrupted three times, and does not wait for the end of the task.
    Abandoned,
    /// The task is finished.
    Finished(Box<TaskView>),
}

/// Submits a task and returns when it is finished, or when the user stops waiting.
pub async fn run_task(
    broker: Arc<dyn Broker>,
    options: RunOptions,
    mut commands: mpsc::Receiver<RunCommand>,
    mut observe: impl FnMut(RunEvent<'_>) -> ControlFlow<()>,
) -> Result<RunOutcome> {
    let RunOptions {
        mut task,
        progress: watches_progress,
        inline,
    } = options;
    // The record must still exist when this run reads it.
    task.spec.result_ttl = task.spec.result_ttl.map(|ttl| ttl.max(KEPT_FOR));
    let (mut spec, parent) = (task.spec.clone(), task.parent);
    let Some((submitted, worker)) = submit(&broker, task, inline, &mut commands).await? else {
        return Ok(RunOutcome::NotSubmitted);
    };
    let tid = submitted.tid();
    let _ = observe(RunEvent::Submitted(tid));
    if matches!(submitted, Submitted::Existing(_)) {
        if is_within(&*broker, parent, tid).await? {
            return Ok(RunOutcome::Recursive(tid));
        }
        let _ = observe(RunEvent::Existing(tid));
        // The spec of the existing task decides which workers can take it and what a stop does.
        if let Some(existing) = broker.task(tid).await? {
            spec = existing.spec;
        }
    }
    if worker.as_ref().is_some_and(Worker::should_purge) {
        let _ = broker.purge().await;
    }
    let runs_inline = inline && can_run_inline(&spec);
    let run = Run {
        broker,
        tid,
        spec,
        runs_inline,
        commands,
        observe,
        watches_progress,
        interrupted: 0,
        pausing: None,
        is_unread: false,
        inline: worker.map(Inline::start),
        is_over: false,
    };
    Box::pin(run.run()).await
}

/// Submits a task, together with an inline worker if this process may run it. Returns `None` if the
/// user interrupts that.
async fn submit(
    broker: &Arc<dyn Broker>,
    task: NewTask,
    inline: bool,
    commands: &mut mpsc::Receiver<RunCommand>,
) -> Result<Option<(Submitted, Option<Worker>)>> {
    let interrupted = async {
        loop {
            match commands.recv().await {
                Some(RunCommand::Interrupt) => return,
                Some(RunCommand::Suspend) => raddle_runner::stop_self(),
                None => std::future::pending().await,
            }
        }
    };
    if inline && can_run_inline(&task.spec) {
        return Worker::submit(Arc::clone(broker), task, Options::inline(None), interrupted).await;
    }
    tokio::select! {
        biased;
        submitted = broker.submit(vec![task]) => {
            Ok(Some((submitted?.pop().ok_or(Error::Closed)?, None)))
        }
        () = interrupted => Ok(None),
    }
}

/// Whether an inline worker can run the task. This depends on the spec alone, not on which workers
/// are alive, because their environment differs.
pub fn can_run_inline(spec: &TaskSpec) -> bool {
    matches!(spec.target, Target::Command(_))
        && spec.isolation() != Isolation::Docker
        && spec.requires.is_empty()
        && spec.queue == DEFAULT_QUEUE
}

struct Run<F> {
    broker: Arc<dyn Broker>,
    tid: Tid,
    spec: TaskSpec,
    /// Its attempts run on an inline worker.
    runs_inline: bool,
    commands: mpsc::Receiver<RunCommand>,
    observe: F,
    watches_progress: bool,
    /// Interrupts so far.
    interrupted: u32,
    /// Until when to wait for the task to pause before suspending this process.
    pausing: Option<Instant>,
    /// The observer accepts no more output.
    is_unread: bool,
    inline: Option<Inline>,
    /// The inline worker saw the end of the task.
    is_over: bool,
}

/// The inline worker.
struct Inline {
    working: Pin<Box<dyn Future<Output = Result<WorkerEnd>> + Send>>,
    shutdown: Shutdown,
    suspend_guard: SuspendGuard,
}

enum Step {
    Continue,
    /// The task is finished.
    Finished,
    /// The task goes on, or waits, without this run.
    Leave(RunOutcome),
}

impl<F: FnMut(RunEvent<'_>) -> ControlFlow<()>> Run<F> {
    async fn run(mut self) -> Result<RunOutcome> {
        let followed = self.follow().await;
        if followed.is_err() {
            self.stop_inline().await;
        }
        // Also after an error: other workers should not have to wait for the inline worker's lease.
        let left = self.close_inline().await;
        if let Some(outcome) = followed? {
            return Ok(outcome);
        }
        left?;
        self.conclude().await
    }

    /// Returns `None` when the task is finished, or the outcome if the task goes on without this
    /// run.
    async fn follow(&mut self) -> Result<Option<RunOutcome>> {
        let mut follower = TaskFollower::new(self.tid);
        loop {
            let wait = match (&self.inline, self.watches_progress) {
                (_, true) => PROGRESS_INTERVAL,
                (Some(_), false) => MAX_WAIT,
                (None, false) => WATCH_WORKERS,
            };
            let step = tokio::select! {
                biased;
                ended = Inline::work(&mut self.inline), if self.inline.is_some() => {
                    self.inline = None;
                    if let Err(error @ Error::Starved { .. }) = ended {
                        // The caller reports that the task did not start, so no other worker may
                        // start it.
                        self.control(ControlCommand::Stop).await?;
                        return Err(error);
                    }
                    self.is_over = ended?.reason == WorkerEndReason::Done;
                    if !self.is_over {
                        // Another worker has the task.
                        self.ensure_worker().await?;
                    }
                    Step::Continue
                }
                progress = follower.next(&*self.broker, wait) => self.on_progress(progress?).await?,
                Some(command) = self.commands.recv() => match command {
                    RunCommand::Interrupt => self.interrupt().await?,
                    RunCommand::Suspend if self.pausing.is_none() => self.suspend().await?,
                    RunCommand::Suspend => Step::Continue,
                },
                () = sleep_until(self.pausing.unwrap_or_else(Instant::now)), if self.pausing.is_some() => {
                    self.stop_process_and_resume().await?
                }
            };
            match step {
                Step::Continue => {}
                Step::Finished => return Ok(None),
                Step::Leave(outcome) => return Ok(Some(outcome)),
            }
        }
    }

    async fn on_progress(&mut self, progress: TaskUpdate) -> Result<Step> {
        for chunk in &progress.output {
            if self.report_output(chunk.stream, &chunk.bytes).is_break() {
                // Like any program in a broken pipe: a task whose output has no reader is stopped.
                self.control(ControlCommand::Stop).await?;
                break;
            }
        }
        for event in progress
            .events
            .iter()
            .filter(|event| event.event == TaskEventKind::OutputLost)
        {
            let _ = (self.observe)(RunEvent::OutputLost(
                event.detail.as_deref().unwrap_or(OUTPUT_LOST),
            ));
        }
        if progress.done.is_some() {
            return Ok(Step::Finished);
        }
        if self.watches_progress
            && let Some(progress) = self
                .broker
                .task(self.tid)
                .await?
                .and_then(|task| task.progress)
        {
            let _ = (self.observe)(RunEvent::Progress(&progress));
        }
        let has = |kind| progress.events.iter().any(|event| event.event == kind);
        if self.pausing.is_some() && has(TaskEventKind::Paused) {
            return self.stop_process_and_resume().await;
        }
        if self.interrupted > 0 && has(TaskEventKind::Released) {
            let _ = (self.observe)(RunEvent::Requeued(self.tid));
            return Ok(Step::Leave(RunOutcome::Interrupted));
        }
        if self.inline.is_none() && !self.is_over {
            self.ensure_worker().await?;
        }
        Ok(Step::Continue)
    }

    /// Reports output. Breaks the first time that the observer does not accept it.
    fn report_output(&mut self, stream: OutputStream, bytes: &[u8]) -> ControlFlow<()> {
        if self.is_unread {
            return ControlFlow::Continue(());
        }
        let taken = (self.observe)(RunEvent::Output(stream, bytes));
        self.is_unread = taken.is_break();
        taken
    }

    /// Ensures that the task has a worker: an inline one if it runs inline, otherwise one that is
    /// alive.
    async fn ensure_worker(&mut self) -> Result<()> {
        let Some(task) = self.broker.task(self.tid).await? else {
            return Ok(());
        };
        match task.state {
            TaskState::Created if self.runs_inline => {
                let worker =
                    Worker::register(Arc::clone(&self.broker), Options::inline(Some(self.tid)))
                        .await?;
                self.inline = Some(Inline::start(worker));
                Ok(())
            }
            _ => reclaim_if_worker_lost(&*self.broker, &task).await,
        }
    }

    async fn interrupt(&mut self) -> Result<Step> {
        self.interrupted += 1;
        match self.interrupted {
            // An inline worker that is only asked to stop would release the task and claim it
            // again.
            1 if self.inline.is_some() && self.spec.on_stop == ReservedPolicy::Requeue => {
                let _ = (self.observe)(RunEvent::Requeueing(self.tid));
                Ok(Step::Leave(RunOutcome::Interrupted))
            }
            1 => {
                let _ = (self.observe)(RunEvent::Stopping(self.tid));
                self.control(ControlCommand::Stop).await
            }
            2 => {
                let _ = (self.observe)(RunEvent::Killing(self.tid));
                self.control(ControlCommand::Kill).await
            }
            _ => {
                let _ = (self.observe)(RunEvent::Leaving(self.tid));
                Ok(Step::Leave(RunOutcome::Abandoned))
            }
        }
    }

    /// Suspends this process for Ctrl-Z. A task that runs inline is paused first. A task of another
    /// worker goes on.
    async fn suspend(&mut self) -> Result<Step> {
        let is_paused = self
            .broker
            .task(self.tid)
            .await?
            .is_none_or(|task| task.paused);
        if self.inline.is_none() || is_paused {
            self.stop_process().await;
            return Ok(Step::Continue);
        }
        self.pausing = Some(Instant::now() + PAUSE_WITHIN);
        self.control(ControlCommand::Pause)
            .await
            .map(|_| Step::Continue)
    }

    /// Suspends this process, whose task is paused, and resumes the task afterwards.
    async fn stop_process_and_resume(&mut self) -> Result<Step> {
        self.pausing = None;
        self.stop_process().await;
        self.control(ControlCommand::Resume)
            .await
            .map(|_| Step::Continue)
    }

    async fn stop_process(&self) {
        let suspend_guard = self
            .inline
            .as_ref()
            .map(|inline| inline.suspend_guard.clone())
            .unwrap_or_default();
        // On a blocking thread: the inline worker must renew its lease until the last moment.
        let _ =
            tokio::task::spawn_blocking(move || suspend_guard.suspend(raddle_runner::stop_self))
                .await;
    }

    async fn control(&self, command: ControlCommand) -> Result<Step> {
        match self
            .broker
            .control(self.tid, ControlMessage::new(command))
            .await
        {
            // No worker had the task: as its spec says, it waits in its queue.
            Ok(DeliveryOutcome::Applied(state))
                if !state.is_terminal()
                    && matches!(command, ControlCommand::Stop | ControlCommand::Kill) =>
            {
                Ok(Step::Leave(RunOutcome::Interrupted))
            }
            Ok(_) | Err(Error::Finished(..) | Error::NotFound(_)) => Ok(Step::Continue),
            Err(error) => Err(error),
        }
    }

    /// Stops the inline worker's task and waits for it. The run is about to report failure, so the
    /// task must not be retried after this process exits.
    async fn stop_inline(&mut self) {
        if self.inline.is_some()
            && self.control(ControlCommand::Stop).await.is_ok()
            && timeout(LEAVE_WITHIN, Inline::work(&mut self.inline))
                .await
                .is_ok()
        {
            self.inline = None;
        }
    }

    /// Stops the inline worker. A task that it still holds is released.
    async fn close_inline(&mut self) -> Result<()> {
        for patience in [DRAIN_WITHIN, LEAVE_WITHIN] {
            let Some(inline) = &self.inline else { break };
            inline.shutdown.request();
            if let Ok(ended) = timeout(patience, Inline::work(&mut self.inline)).await {
                self.inline = None;
                ended?;
            }
        }
        // If the worker is still there, it and its runner end with this process, and others reclaim
        // its task.
        Ok(())
    }

    async fn conclude(self) -> Result<RunOutcome> {
        let task = self
            .broker
            .task(self.tid)
            .await?
            .ok_or(Error::NotFound(self.tid))?;
        Ok(RunOutcome::Finished(Box::new(task)))
    }
}

/// The report for an `output_lost` event without detail.
const OUTPUT_LOST: &str = "some of its output could not be stored";

impl Inline {
    fn start(worker: Worker) -> Self {
        let (shutdown, suspend_guard) = (Shutdown::new(), worker.suspend_guard());
        Self {
            working: Box::pin(worker.run(shutdown.clone())),
            shutdown,
            suspend_guard,
        }
    }

    /// Runs the worker, if there is one.
    async fn work(inline: &mut Option<Self>) -> Result<WorkerEnd> {
        match inline {
            Some(inline) => (&mut inline.working).await,
            None => std::future::pending().await,
        }
    }
}
