//! The stop of an attempt: requests and signals, and the kill passes after which no process is
//! left.

use std::time::Duration;

use raddle_model::{
    ExitStatus,
    stop::{StagedStop, StopPolicy, StopStage},
};

use rustix::process::Signal;

use super::{
    RunnerProcess,
    attempt::{Attempt, AttemptPhase},
    capture::Capture,
    limit_watch::LimitVerdict,
};
use crate::{
    message::{ExecTarget, RunnerCommand},
    sys::{self, WaitResult},
    tree,
};

/// Pause between two kill passes. Usually SIGCHLD comes first.
const KILL_PAUSE: Duration = Duration::from_millis(5);
/// Time of repeated killing after which processes that cannot be killed are searched for, and the
/// pause between passes once there are any.
const UNKILLABLE_AFTER: Duration = Duration::from_secs(1);
const UNKILLABLE_PAUSE: Duration = Duration::from_millis(500);
/// Children reaped in a row before the loop handles other events: those of a fork bomb exit as fast
/// as they can be reaped.
const MAX_REAPS_IN_A_ROW: u32 = 1024;
/// How long a runner without a worker keeps killing before it exits and leaves the rest to the
/// kernel.
const ABANDON_DEADLINE: Duration = Duration::from_secs(5);

impl Attempt<'_> {
    pub(super) fn apply_command(
        &mut self,
        runner: &RunnerProcess,
        command: RunnerCommand,
        now: Duration,
    ) {
        match command {
            RunnerCommand::Stop => self.request_stop(runner, ExitStatus::Cancelled, now),
            RunnerCommand::Kill => self.kill(runner, ExitStatus::Killed, now),
            RunnerCommand::Pause
                if self.stop.stage() == StopStage::Running && self.paused_at.is_none() =>
            {
                self.paused_at = Some(now);
                match self.start.program {
                    // The container's processes are not descendants.
                    ExecTarget::ContainerSupervisor(_) => sys::kill(self.pid, Signal::TSTP),
                    _ => drop(tree::freeze(self.root)),
                }
                runner.set_title_status(self.start, "paused");
            }
            RunnerCommand::Resume if self.paused_at.is_some() => {
                self.unpause(now);
                if !self.throttled {
                    tree::thaw(self.root);
                }
                runner.set_title_status(self.start, "running");
            }
            RunnerCommand::Pause | RunnerCommand::Resume => {}
        }
    }

    /// The first request sends SIGTERM, the second SIGKILL. A command that exited before counts as
    /// ended by itself. After a timeout the command has `timeout_grace` to exit, and the stop of
    /// its worker does not shorten that.
    pub(super) fn request_stop(
        &mut self,
        runner: &RunnerProcess,
        cause: ExitStatus,
        now: Duration,
    ) {
        self.reap();
        if self.phase != AttemptPhase::Running {
            return;
        }
        if self.cause == Some(ExitStatus::Timeout) && cause == ExitStatus::Cancelled {
            return;
        }
        let is_timeout = cause == ExitStatus::Timeout;
        if is_timeout && self.stop.stage() == StopStage::Running {
            self.stop = StagedStop::new(StopPolicy::cancel(self.start.timeout_grace));
        }
        let status = if is_timeout { "timeout" } else { "stopping" };
        self.cause.get_or_insert(cause);
        let before = self.stop.stage();
        match self.stop.request(now) {
            StopStage::Killing => self.kill_pass(now),
            stage if stage != before => {
                runner.set_title_status(self.start, status);
                sys::kill_group(self.pid, Signal::TERM);
                let was_stopped = self.paused_at.is_some() || self.throttled;
                self.unpause(now);
                self.throttled = false;
                if was_stopped {
                    tree::thaw(self.root);
                } else {
                    // A command may have stopped itself.
                    sys::kill_group(self.pid, Signal::CONT);
                }
            }
            _ => {}
        }
    }

    /// Kills the whole tree at once.
    pub(super) fn kill(&mut self, runner: &RunnerProcess, cause: ExitStatus, now: Duration) {
        self.reap();
        if self.phase != AttemptPhase::Running {
            return;
        }
        match &self.cause {
            // A kill overrides the cancel that came before it.
            None | Some(ExitStatus::Cancelled) => self.cause = Some(cause),
            Some(_) => {}
        }
        runner.set_title_status(self.start, "stopping");
        self.stop.kill(now);
        self.kill_pass(now);
    }

    /// Kills all remaining processes once. `tick` repeats the pass until none is left.
    pub(super) fn kill_pass(&mut self, now: Duration) {
        if self.phase == AttemptPhase::Running {
            // The pid is valid until the command is reaped.
            sys::kill_group(self.pid, Signal::KILL);
            self.killed = true;
        }
        sys::set_urgent(true);
        tree::kill(self.root);
        self.next_kill = Some(
            now + if self.unkillable_reported {
                UNKILLABLE_PAUSE
            } else {
                KILL_PAUSE
            },
        );
        self.reap();
        let since = *self.killing_since.get_or_insert(now);
        if self.phase != AttemptPhase::Draining
            && !self.unkillable_reported
            && now.saturating_sub(since) > UNKILLABLE_AFTER
        {
            self.report_unkillable(now);
        }
    }

    /// Reports processes that cannot be killed on the task's standard error. The attempt ends when
    /// they do.
    fn report_unkillable(&mut self, now: Duration) {
        let unkillable = tree::descendants(self.root)
            .into_iter()
            .filter(|process| !process.zombie);
        let unkillable: Vec<String> = unkillable
            .map(|process| process.pid)
            .filter(|pid| !sys::may_signal(*pid))
            .map(|pid| pid.to_string())
            .collect();
        if let (false, Some(stderr)) = (unkillable.is_empty(), self.captures.get_mut(1)) {
            self.unkillable_reported = true;
            let pids = unkillable.join(", ");
            stderr.append_message(
                &format!(
                    "raddle: cannot kill process {pids}, which now runs as another user: the task ends when it does; \
                     end it as that user, with 'kill {}'\n",
                    unkillable.join(" ")
                ),
                now,
            );
        }
    }

    /// Reaps children that have exited.
    pub(super) fn reap(&mut self) {
        self.reap_again = false;
        for turn in 0.. {
            if turn == MAX_REAPS_IN_A_ROW {
                self.reap_again = true;
                break;
            }
            match self.wait_next() {
                WaitResult::Reaped(ended) => {
                    self.usage.user_us += ended.user.as_micros() as u64;
                    self.usage.system_us += ended.system.as_micros() as u64;
                    self.usage.peak_rss_bytes = self.usage.peak_rss_bytes.max(ended.max_rss_bytes);
                    if ended.pid == self.pid {
                        let seen = self
                            .sandboxed
                            .as_ref()
                            .and_then(|sandboxed| sandboxed.status_reader.status());
                        self.status = seen.unwrap_or(ended.status);
                        self.phase = AttemptPhase::Sweeping;
                    }
                }
                WaitResult::StillRunning => break,
                WaitResult::NoChild => {
                    if self.phase == AttemptPhase::Sweeping {
                        self.phase = AttemptPhase::Draining;
                        self.feed = None;
                        self.captures
                            .iter_mut()
                            .for_each(Capture::close_command_end);
                    }
                    return;
                }
            }
        }
        if self.phase == AttemptPhase::Sweeping && self.next_kill.is_none() {
            self.check_survivors();
            self.next_kill = Some(Duration::ZERO);
        }
    }

    fn wait_next(&self) -> WaitResult {
        if self.is_forked
            && self.phase == AttemptPhase::Running
            && let own @ WaitResult::Reaped(_) = sys::try_wait(Some(self.pid))
        {
            return own;
        }
        sys::try_wait(None)
    }

    /// A command that cannot fork any more may exit before a sample sees why: check the limits on
    /// the processes it left.
    fn check_survivors(&mut self) {
        if let Some(limit_watch) = &mut self.limit_watch
            && self.cause.is_none()
            && let LimitVerdict::Over(exit) =
                limit_watch.sample(self.root, self.sandboxed.as_ref(), Duration::ZERO)
        {
            self.cause = Some(exit);
        }
    }

    /// Kills the attempt without reporting: the worker is gone.
    pub(super) fn abandon(&mut self) {
        let give_up = sys::now() + ABANDON_DEADLINE;
        while self.phase != AttemptPhase::Draining && sys::now() < give_up {
            self.kill_pass(Duration::ZERO);
            if self.phase != AttemptPhase::Draining {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn unpause(&mut self, now: Duration) {
        if let Some(since) = self.paused_at.take() {
            self.timeout_at = self
                .timeout_at
                .map(|at| at.saturating_add(now.saturating_sub(since)));
        }
    }
}
