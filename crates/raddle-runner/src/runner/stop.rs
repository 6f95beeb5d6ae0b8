//! The end of an attempt: who asked for it, what is sent to whom, and the sweep after which nobody is left.

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

/// Between two passes over a tree that is being killed. Mostly SIGCHLD comes first.
const KILL_PAUSE: Duration = Duration::from_millis(5);
/// How long everything is killed again and again before it is looked for those who cannot be killed; and the pause once there are any.
const SAID_AFTER: Duration = Duration::from_secs(1);
const FUTILE_PAUSE: Duration = Duration::from_millis(500);
/// A fork bomb's children end as fast as they can be waited for: everything else gets its turn after so many.
const REAP_TURN: u32 = 1024;
/// How long a runner without a worker goes on killing before it leaves the rest to the kernel.
const ABANDON_DEADLINE: Duration = Duration::from_secs(5);

impl Attempt<'_> {
    pub(super) fn apply_command(
        &mut self,
        runner: &RunnerProcess,
        order: RunnerCommand,
        now: Duration,
    ) {
        match order {
            RunnerCommand::Stop => self.ask_to_stop(runner, ExitStatus::Cancelled, now),
            RunnerCommand::Kill => self.kill(runner, ExitStatus::Killed, now),
            RunnerCommand::Pause
                if self.stop.stage() == StopStage::Running && self.paused_at.is_none() =>
            {
                self.paused_at = Some(now);
                match self.start.program {
                    // What it keeps is not below it.
                    ExecTarget::Keeper(_) => sys::kill(self.pid, Signal::TSTP),
                    _ => drop(tree::freeze(self.root)),
                }
                runner.show(self.start, "paused");
            }
            RunnerCommand::Resume if self.paused_at.is_some() => {
                self.unpause(now);
                if !self.held {
                    tree::thaw(self.root);
                }
                runner.show(self.start, "running");
            }
            RunnerCommand::Pause | RunnerCommand::Resume => {}
        }
    }

    /// The first call terminates, the second kills. What the command did by itself before counts as its own. A command that has run for too long has
    /// `overtime` to end after SIGTERM: the stop of its worker takes nothing from it.
    pub(super) fn ask_to_stop(&mut self, runner: &RunnerProcess, cause: ExitStatus, now: Duration) {
        self.reap();
        if self.phase != AttemptPhase::Running {
            return;
        }
        if self.cause == Some(ExitStatus::Timeout) && cause == ExitStatus::Cancelled {
            return;
        }
        let is_timeout = cause == ExitStatus::Timeout;
        if is_timeout && self.stop.stage() == StopStage::Running {
            self.stop = StagedStop::new(StopPolicy::cancel(self.start.overtime));
        }
        let status = if is_timeout { "timeout" } else { "stopping" };
        self.cause.get_or_insert(cause);
        let before = self.stop.stage();
        match self.stop.request(now) {
            StopStage::Killing => self.kill_pass(now),
            stage if stage != before => {
                runner.show(self.start, status);
                sys::kill_group(self.pid, Signal::TERM);
                let stood_still = self.paused_at.is_some() || self.held;
                self.unpause(now);
                self.held = false;
                if stood_still {
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
            // Who first asked it to stop and then had it killed killed it.
            None | Some(ExitStatus::Cancelled) => self.cause = Some(cause),
            Some(_) => {}
        }
        runner.show(self.start, "stopping");
        self.stop.kill(now);
        self.kill_pass(now);
    }

    /// One pass over everything that is left; comes again until nothing is.
    pub(super) fn kill_pass(&mut self, now: Duration) {
        if self.phase == AttemptPhase::Running {
            // Its number is the command's own until it is waited for.
            sys::kill_group(self.pid, Signal::KILL);
            self.killed = true;
        }
        sys::set_urgent(true);
        tree::kill(self.root);
        self.next_kill = Some(
            now + if self.gave_up {
                FUTILE_PAUSE
            } else {
                KILL_PAUSE
            },
        );
        self.reap();
        let since = *self.killing_since.get_or_insert(now);
        if self.phase != AttemptPhase::Draining
            && !self.gave_up
            && now.saturating_sub(since) > SAID_AFTER
        {
            self.name_the_unkillable(now);
        }
    }

    /// Says who cannot be killed, where whoever waits for the task will see it. The attempt is over when they are.
    fn name_the_unkillable(&mut self, now: Duration) {
        let deaf = tree::descendants(self.root)
            .into_iter()
            .filter(|process| !process.zombie);
        let deaf: Vec<String> = deaf
            .map(|process| process.pid)
            .filter(|pid| !sys::may_signal(*pid))
            .map(|pid| pid.to_string())
            .collect();
        if let (false, Some(stderr)) = (deaf.is_empty(), self.captures.get_mut(1)) {
            self.gave_up = true;
            let pids = deaf.join(", ");
            stderr.remark(
                &format!(
                    "raddle: cannot kill process {pids}, which runs as another user now: the task is not over before it is; \
                     end it as that user, with 'kill {}'\n",
                    deaf.join(" ")
                ),
                now,
            );
        }
    }

    /// Waits for children that have ended.
    pub(super) fn reap(&mut self) {
        self.reap_again = false;
        for turn in 0.. {
            if turn == REAP_TURN {
                self.reap_again = true;
                break;
            }
            match self.next_ended() {
                WaitResult::Reaped(ended) => {
                    self.usage.user_us += ended.user.as_micros() as u64;
                    self.usage.system_us += ended.system.as_micros() as u64;
                    self.usage.peak_rss_bytes = self.usage.peak_rss_bytes.max(ended.max_rss_bytes);
                    if ended.pid == self.pid {
                        let seen = self.boxed.as_ref().and_then(|boxed| boxed.witness.status());
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
            self.judge_survivors();
            self.next_kill = Some(Duration::ZERO);
        }
    }

    fn next_ended(&self) -> WaitResult {
        if self.is_born
            && self.phase == AttemptPhase::Running
            && let own @ WaitResult::Reaped(_) = sys::try_wait(Some(self.pid))
        {
            return own;
        }
        sys::try_wait(None)
    }

    /// A command that could not fork any more ends by itself, before a sample sees why: what it leaves behind tells.
    fn judge_survivors(&mut self) {
        if let Some(watch) = &mut self.watch
            && self.cause.is_none()
            && let LimitVerdict::Over(exit) =
                watch.sample(self.root, self.boxed.as_ref(), Duration::ZERO)
        {
            self.cause = Some(exit);
        }
    }

    /// The worker is gone: nobody is left to tell.
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
            self.times_out = self
                .times_out
                .map(|at| at.saturating_add(now.saturating_sub(since)));
        }
    }
}
