//! `raddle run`: submits a task, follows it, and works it off here when nobody else can.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use raddle_broker::{Broker, Cursor, Delivered, Error, Finish, Progress, Stream, Submitted};
use raddle_core::{
    Control, EventKind, Spec, State, Target, Tid, Word,
    spec::{Isolation, Reserved},
};
use raddle_fabric::{
    Ended, LastAttempt, Options, Shutdown, Standstill, Worker,
    wait::{WATCH_WORKERS, take_from_the_dead},
};
use tokio::time::{Instant, sleep_until};

use super::submit;
use crate::{
    args::RunArgs,
    context::Context,
    error::{Failure, INTERRUPTED, KILLED, Outcome},
    follow::{self, Follower, LONG},
    interrupt::{Interrupts, Suspensions},
    logging, output,
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

pub(super) async fn run(context: &Context, args: &RunArgs) -> Outcome {
    let spec = spec::complete(spec::of_words(&args.target, &args.command), &args.spec)?;
    if args.no_wait {
        return submit::one(context, spec).await;
    }
    // Before the task exists: a signal in between must find somebody who passes it on.
    let mut interrupts = Interrupts::catch()?;
    let broker = tokio::select! {
        biased;
        broker = context.broker() => broker?,
        () = interrupts.next() => return Ok(interrupted(context)),
    };
    let task = spec::submission(spec.clone());
    let submitted = if may_run_here(&spec) {
        // The usual way of a task in a folder without workers, and the shortest. A task that waits for another must not wait for
        // the slot that it has itself.
        let yields = task.parent.is_none();
        Worker::submit(Arc::clone(&broker), task, Options::inline(None), yields, interrupts.next()).await?
    } else {
        let submitted = tokio::select! {
            biased;
            submitted = broker.submit(vec![task]) => Some(submitted?),
            () = interrupts.next() => None,
        };
        let missing = || Failure::Raddle("the broker did not say what became of the task".into());
        submitted
            .map(|mut submitted| submitted.pop().ok_or_else(missing))
            .transpose()?
            .map(|submitted| (submitted, None))
    };
    let Some((submitted, worker)) = submitted else { return Ok(interrupted(context)) };
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
    let purges = worker.as_ref().is_some_and(Worker::is_followed_by_purge);
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
        unshown: None,
        inline: worker.map(Inline::start),
        outcome: None,
    };
    let outcome = Box::pin(run.follow()).await;
    if purges && outcome.is_ok() {
        let _ = broker.purge().await;
    }
    outcome
}

/// The end of one who did not want to wait for the broker.
fn interrupted(context: &Context) -> u8 {
    context.note("interrupted before the task was submitted");
    INTERRUPTED
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
    /// Why what it writes is no longer passed on.
    unshown: Option<Failure>,
    inline: Option<Inline>,
    /// How it ended, if that was here.
    outcome: Option<Box<LastAttempt>>,
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
        if followed.is_err() {
            self.call_off().await;
        }
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
                    if let Err(error @ Error::Starved { .. }) = ended {
                        // Whoever waits for it hears that it did not begin. Nobody is to begin it after that.
                        self.tell(Word::Stop).await?;
                        return Err(error.into());
                    }
                    self.outcome = ended?.outcome;
                    let is_enough = |outcome: &LastAttempt| !self.context.json && is_all(outcome);
                    if let Some(outcome) = self.outcome.as_deref().filter(|outcome| is_enough(outcome))
                        && follower.is_at_start()
                    {
                        return self.show(outcome).map(Some);
                    }
                    // It leaves when its task is over, or when another worker has it.
                    if follow_from > Instant::now() {
                        let progress = follower.next(&*self.broker, Duration::ZERO).await;
                        self.hear_or_recall(&follower, progress).await?
                    } else {
                        self.look_after().await?;
                        Step::GoOn
                    }
                }
                progress = async {
                    sleep_until(follow_from).await;
                    // What keeps it from its end, such as a full disk, is to be seen.
                    logging::errors();
                    follower.next(&*self.broker, wait).await
                } => self.hear_or_recall(&follower, progress).await?,
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

    /// Ends what runs here, and waits for that. Whoever hears that this has failed shall not find that it ran again after.
    async fn call_off(&mut self) {
        if self.inline.is_some() && self.tell(Word::Stop).await.is_ok() {
            let working = Inline::work(&mut self.inline);
            if tokio::time::timeout(LEAVE_WITHIN, working).await.is_ok() {
                self.inline = None;
            }
        }
    }

    /// Shows a task that was over before anybody looked: all there is to know is at hand.
    fn show(&self, outcome: &LastAttempt) -> Outcome<u8> {
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

    /// As [`hear`](Self::hear). A task that was over and whose record has expired is known from what its worker saw here.
    async fn hear_or_recall(
        &mut self,
        follower: &Follower,
        progress: raddle_broker::Result<Progress>,
    ) -> Outcome<Step> {
        if matches!(progress, Err(Error::NotFound(_))) && self.inline.is_some() {
            // Its worker is about to hear that it has written the end.
            let ended = Inline::work(&mut self.inline).await;
            self.inline = None;
            self.outcome = ended?.outcome;
        }
        match (progress, &self.outcome) {
            (Err(Error::NotFound(_)), Some(outcome)) if !self.context.json => {
                self.recall(outcome, follower.cursor()).map(Step::Leave)
            }
            (progress, _) => self.hear(progress?).await,
        }
    }

    /// Shows what is at hand of a task of which nothing else is left.
    fn recall(&self, outcome: &LastAttempt, seen: Cursor) -> Outcome<u8> {
        let mut outcome = outcome.clone();
        let Finish { fence, report, stdout, stderr } = &mut outcome.finish;
        let streams = [(stdout, report.stdout_bytes, seen.stdout), (stderr, report.stderr_bytes, seen.stderr)];
        for (end, total, seen_bytes) in streams {
            let shown = if seen.attempt == fence.attempt { seen_bytes } else { 0 };
            let begins_at = total.saturating_sub(end.len() as u64);
            if shown < begins_at {
                self.context
                    .note(format!("{} bytes of its output have expired before they were read", begins_at - shown));
            }
            end.drain(..shown.saturating_sub(begins_at).min(end.len() as u64) as usize);
        }
        match &self.unshown {
            Some(Failure::ClosedPipe) => Ok(0),
            Some(Failure::Raddle(why)) => Err(Failure::Raddle(why.clone())),
            _ => self.show(&outcome),
        }
    }

    async fn hear(&mut self, progress: Progress) -> Outcome<Step> {
        if !self.context.json && self.unshown.is_none() {
            match self.bar.aside(|| follow::show(&progress)) {
                Ok(()) => {}
                // As with any other program in a pipe: what nobody reads, or nobody can keep, need not go on.
                Err(failure) => {
                    self.unshown = Some(failure);
                    self.tell(Word::Stop).await?;
                }
            }
        }
        for what in follow::lost(&progress) {
            self.context.note(what);
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
        let task = match (tid::view(&*self.broker, self.tid).await, &self.outcome) {
            // All that it wrote has been shown.
            (Err(Failure::Usage(_)), Some(outcome)) if !self.context.json && self.unshown.is_none() => {
                return Ok(result::exit_code(outcome.state, Some(&outcome.finish.report)));
            }
            (task, _) => task?,
        };
        match self.unshown {
            Some(Failure::ClosedPipe) => return Ok(0),
            Some(failure) => return Err(failure),
            None => {}
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
fn is_all(outcome: &LastAttempt) -> bool {
    let Finish { fence, report, stdout, stderr } = &outcome.finish;
    fence.attempt == 1 && report.stdout_bytes == stdout.len() as u64 && report.stderr_bytes == stderr.len() as u64
}

/// Whether this process can run the task. An inline worker takes its task whatever that needs, so what it cannot give is refused
/// here: a task that asks for a container must not run without.
fn may_run_here(spec: &Spec) -> bool {
    matches!(spec.target, Target::Command(_)) && spec.isolation != Isolation::Docker
}
