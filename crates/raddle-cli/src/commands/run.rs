//! `raddle run`: submits a task, follows it, and works it off here when nobody else can.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use raddle_broker::{Broker, Delivered, Error, Finish, Progress, Stream, Submitted};
use raddle_core::{
    Control, EventKind, Spec, State, Target, Tid, Word,
    spec::{Isolation, Reserved},
};
use raddle_exec::Prefork;
use raddle_fabric::{
    Ended, Options, Shutdown, Standstill, Worker,
    wait::{WATCH_WORKERS, take_from_the_dead},
};
use tokio::time::{Instant, sleep_until};

use super::{
    interrupt::{Interrupts, Suspensions},
    submit,
};
use crate::{
    args::RunArgs,
    context::Context,
    error::{Failure, INTERRUPTED, KILLED, Outcome},
    follow::{self, Follower, LONG},
    output,
    progress::TaskProgress,
    result, spec, tid,
};

/// How long a task that is run here may take before its output is followed.
const FOLLOW_AFTER: Duration = Duration::from_millis(20);
/// How often the progress of a task is looked at, when it is shown.
const REDRAW: Duration = Duration::from_millis(250);
/// How long an inline worker may take to leave when it has nothing left to do.
const DRAIN_WITHIN: Duration = Duration::from_millis(100);
/// How long it may take to pause what it runs before this process is stopped all the same.
const PAUSE_WITHIN: Duration = Duration::from_secs(2);
/// How long it may take to give back what it runs: longer than the grace period of a command.
const LEAVE_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn run(context: &Context, args: &RunArgs, prefork: Option<Prefork>) -> Outcome {
    let spec = spec::complete(spec::of_words(&args.target, &args.command), &args.spec)?;
    if args.no_wait {
        return submit::one(context, spec).await;
    }
    // Before the task exists: a signal in between must find somebody who passes it on.
    let interrupts = Interrupts::catch()?;
    let broker = context.broker().await?;
    let task = spec::submission(spec.clone());
    let (submitted, worker) = if may_run_here(&spec) {
        // The usual way of a task in a folder without workers, and the shortest. A task that waits for another must not wait for
        // the slot that it has itself.
        let yields = task.parent.is_none();
        let options = Options { prefork, ..Options::inline(None) };
        Worker::submit(Arc::clone(&broker), task, options, yields).await?
    } else {
        let submitted = broker.submit(vec![task]).await?.pop();
        let missing = || Failure::Raddle("the broker did not say what became of the task".into());
        (submitted.ok_or_else(missing)?, None)
    };
    let tid = submitted.tid();
    let mut spec = spec;
    if matches!(submitted, Submitted::Existing(_)) {
        follow::refuse_own(&*broker, tid).await?;
        context.note(format!("task {tid} has this key already: following that one"));
        // Who can take it, and what stopping it means, its own spec says and not the one that was refused.
        if let Some(existing) = broker.task(tid).await? {
            spec = existing.spec;
        }
    }
    // A command says nothing of its progress, unless it is by what it prints.
    let bar = TaskProgress::start(!context.json && !context.quiet() && !matches!(spec.target, Target::Command(_)));
    let run = Run {
        bar,
        context,
        broker: Arc::clone(&broker),
        tid,
        spec,
        interrupts,
        interrupted: 0,
        suspensions: Suspensions::catch()?,
        pausing: None,
        reader_gone: false,
        inline: worker.map(Inline::start),
    };
    let outcome = Box::pin(run.follow()).await;
    // The process is about to end. All there is to be written is, and the system closes a database faster than this would.
    std::mem::forget(broker);
    outcome
}

/// A task that is waited for.
struct Run<'a> {
    context: &'a Context,
    broker: Arc<dyn Broker>,
    tid: Tid,
    spec: Spec,
    interrupts: Interrupts,
    /// How often the user has asked for an end.
    interrupted: u32,
    suspensions: Suspensions,
    /// Until when its task is to be paused, for this process to be stopped.
    pausing: Option<Instant>,
    /// Nobody reads our output any more.
    reader_gone: bool,
    inline: Option<Inline>,
    bar: TaskProgress,
}

/// A worker in this process, for the one task.
struct Inline {
    working: Pin<Box<dyn Future<Output = raddle_broker::Result<Ended>> + Send>>,
    shutdown: Shutdown,
    standstill: Standstill,
}

/// What to do next.
enum Step {
    GoOn,
    /// The task is finished.
    Finished,
    /// The task goes on, or waits, without us.
    Leave(u8),
}

impl Run<'_> {
    async fn follow(mut self) -> Outcome {
        let followed = self.follow_to_the_end().await;
        // Also when that failed: what an inline worker has must not wait for its lease to run out.
        let left = self.leave().await;
        match followed? {
            Some(code) => Ok(code),
            None => {
                left?;
                self.conclude().await
            }
        }
    }

    /// Returns when the task is finished, or with the code to leave with when it goes on, or waits, without us.
    async fn follow_to_the_end(&mut self) -> Outcome<Option<u8>> {
        let mut follower = Follower::new(self.tid);
        // A task that is run here and takes no longer than this is shown when it is over: following costs more than it takes.
        let follow_from = Instant::now() + if self.inline.is_some() { FOLLOW_AFTER } else { Duration::ZERO };
        loop {
            let wait = match (&self.inline, self.bar.is_shown()) {
                (_, true) => REDRAW,
                (Some(_), false) => LONG,
                (None, false) => WATCH_WORKERS,
            };
            let step = tokio::select! {
                biased;
                ended = Inline::work(&mut self.inline), if self.inline.is_some() => {
                    self.inline = None;
                    let outcome = ended?.outcome.filter(|outcome| !self.context.json && is_all(outcome));
                    if let Some(outcome) = outcome.filter(|_| follower.is_at_start()) {
                        return self.show(&outcome).map(Some);
                    }
                    // It leaves when its task is over, or when another worker has it.
                    if follow_from > Instant::now() {
                        self.hear(follower.next(&*self.broker, Duration::ZERO).await?).await?
                    } else {
                        self.look_after().await?;
                        Step::GoOn
                    }
                }
                progress = async {
                    sleep_until(follow_from).await;
                    follower.next(&*self.broker, wait).await
                } => self.hear(progress?).await?,
                () = self.interrupts.next() => self.interrupt().await?,
                () = self.suspensions.next(), if self.pausing.is_none() => self.suspend().await?,
                () = sleep_until(self.pausing.unwrap_or_else(Instant::now)), if self.pausing.is_some() => {
                    self.stand_still().await?
                }
            };
            match step {
                Step::GoOn => {}
                Step::Finished => return Ok(None),
                Step::Leave(code) => return Ok(Some(code)),
            }
        }
    }

    /// Shows a task that was over before anybody looked: all there is to know is at hand.
    fn show(&self, outcome: &raddle_fabric::Outcome) -> Outcome<u8> {
        let Finish { report, stdout, stderr, .. } = &outcome.finish;
        for (stream, bytes) in Stream::BOTH.into_iter().zip([stdout, stderr]) {
            match output::pass_on(stream, bytes) {
                Err(Failure::ClosedPipe) => return Ok(0),
                passed => passed?,
            }
        }
        if let Some(remark) = result::remark(self.tid, &self.spec, Some(report)) {
            self.context.note(remark);
        }
        Ok(result::exit_code(outcome.state, Some(report)))
    }

    async fn hear(&mut self, progress: Progress) -> Outcome<Step> {
        if !self.context.json && !self.reader_gone {
            match self.bar.aside(|| follow::show(&progress)) {
                Err(Failure::ClosedPipe) => {
                    // As with any other program in a pipe: what nobody reads need not go on.
                    self.reader_gone = true;
                    self.tell(Word::Stop).await?;
                }
                shown => shown?,
            }
        }
        if progress.done.is_some() {
            return Ok(Step::Finished);
        }
        if self.bar.is_shown()
            && let Some(progress) = self.broker.task(self.tid).await?.and_then(|task| task.progress)
        {
            self.bar.set(&progress);
        }
        if self.pausing.is_some() && progress.events.iter().any(|event| event.event == EventKind::Paused) {
            return self.stand_still().await;
        }
        let given_back = progress.events.iter().any(|event| event.event == EventKind::Released);
        if given_back && self.interrupted > 0 {
            self.context.note(format!("task {} is back in its queue, as its spec asks", self.tid));
            return Ok(Step::Leave(INTERRUPTED));
        }
        if self.inline.is_none() {
            self.look_after().await?;
        }
        Ok(Step::GoOn)
    }

    /// Sees to it that somebody works on the task: another worker if one can, else this process.
    async fn look_after(&mut self) -> Outcome<()> {
        let workers = self.broker.workers().await?;
        let able = workers.iter().any(|worker| worker.would_take(&self.spec));
        if able && self.interrupted == 0 {
            // Cheap when all is well; a dead owner is noticed by the able worker itself.
            return Ok(());
        }
        let Some(task) = self.broker.task(self.tid).await? else { return Ok(()) };
        match task.state {
            State::Created if !able && may_run_here(&task.spec) => self.work_here().await,
            _ => Ok(take_from_the_dead(&*self.broker, &task).await?),
        }
    }

    async fn work_here(&mut self) -> Outcome<()> {
        let worker = Worker::register(Arc::clone(&self.broker), Options::inline(Some(self.tid))).await?;
        self.inline = Some(Inline::start(worker));
        Ok(())
    }

    async fn interrupt(&mut self) -> Outcome<Step> {
        self.interrupted += 1;
        match self.interrupted {
            // Told to stop, the inline worker would give it back and take it again: it has to leave first.
            1 if self.inline.is_some() && self.spec.on_stop == Reserved::Requeue => {
                self.context.note(format!("putting task {} back into its queue, as its spec asks", self.tid));
                Ok(Step::Leave(INTERRUPTED))
            }
            1 => {
                self.context.note(format!("stopping task {}; once more to kill it", self.tid));
                self.tell(Word::Stop).await
            }
            2 => {
                self.context.note(format!("killing task {}", self.tid));
                self.tell(Word::Kill).await
            }
            _ => {
                self.context.note(format!("leaving task {} to its end", self.tid));
                Ok(Step::Leave(KILLED))
            }
        }
    }

    /// Stops this process, as the shell asks. What it runs itself is paused first; what another worker runs goes on.
    async fn suspend(&mut self) -> Outcome<Step> {
        let is_paused = self.broker.task(self.tid).await?.is_none_or(|task| task.paused);
        if self.inline.is_none() || is_paused {
            return self.stop().await;
        }
        self.pausing = Some(Instant::now() + PAUSE_WITHIN);
        match self.broker.control(self.tid, Control::new(Word::Pause)).await {
            Ok(_) | Err(Error::Finished(..) | Error::NotFound(_)) => Ok(Step::GoOn),
            Err(error) => Err(error.into()),
        }
    }

    /// Stops this process now that what it runs stands still, and lets that go on with it.
    async fn stand_still(&mut self) -> Outcome<Step> {
        self.pausing = None;
        self.stop().await?;
        match self.broker.control(self.tid, Control::new(Word::Resume)).await {
            Ok(_) | Err(Error::Finished(..) | Error::NotFound(_)) => Ok(Step::GoOn),
            Err(error) => Err(error.into()),
        }
    }

    async fn stop(&self) -> Outcome<Step> {
        let standstill = self.inline.as_ref().map(|inline| inline.standstill.clone()).unwrap_or_default();
        // Not here: the worker in this process has to see its lease through until the last moment.
        let stopped = tokio::task::spawn_blocking(move || standstill.through(raddle_exec::stop_self)).await;
        stopped.map(|()| Step::GoOn).map_err(|e| Failure::Raddle(format!("cannot stop: {e}")))
    }

    async fn tell(&self, word: Word) -> Outcome<Step> {
        match self.broker.control(self.tid, Control::new(word)).await {
            // Nobody ran it and it is not over: its spec wants it back in the queue, where it stands.
            Ok(Delivered::Applied(state)) if !state.is_terminal() => Ok(Step::Leave(INTERRUPTED)),
            Ok(_) | Err(Error::Finished(..) | Error::NotFound(_)) => Ok(Step::GoOn),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets the inline worker leave in good order: what it still has goes back to its queue.
    async fn leave(&mut self) -> Outcome<()> {
        for patience in [DRAIN_WITHIN, LEAVE_WITHIN] {
            let Some(inline) = &self.inline else { break };
            inline.shutdown.request();
            if let Ok(ended) = tokio::time::timeout(patience, Inline::work(&mut self.inline)).await {
                self.inline = None;
                ended?;
            }
        }
        // One that is still there ends with this process, and so does its runner: others take over what it had.
        Ok(())
    }

    async fn conclude(self) -> Outcome {
        let task = tid::view(&*self.broker, self.tid).await?;
        if self.reader_gone {
            return Ok(0);
        }
        if self.context.json {
            output::json(&result::result_json(&*self.broker, &task).await?)?;
        } else if let Some(remark) = result::remark(task.tid, &task.spec, task.report.as_ref()) {
            self.context.note(remark);
        }
        Ok(result::exit_code(task.state, task.report.as_ref()))
    }
}

impl Inline {
    fn start(worker: Worker) -> Self {
        let (shutdown, standstill) = (Shutdown::new(), worker.standstill());
        Self { working: Box::pin(worker.run(shutdown.clone())), shutdown, standstill }
    }

    /// Works on; there is one whenever this is called.
    async fn work(inline: &mut Option<Self>) -> raddle_broker::Result<Ended> {
        match inline {
            Some(inline) => (&mut inline.working).await,
            None => std::future::pending().await,
        }
    }
}

/// Whether the last attempt was the only one, and all that it wrote is in its report.
fn is_all(outcome: &raddle_fabric::Outcome) -> bool {
    let Finish { fence, report, stdout, stderr } = &outcome.finish;
    fence.attempt == 1 && report.stdout_bytes == stdout.len() as u64 && report.stderr_bytes == stderr.len() as u64
}

/// Whether this process can run the task. An inline worker takes its task whatever that needs, so what it cannot give is refused
/// here: a task that asks for a sandbox must not run without.
fn may_run_here(spec: &Spec) -> bool {
    matches!(spec.target, Target::Command(_)) && spec.isolation == Isolation::Process
}
