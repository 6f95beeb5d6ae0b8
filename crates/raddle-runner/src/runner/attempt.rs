//! One attempt, from the clone to the account of it: the loop, the reasons to stop, and the sweep at the end.

use std::{io, os::fd::AsFd, time::Duration};

use jiff::Timestamp;
use raddle_model::{
    ExitStatus, ResourceUsage,
    stop::{StagedStop, StopPolicy, StopStage},
};

use super::{
    RunnerProcess,
    capture::{Capture, Feed},
    child::{self, ChildPlan, ChildStep},
    control::ControlClosed,
    fork_server::ForkServer,
    init,
    limit_watch::{self, LimitVerdict, LimitWatch},
    program::PreparedAttempt,
    sandbox::{self, StartError},
};
use crate::{
    message::{ExecRequest, ExecResult, ExecTarget, OutputChannel, RunnerEvent, ToRunner},
    sys,
    tree::{self, TreeRoot},
};

/// How long the news of a start waits for more to travel with it: a command that ends within this wakes its worker once.
const STARTED_LINGER: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptPhase {
    /// The command has not been waited for.
    Running,
    /// The command is over; what it left behind is being killed.
    Sweeping,
    /// No process is left; its output may be.
    Draining,
}

/// An attempt in progress.
pub(super) struct Attempt<'a> {
    pub(super) start: &'a ExecRequest,
    /// The runner's own, for its next attempt.
    niceness: i32,
    /// All that is below the runner, but for what belongs to it.
    pub(super) root: TreeRoot,
    pub(super) pid: u32,
    /// Whether it came out of the cradle: then it is waited for by its number.
    pub(super) is_born: bool,
    pub(super) phase: AttemptPhase,
    /// The command's wait status.
    pub(super) status: i32,
    /// The sandbox around it. There a shim is what is waited for, and knows it better.
    pub(super) boxed: Option<sandbox::SandboxedChild>,
    /// How the attempt ends if that is not the command's own doing.
    pub(super) cause: Option<ExitStatus>,
    pub(super) stop: StagedStop,
    pub(super) times_out: Option<Duration>,
    pub(super) paused_at: Option<Duration>,
    /// Standing still because its processor time is used up.
    pub(super) held: bool,
    /// When to look for survivors again, while something is being killed.
    pub(super) next_kill: Option<Duration>,
    /// Since when something is being killed.
    pub(super) killing_since: Option<Duration>,
    /// Whether the command was sent SIGKILL.
    pub(super) killed: bool,
    /// Somebody is there who cannot be killed, and that was said.
    pub(super) gave_up: bool,
    /// There may be more children that have ended.
    pub(super) reap_again: bool,
    pub(super) started_due: Option<Duration>,
    /// Standard output and error, and what a function answers.
    pub(super) captures: Vec<Capture>,
    pub(super) feed: Option<Feed>,
    pub(super) watch: Option<LimitWatch>,
    /// In a container: when to look whether it has run into a limit of that.
    look_at: Option<Duration>,
    pub(super) usage: ResourceUsage,
    pub(super) started_at: Timestamp,
    /// How often the kernel had killed for memory in this container before.
    memory_kills: u64,
}

impl<'a> Attempt<'a> {
    /// Starts the command. The error says how the attempt ends without having begun.
    pub(super) fn begin(
        runner: &mut RunnerProcess,
        start: &'a ExecRequest,
        stdin: Option<Vec<u8>>,
    ) -> Result<Self, ExitStatus> {
        let refused = |error| ExitStatus::ResourceExhausted {
            message: format!("the system refused a pipe: {error}"),
        };
        let now = sys::now();
        if fence_deadline(runner).is_some_and(|deadline| deadline <= now) {
            return Err(ExitStatus::LeaseExpired);
        }
        if runner.is_init {
            init::check()?;
        }
        let prepared = PreparedAttempt::new(start, &runner.inherited)?;
        let open = |stream| Capture::new(stream).map_err(refused);
        let mut captures = vec![open(OutputChannel::Stdout)?, open(OutputChannel::Stderr)?];
        match &start.program {
            ExecTarget::Command(_) => {}
            ExecTarget::Host { .. } if runner.host_socket.is_none() => {
                return Err(ExitStatus::SpawnFailed {
                    message: "its runner was not started for a host".into(),
                });
            }
            ExecTarget::Host { .. } => {}
            ExecTarget::Function(name) if runner.cradle.is_none() => {
                return Err(no_functions(name));
            }
            ExecTarget::Keeper(_) | ExecTarget::Function(_) => {
                captures.push(open(OutputChannel::Reply)?)
            }
        }
        let feed = stdin
            .map(|stdin| Feed::new(stdin, runner.is_init))
            .transpose()
            .map_err(refused)?;
        let (feed, reader) = feed.unzip();
        let limits = start
            .sandbox
            .as_ref()
            .map_or_else(|| start.limits.clone(), |_| sandbox::bounded(&start.limits));
        let watch = if limits.is_empty() {
            None
        } else {
            runner.watch(start, &limits, now)
        };
        let enforced = watch.as_ref().map(LimitWatch::enforced).unwrap_or_default();
        let mut rlimits = limit_watch::rlimits(&limits, enforced, start.sandbox.is_some());
        rlimits.extend(start.sandbox.iter().flat_map(|_| sandbox::rlimits()));
        let is_host = matches!(start.program, ExecTarget::Host { .. });
        // Held until the host has a copy: the worker then sees by the end of the connection that the host is gone.
        let host_socket = runner.host_socket.take_if(|_| is_host);
        let plan = ChildPlan {
            envp: &prepared.envp(),
            cwd: prepared.cwd.as_deref(),
            stdin: reader.as_ref().map_or(runner.null.as_fd(), AsFd::as_fd),
            outputs: &captures
                .iter()
                .filter_map(Capture::command_end)
                .chain(host_socket.as_ref().map(AsFd::as_fd))
                .collect::<Vec<_>>(),
            rlimits: &rlimits,
            cgroup: watch.as_ref().and_then(LimitWatch::join),
            leads: true,
        };
        // Worn before the command exists, so that whoever sees the command sees its runner's title.
        runner.show(start, if is_host { "host" } else { "running" });
        let started_at = Timestamp::now();
        let memory_kills = init::memory_kills();
        let mut boxed = None;
        let niceness = sys::niceness();
        let spawned = match (&prepared.executable, &start.sandbox) {
            (Some(executable), Some(sandbox)) => match sandbox::spawn(&plan, executable, sandbox) {
                Ok(spawned) => Ok(boxed.insert(spawned).pid),
                Err(StartError::Step(step, error)) => Err((step, error)),
                Err(StartError::Refused(refused)) => {
                    return Err(ExitStatus::SpawnFailed {
                        message: refused.to_string(),
                    });
                }
            },
            (Some(executable), None) if runner.is_init => init::spawn(&plan, executable),
            (Some(executable), None) => child::spawn(&plan, executable),
            (None, _) => match &runner.cradle {
                Some(Ok(cradle)) => cradle.bear(&plan, start),
                Some(Err(error)) => Err((
                    ChildStep::Clone,
                    io::Error::new(error.kind(), error.to_string()),
                )),
                None => unreachable!("looked at above"),
            },
        };
        let pid = spawned.map_err(|(step, error)| prepared.failure(start, step, &error))?;
        if watch.as_ref().is_some_and(|watch| watch.due().is_some()) {
            // Limits that are sampled need a sampler that gets its turn among the processes of a fork bomb. The command exists already and
            // keeps its own niceness.
            sys::set_niceness(sys::HIGHEST_PRIORITY);
        }
        runner.control.put(&RunnerEvent::Started { pid });
        let mut attempt = Self {
            start,
            niceness,
            root: TreeRoot {
                pid: std::process::id(),
                spared: runner.cradle.iter().flatten().map(ForkServer::pid).next(),
            },
            is_born: prepared.executable.is_none(),
            pid,
            phase: AttemptPhase::Running,
            status: 0,
            boxed,
            cause: None,
            stop: StagedStop::new(StopPolicy::cancel(start.grace)),
            times_out: start.timeout.map(|timeout| now.saturating_add(timeout)),
            paused_at: None,
            held: false,
            next_kill: None,
            killing_since: None,
            killed: false,
            gave_up: false,
            reap_again: false,
            started_due: Some(now + STARTED_LINGER),
            captures,
            feed,
            watch,
            look_at: runner.is_init.then_some(now),
            usage: ResourceUsage::default(),
            started_at,
            memory_kills,
        };
        attempt.name_what_lacks(now);
        attempt.feed(runner);
        Ok(attempt)
    }

    /// Sees the attempt through. An error means that the worker is gone; the attempt is then over as well.
    pub(super) fn run(mut self, runner: &mut RunnerProcess) -> Result<ExecResult, ControlClosed> {
        loop {
            let now = sys::now();
            self.tick(runner, now);
            self.send(runner, now);
            if self.phase == AttemptPhase::Draining && self.drained(runner, now) {
                return Ok(self.finish());
            }
            if let Err(hangup) = self.wait(runner, now) {
                self.abandon();
                return Err(hangup);
            }
        }
    }

    /// Waits for something to happen and takes it in.
    fn wait(&mut self, runner: &mut RunnerProcess, now: Duration) -> Result<(), ControlClosed> {
        let reading = self.phase != AttemptPhase::Draining && !runner.control.is_full();
        let nothing = libc::pollfd {
            fd: -1,
            events: 0,
            revents: 0,
        };
        let [input, output] = runner.control.pollfds();
        let feed = self.feed.as_ref().map_or(nothing, Feed::pollfd);
        let mut fds = [
            input,
            output,
            runner.signals.pollfd(),
            feed,
            nothing,
            nothing,
            nothing,
        ];
        for (fd, capture) in fds[4..].iter_mut().zip(&self.captures) {
            *fd = capture.pollfd(reading);
        }
        let deadline = self.deadline(runner);
        sys::poll(&mut fds, deadline.map(|at| at.saturating_sub(now)))
            .map_err(|_| ControlClosed::Closed)?;
        let [input, output, signals, feed, outputs @ ..] = fds.map(|fd| fd.revents);
        let now = sys::now();
        for (capture, _) in self
            .captures
            .iter_mut()
            .zip(outputs)
            .filter(|(_, events)| *events != 0)
        {
            capture.read(now);
        }
        if feed != 0 {
            self.feed(runner);
        }
        if signals != 0 {
            let received = runner.signals.read();
            if received.child {
                self.reap();
            }
            (0..received.end).for_each(|_| self.ask_to_stop(runner, ExitStatus::Killed, now));
        }
        runner.control.attend([input, output])?;
        while let Some(message) = runner.control.next()? {
            match message {
                ToRunner::Order(order) => self.apply_command(runner, order, now),
                ToRunner::Input(bytes) => match &mut self.feed {
                    Some(feed) => {
                        feed.extend(&bytes);
                        self.feed(runner);
                    }
                    // It is read by no process any more, and its sender must not wait for that.
                    None => report_taken(runner, bytes.len()),
                },
                ToRunner::InputEnds => {
                    self.feed.iter_mut().for_each(Feed::end);
                    self.feed(runner);
                }
                ToRunner::Beat => {}
                // Attempts do not overlap: a worker that starts one now has lost count.
                ToRunner::Start(_) | ToRunner::Version(_) => return Err(ControlClosed::OutOfTurn),
            }
        }
        Ok(())
    }

    /// When [`tick`](Self::tick) or [`send`](Self::send) has something to do.
    fn deadline(&self, runner: &RunnerProcess) -> Option<Duration> {
        let full = runner.control.is_full();
        let running = self.phase == AttemptPhase::Running;
        let times_out = self
            .times_out
            .filter(|_| running && self.paused_at.is_none() && self.cause.is_none());
        [
            self.reap_again.then_some(Duration::ZERO),
            times_out,
            self.stop.deadline().filter(|_| running),
            fence_deadline(runner).filter(|_| running && self.stop.stage() != StopStage::Killing),
            self.watch
                .as_ref()
                .and_then(LimitWatch::due)
                .filter(|_| self.is_sampled()),
            self.next_kill
                .filter(|_| self.phase != AttemptPhase::Draining),
            self.started_due,
            runner.control.deadline(),
            self.look_at.filter(|_| running && self.cause.is_none()),
            self.captures
                .iter()
                .filter_map(Capture::due)
                .min()
                .filter(|_| !full),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what is due by the clock.
    fn tick(&mut self, runner: &RunnerProcess, now: Duration) {
        if self.reap_again {
            self.reap();
        }
        if self.next_kill.is_some_and(|at| at <= now) {
            self.kill_pass(now);
        }
        if self.phase != AttemptPhase::Running {
            return;
        }
        if fence_deadline(runner).is_some_and(|at| at <= now) {
            self.kill(runner, ExitStatus::LeaseExpired, now);
        }
        if self.look_at.is_some_and(|at| at <= now) && self.cause.is_none() {
            self.look_at = Some(now + init::LOOK);
            if let Some(exit) = init::exceeded() {
                self.kill(runner, exit, now);
            }
        }
        if self.times_out.is_some_and(|at| at <= now)
            && self.paused_at.is_none()
            && self.cause.is_none()
        {
            self.ask_to_stop(runner, ExitStatus::Timeout, now);
        }
        if self.stop.tick(now) == Some(StopStage::Killing) {
            self.kill_pass(now);
        }
        if self.is_sampled()
            && self
                .watch
                .as_ref()
                .and_then(LimitWatch::due)
                .is_some_and(|at| at <= now)
        {
            self.sample(runner, now);
        }
    }

    /// Whether limits are looked after: not while the tree stands still on request, nor once it is being killed.
    fn is_sampled(&self) -> bool {
        self.phase == AttemptPhase::Running
            && self.paused_at.is_none()
            && self.stop.stage() != StopStage::Killing
    }

    fn sample(&mut self, runner: &RunnerProcess, now: Duration) {
        // What has ended and is ours to wait for shall not count.
        self.reap();
        let reaped = Duration::from_micros(self.usage.user_us + self.usage.system_us);
        let Some(watch) = &mut self.watch else { return };
        let hold = match watch.sample(self.root, self.boxed.as_ref(), reaped) {
            LimitVerdict::Over(exit) => return self.kill(runner, exit, now),
            // A tree that is to end gets the time it needs to do so.
            LimitVerdict::Hold => self.stop.stage() == StopStage::Running,
            LimitVerdict::Run => false,
        };
        if hold != self.held {
            self.held = hold;
            if hold {
                drop(tree::freeze(self.root))
            } else {
                tree::thaw(self.root)
            }
        }
    }

    /// Says what its sandbox does without, where whoever looks at the task will see it.
    fn name_what_lacks(&mut self, now: Duration) {
        let (Some(boxed), Some(stderr)) = (&self.boxed, self.captures.get_mut(1)) else {
            return;
        };
        for refused in &boxed.lacks {
            stderr.remark(
                &format!("raddle: {refused}; it runs without, as isolation_fallback says\n"),
                now,
            );
        }
    }

    fn feed(&mut self, runner: &mut RunnerProcess) {
        let Some(feed) = &mut self.feed else { return };
        let taken = feed.write();
        if feed.is_over() {
            self.feed = None;
        }
        report_taken(runner, taken);
    }

    /// Sends what has waited long enough.
    fn send(&mut self, runner: &mut RunnerProcess, now: Duration) {
        let control = &mut runner.control;
        let mut send = self.started_due.is_some_and(|at| at <= now);
        if !control.is_full() {
            for capture in &mut self.captures {
                send |= capture.send_if_due(now, control);
            }
        }
        if send {
            self.started_due = None;
            control.flush();
        }
    }

    /// Reads what the pipes still hold, as far as the worker takes it. Returns whether nothing is left.
    fn drained(&mut self, runner: &mut RunnerProcess, now: Duration) -> bool {
        while !runner.control.is_full() {
            let Some(capture) = self.captures.iter_mut().find(|capture| !capture.at_end()) else {
                return true;
            };
            capture.read(now);
            self.send(runner, now);
        }
        false
    }

    /// Whether SIGKILL has ended the command, or one that a shell reports so, and it was not sent from here.
    fn was_killed(&self) -> bool {
        let by_signal =
            libc::WIFSIGNALED(self.status) && libc::WTERMSIG(self.status) == libc::SIGKILL;
        let by_code =
            libc::WIFEXITED(self.status) && libc::WEXITSTATUS(self.status) == 128 + libc::SIGKILL;
        !self.killed && (by_signal || by_code)
    }

    fn finish(mut self) -> ExecResult {
        if self.next_kill.is_some() {
            sys::set_urgent(false);
        }
        if self
            .watch
            .as_ref()
            .is_some_and(|watch| watch.due().is_some())
        {
            sys::set_niceness(self.niceness);
        }
        if let Some(watch) = &self.watch {
            self.usage.peak_rss_bytes = self.usage.peak_rss_bytes.max(watch.peak_rss());
            if self.cause.is_none() && watch.out_of_memory() {
                self.cause = Some(ExitStatus::OutOfMemory);
            }
        }
        if self.look_at.is_some() && self.cause.is_none() {
            self.cause = init::exceeded();
        }
        if self.cause.is_none() && self.was_killed() && init::memory_kills() > self.memory_kills {
            self.cause = Some(ExitStatus::OutOfMemory);
        }
        let exit = self.cause.unwrap_or_else(|| {
            if libc::WIFSIGNALED(self.status) {
                ExitStatus::Signal {
                    signal: libc::WTERMSIG(self.status),
                }
            } else {
                ExitStatus::Code {
                    code: libc::WEXITSTATUS(self.status),
                }
            }
        });
        let mut captured = self.captures.into_iter().map(Capture::finish);
        let mut next = || captured.next().unwrap_or_default();
        let ((stdout_bytes, stdout), (stderr_bytes, stderr), (_, reply)) = (next(), next(), next());
        let ended_at = Timestamp::now();
        let started_at = Some(self.started_at);
        let (killed, usage) = (self.killed, self.usage);
        ExecResult {
            exit,
            killed,
            usage,
            stdout_bytes,
            stderr_bytes,
            stdout,
            stderr,
            reply,
            started_at,
            ended_at,
        }
    }
}

fn fence_deadline(runner: &RunnerProcess) -> Option<Duration> {
    let deadline = runner.attempt_id.as_ref()?.deadline();
    (deadline != 0).then(|| Duration::from_nanos(deadline))
}

fn no_functions(name: &str) -> ExitStatus {
    ExitStatus::SpawnFailed {
        message: format!(
            "this program has no functions that tasks could run, so no '{name}' either"
        ),
    }
}

/// Tells the supervisor of a container, which waits for it before it sends more, how much input was taken.
fn report_taken(runner: &mut RunnerProcess, bytes: usize) {
    if runner.is_init && bytes > 0 {
        runner.control.put(&RunnerEvent::InputTaken { bytes });
        runner.control.flush();
    }
}
