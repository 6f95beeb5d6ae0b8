//! One attempt, from the start of its process to its result: the event loop, and the deadlines that
//! stop it.

use std::{io, os::fd::AsFd, time::Duration};

use jiff::Timestamp;
use raddle_model::{
    ExitStatus, ResourceUsage,
    stop::{StagedStop, StopPolicy, StopStage},
};

use super::{
    RunnerProcess,
    capture::{Capture, InputFeed},
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

/// How long `Started` is held back so that other events travel with it: a command that ends within
/// this time wakes its worker once.
const STARTED_LINGER: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptPhase {
    /// The command has not been reaped.
    Running,
    /// The command has exited; the processes it left are being killed.
    Sweeping,
    /// All processes are reaped; the pipes may still hold output.
    Draining,
}

/// An attempt in progress.
pub(super) struct Attempt<'a> {
    pub(super) start: &'a ExecRequest,
    /// The runner's niceness between attempts.
    niceness: i32,
    /// All descendants of the runner except its fork server.
    pub(super) root: TreeRoot,
    pub(super) pid: u32,
    /// Whether the fork server forked the process: it is then waited for by its pid, because its
    /// exit signal is not SIGCHLD.
    pub(super) is_forked: bool,
    pub(super) phase: AttemptPhase,
    /// The command's wait status.
    pub(super) status: i32,
    /// The sandbox. The runner then waits for the shim, and the shim reports the command's status.
    pub(super) sandboxed: Option<sandbox::SandboxedChild>,
    /// How the attempt ends, if not by the command itself.
    pub(super) cause: Option<ExitStatus>,
    pub(super) stop: StagedStop,
    pub(super) timeout_at: Option<Duration>,
    pub(super) paused_at: Option<Duration>,
    /// Stopped because its CPU time is used up.
    pub(super) throttled: bool,
    /// Time of the next kill pass, while the tree is being killed.
    pub(super) next_kill: Option<Duration>,
    /// Start of the first kill pass.
    pub(super) killing_since: Option<Duration>,
    /// Whether the command was sent SIGKILL.
    pub(super) killed: bool,
    /// A process cannot be killed, and this was reported.
    pub(super) unkillable_reported: bool,
    /// More children may have exited.
    pub(super) reap_again: bool,
    pub(super) started_due: Option<Duration>,
    /// Standard output, standard error, and the reply channel.
    pub(super) captures: Vec<Capture>,
    pub(super) feed: Option<InputFeed>,
    pub(super) limit_watch: Option<LimitWatch>,
    /// In a container: time of the next check of the container's limits.
    next_check: Option<Duration>,
    pub(super) usage: ResourceUsage,
    pub(super) started_at: Timestamp,
    /// Number of out-of-memory kills in this container before the attempt.
    oom_kills: u64,
}

impl<'a> Attempt<'a> {
    /// Starts the command. An error is the end of an attempt that did not start.
    pub(super) fn begin(
        runner: &mut RunnerProcess,
        start: &'a ExecRequest,
        stdin: Option<Vec<u8>>,
    ) -> Result<Self, ExitStatus> {
        let refused = |error| ExitStatus::ResourceExhausted {
            message: format!("the kernel refused a pipe: {error}"),
        };
        let now = sys::now();
        if lease_deadline_of(runner).is_some_and(|deadline| deadline <= now) {
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
            ExecTarget::Function(name) if runner.fork_server.is_none() => {
                return Err(no_functions(name));
            }
            ExecTarget::ContainerSupervisor(_) | ExecTarget::Function(_) => {
                captures.push(open(OutputChannel::Reply)?)
            }
        }
        let feed = stdin
            .map(|stdin| InputFeed::new(stdin, runner.is_init))
            .transpose()
            .map_err(refused)?;
        let (feed, reader) = feed.unzip();
        let limits = start.sandbox.as_ref().map_or_else(
            || start.limits.clone(),
            |_| sandbox::with_default_limits(&start.limits),
        );
        let limit_watch = if limits.is_empty() {
            None
        } else {
            runner.start_watch(start, &limits, now)
        };
        let enforced = limit_watch
            .as_ref()
            .map(LimitWatch::enforced)
            .unwrap_or_default();
        let mut rlimits = limit_watch::rlimits(&limits, enforced, start.sandbox.is_some());
        rlimits.extend(start.sandbox.iter().flat_map(|_| sandbox::rlimits()));
        let is_host = matches!(start.program, ExecTarget::Host { .. });
        // Held until the host has a copy. After that only the host holds it, so the end of the
        // connection shows the worker that the host is gone.
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
            cgroup: limit_watch.as_ref().and_then(LimitWatch::join),
            leads: true,
        };
        // Set the title before the command exists, so that it is visible as soon as the command is.
        runner.set_title_status(start, if is_host { "host" } else { "running" });
        let started_at = Timestamp::now();
        let oom_kills = init::oom_kills();
        let mut sandboxed = None;
        let niceness = sys::niceness();
        let spawned = match (&prepared.executable, &start.sandbox) {
            (Some(executable), Some(sandbox)) => match sandbox::spawn(&plan, executable, sandbox) {
                Ok(spawned) => Ok(sandboxed.insert(spawned).pid),
                Err(StartError::Step(step, error)) => Err((step, error)),
                Err(StartError::Refused(refused)) => {
                    return Err(ExitStatus::SpawnFailed {
                        message: refused.to_string(),
                    });
                }
            },
            (Some(executable), None) if runner.is_init => init::spawn(&plan, executable),
            (Some(executable), None) => child::spawn(&plan, executable),
            (None, _) => match &runner.fork_server {
                Some(Ok(fork_server)) => fork_server.fork_function(&plan, start),
                Some(Err(error)) => Err((
                    ChildStep::Clone,
                    io::Error::new(error.kind(), error.to_string()),
                )),
                None => unreachable!("handled above"),
            },
        };
        let pid = spawned.map_err(|(step, error)| prepared.failure(start, step, &error))?;
        if limit_watch
            .as_ref()
            .is_some_and(|limit_watch| limit_watch.due().is_some())
        {
            // Sampled limits need a sampler that is scheduled even among the processes of a fork
            // bomb. The command exists already and keeps its own niceness.
            sys::set_niceness(sys::HIGHEST_PRIORITY);
        }
        runner.control.queue(&RunnerEvent::Started { pid });
        let mut attempt = Self {
            start,
            niceness,
            root: TreeRoot {
                pid: std::process::id(),
                excluded: runner
                    .fork_server
                    .iter()
                    .flatten()
                    .map(ForkServer::pid)
                    .next(),
            },
            is_forked: prepared.executable.is_none(),
            pid,
            phase: AttemptPhase::Running,
            status: 0,
            sandboxed,
            cause: None,
            stop: StagedStop::new(StopPolicy::cancel(start.grace)),
            timeout_at: start.timeout.map(|timeout| now.saturating_add(timeout)),
            paused_at: None,
            throttled: false,
            next_kill: None,
            killing_since: None,
            killed: false,
            unkillable_reported: false,
            reap_again: false,
            started_due: Some(now + STARTED_LINGER),
            captures,
            feed,
            limit_watch,
            next_check: runner.is_init.then_some(now),
            usage: ResourceUsage::default(),
            started_at,
            oom_kills,
        };
        attempt.report_missing_layers(now);
        attempt.feed(runner);
        Ok(attempt)
    }

    /// Runs the attempt to its end. An error means that the worker is gone; the attempt is then
    /// over as well.
    pub(super) fn run(mut self, runner: &mut RunnerProcess) -> Result<ExecResult, ControlClosed> {
        loop {
            let now = sys::now();
            self.tick(runner, now);
            self.send(runner, now);
            if self.phase == AttemptPhase::Draining && self.drain_pipes(runner, now) {
                return Ok(self.finish());
            }
            if let Err(closed) = self.wait(runner, now) {
                self.abandon();
                return Err(closed);
            }
        }
    }

    /// Waits for events and handles them.
    fn wait(&mut self, runner: &mut RunnerProcess, now: Duration) -> Result<(), ControlClosed> {
        let reading = self.phase != AttemptPhase::Draining && !runner.control.is_full();
        let nothing = libc::pollfd {
            fd: -1,
            events: 0,
            revents: 0,
        };
        let [input, output] = runner.control.pollfds();
        let feed = self.feed.as_ref().map_or(nothing, InputFeed::pollfd);
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
            (0..received.end).for_each(|_| self.request_stop(runner, ExitStatus::Killed, now));
        }
        runner.control.handle_events([input, output])?;
        while let Some(message) = runner.control.next()? {
            match message {
                ToRunner::Command(command) => self.apply_command(runner, command, now),
                ToRunner::Input(bytes) => match &mut self.feed {
                    Some(feed) => {
                        feed.extend(&bytes);
                        self.feed(runner);
                    }
                    // No process reads the input any more, and its sender must not wait for that.
                    None => report_input_taken(runner, bytes.len()),
                },
                ToRunner::InputEnds => {
                    self.feed.iter_mut().for_each(InputFeed::end);
                    self.feed(runner);
                }
                ToRunner::Heartbeat => {}
                // Attempts do not overlap: this worker's protocol state is wrong.
                ToRunner::Start(_) | ToRunner::Version(_) => {
                    return Err(ControlClosed::UnexpectedStart);
                }
            }
        }
        Ok(())
    }

    /// Next time at which [`tick`](Self::tick) or [`send`](Self::send) has work.
    fn deadline(&self, runner: &RunnerProcess) -> Option<Duration> {
        let full = runner.control.is_full();
        let running = self.phase == AttemptPhase::Running;
        let timeout_at = self
            .timeout_at
            .filter(|_| running && self.paused_at.is_none() && self.cause.is_none());
        [
            self.reap_again.then_some(Duration::ZERO),
            timeout_at,
            self.stop.deadline().filter(|_| running),
            lease_deadline_of(runner)
                .filter(|_| running && self.stop.stage() != StopStage::Killing),
            self.limit_watch
                .as_ref()
                .and_then(LimitWatch::due)
                .filter(|_| self.is_sampled()),
            self.next_kill
                .filter(|_| self.phase != AttemptPhase::Draining),
            self.started_due,
            runner.control.deadline(),
            self.next_check.filter(|_| running && self.cause.is_none()),
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

    /// Handles deadlines that have passed.
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
        if lease_deadline_of(runner).is_some_and(|at| at <= now) {
            self.kill(runner, ExitStatus::LeaseExpired, now);
        }
        if self.next_check.is_some_and(|at| at <= now) && self.cause.is_none() {
            self.next_check = Some(now + init::CHECK_INTERVAL);
            if let Some(exit) = init::exceeded() {
                self.kill(runner, exit, now);
            }
        }
        if self.timeout_at.is_some_and(|at| at <= now)
            && self.paused_at.is_none()
            && self.cause.is_none()
        {
            self.request_stop(runner, ExitStatus::Timeout, now);
        }
        if self.stop.tick(now) == Some(StopStage::Killing) {
            self.kill_pass(now);
        }
        if self.is_sampled()
            && self
                .limit_watch
                .as_ref()
                .and_then(LimitWatch::due)
                .is_some_and(|at| at <= now)
        {
            self.sample(runner, now);
        }
    }

    /// Whether limits are sampled: not while the tree is paused on request, nor once it is being
    /// killed.
    fn is_sampled(&self) -> bool {
        self.phase == AttemptPhase::Running
            && self.paused_at.is_none()
            && self.stop.stage() != StopStage::Killing
    }

    fn sample(&mut self, runner: &RunnerProcess, now: Duration) {
        // Children that have exited must not count.
        self.reap();
        let reaped = Duration::from_micros(self.usage.user_us + self.usage.system_us);
        let Some(limit_watch) = &mut self.limit_watch else {
            return;
        };
        let hold = match limit_watch.sample(self.root, self.sandboxed.as_ref(), reaped) {
            LimitVerdict::Over(exit) => return self.kill(runner, exit, now),
            // A tree that is being stopped gets the CPU time it needs to exit.
            LimitVerdict::Hold => self.stop.stage() == StopStage::Running,
            LimitVerdict::Run => false,
        };
        if hold != self.throttled {
            self.throttled = hold;
            if hold {
                drop(tree::freeze(self.root))
            } else {
                tree::thaw(self.root)
            }
        }
    }

    /// Writes the layers that the sandbox omits to the task's standard error.
    fn report_missing_layers(&mut self, now: Duration) {
        let (Some(sandboxed), Some(stderr)) = (&self.sandboxed, self.captures.get_mut(1)) else {
            return;
        };
        for refused in &sandboxed.missing {
            stderr.append_message(
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
        report_input_taken(runner, taken);
    }

    /// Sends output and events that have waited long enough.
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

    /// Reads the rest of the pipes, as far as the worker accepts it. Returns whether nothing is
    /// left.
    fn drain_pipes(&mut self, runner: &mut RunnerProcess, now: Duration) -> bool {
        while !runner.control.is_full() {
            let Some(capture) = self.captures.iter_mut().find(|capture| !capture.at_end()) else {
                return true;
            };
            capture.read(now);
            self.send(runner, now);
        }
        false
    }

    /// Whether SIGKILL ended the command, directly or as a shell reports it (exit code 137), and
    /// the runner did not send it.
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
            .limit_watch
            .as_ref()
            .is_some_and(|limit_watch| limit_watch.due().is_some())
        {
            sys::set_niceness(self.niceness);
        }
        if let Some(limit_watch) = &self.limit_watch {
            self.usage.peak_rss_bytes = self.usage.peak_rss_bytes.max(limit_watch.peak_rss());
            if self.cause.is_none() && limit_watch.out_of_memory() {
                self.cause = Some(ExitStatus::OutOfMemory);
            }
        }
        if self.next_check.is_some() && self.cause.is_none() {
            self.cause = init::exceeded();
        }
        if self.cause.is_none() && self.was_killed() && init::oom_kills() > self.oom_kills {
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

fn lease_deadline_of(runner: &RunnerProcess) -> Option<Duration> {
    let deadline = runner.lease_deadline.as_ref()?.deadline();
    (deadline != 0).then(|| Duration::from_nanos(deadline))
}

fn no_functions(name: &str) -> ExitStatus {
    ExitStatus::SpawnFailed {
        message: format!("this program has no functions that tasks can run, so it has no '{name}'"),
    }
}

/// Reports how much input was taken to the supervisor of a container, which waits for that before
/// it sends more.
fn report_input_taken(runner: &mut RunnerProcess, bytes: usize) {
    if runner.is_init && bytes > 0 {
        runner.control.queue(&RunnerEvent::InputTaken { bytes });
        runner.control.flush();
    }
}
