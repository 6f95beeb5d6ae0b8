//! `WorkerCore`: decides which tasks to claim, where they run, what is written about them, when the
//! worker stops and why it exits.
//!
//! [`WorkerCore::handle_event`] takes an event and returns effects. It does no I/O and reads no
//! clock: `now` is the worker's age. The service carries the effects out in order. Commands are in
//! `apply_command.rs`, the stages of a stop in `stopping.rs`, audits in `audit.rs`.
//!
//! Every claim ends in exactly one of [`PendingWrite::Finish`], [`PendingWrite::FinishUnstarted`],
//! [`PendingWrite::Release`] and [`WorkerEffect::Abandon`].

use std::{collections::HashSet, time::Duration};

use raddle_broker::{AttemptId, Completion, CompletionOutcome, Error, LeasedTask, Release, Result};
use raddle_model::{
    ControlMessage, ExitStatus, Tid,
    stop::{StagedStop, StopPolicy, StopStage},
    worker::WorkerStatus,
};

use super::{
    Options, WorkerEndReason,
    backlog::{Backlog, MAX_WAIT},
    completion_batcher::PendingWrite,
    control_commands::CommandJob,
    event::{ClaimResult, LoopEnd, WorkerEffect, WorkerLoopEvent},
    slot_classes::SlotClasses,
};
use crate::space;

/// Longest single wait for tasks or commands. It is repeated, so nothing depends on the length.
pub(super) const WAIT: Duration = Duration::from_secs(3600);
/// How long a worker for one task waits in a claim before it checks whether the task is finished.
const ONLY_TASK_WAIT: Duration = Duration::from_millis(250);
/// How often a resident worker removes expired records.
const PURGE_EVERY: Duration = Duration::from_secs(60);
/// Pause before the next claim after the system had no resources to start an attempt. It doubles
/// while that continues.
const EXHAUSTED_PAUSE: Duration = Duration::from_secs(1);
const MAX_EXHAUSTED_PAUSE: Duration = Duration::from_secs(30);
/// After this many failures in a row, a worker that exits when idle exits with an error.
const MAX_EXHAUSTED: u32 = 3;
/// Audits per lease length.
const AUDITS_PER_LEASE: u32 = 2;
/// Pause after a broker error.
pub(super) const ERROR_PAUSE: Duration = Duration::from_millis(500);

/// An attempt in a slot.
#[derive(Debug)]
pub(super) struct RunningAttempt {
    pub(super) attempt_id: AttemptId,
    started_at: Duration,
    /// A stop releases the task instead of cancelling it.
    pub(super) release_on_stop: bool,
    pub(super) paused: bool,
    /// The command that is to end the attempt.
    pub(super) stop_command: Option<ControlMessage>,
}

pub(super) struct WorkerCore {
    pub(super) tid: Tid,
    pub(super) options: Options,
    /// When it starts no more attempts.
    retire_at: Option<Duration>,
    pub(super) slots: Vec<Option<RunningAttempt>>,
    pub(super) classes: SlotClasses,
    pub(super) backlog: Backlog,
    pub(super) stop: StagedStop,
    /// Stop requests that have been applied.
    pub(super) stop_requests_applied: u32,
    /// When it exits even if work is left. Set by a kill.
    pub(super) exit_at: Option<Duration>,
    /// The error to exit with.
    pub(super) failure: Option<Error>,
    pub(super) paused: bool,
    pub(super) lease_lost: bool,
    /// Attempts that are over here, but whose end is not recorded in the broker.
    pub(super) unrecorded: HashSet<AttemptId>,
    /// Attempts started so far.
    attempts_started: u64,
    /// `max_uptime` has passed.
    retired: bool,
    /// Commands that arrived after their attempt had ended. If the task is retried, they are
    /// forwarded.
    pub(super) late_commands: Vec<(Tid, ControlMessage)>,
    /// The task of [`Options::only`] is finished.
    only_task_finished: bool,
    /// At least one task was finished by this worker.
    has_finished_task: bool,
    /// The last claim found no task.
    queue_is_empty: bool,
    idle_since: Duration,
    /// A claim is under way.
    claiming: bool,
    /// Earliest time of the next claim.
    claim_at: Duration,
    /// Why the system could not start the last attempt, and how many failed in a row.
    exhausted: Option<(String, u32)>,
    /// When the broker agent first failed to answer.
    agent_gone_since: Option<Duration>,
    /// Claims in a row that failed because the broker had no space.
    claims_without_space: u32,
    purge_at: Duration,
    audit_at: Duration,
    /// Attempts that the last audit found assigned to this worker, but not held by it.
    pub(super) unheld: HashSet<AttemptId>,
    effects: Vec<WorkerEffect>,
}

impl WorkerCore {
    /// A worker before its first event, with an optional task that it has already claimed. `age`
    /// and `attempts_started` carry over from earlier registrations.
    pub(super) fn new(
        tid: Tid,
        options: Options,
        age: Duration,
        attempts_started: u64,
        claim: Option<LeasedTask>,
    ) -> Self {
        let classes = SlotClasses::new(&options);
        let mut backlog = Backlog::new(classes.len() as u32);
        backlog.push(claim.into_iter().collect(), Duration::ZERO);
        Self {
            tid,
            retire_at: options.max_uptime.map(|uptime| uptime.saturating_sub(age)),
            slots: (0..classes.len()).map(|_| None).collect(),
            classes,
            backlog,
            stop: StagedStop::new(StopPolicy::drain(options.grace)),
            stop_requests_applied: 0,
            exit_at: None,
            failure: None,
            paused: options.paused,
            lease_lost: false,
            unrecorded: HashSet::new(),
            attempts_started,
            retired: false,
            late_commands: Vec::new(),
            only_task_finished: false,
            has_finished_task: false,
            queue_is_empty: false,
            idle_since: Duration::ZERO,
            claiming: false,
            claim_at: Duration::ZERO,
            exhausted: None,
            agent_gone_since: None,
            claims_without_space: 0,
            purge_at: PURGE_EVERY,
            audit_at: options.lease / AUDITS_PER_LEASE,
            unheld: HashSet::new(),
            effects: Vec::new(),
            options,
        }
    }

    /// Handles an event and returns the effects. [`WorkerEffect::End`] is always the last one.
    pub(super) fn handle_event(
        &mut self,
        event: WorkerLoopEvent,
        now: Duration,
    ) -> Vec<WorkerEffect> {
        match event {
            WorkerLoopEvent::TimerFired => self.handle_timer(now),
            WorkerLoopEvent::StopRequested(times) => self.apply_stop_requests(times, now),
            WorkerLoopEvent::Claimed(found) => self.handle_claim(found, now),
            WorkerLoopEvent::Started(started) => {
                self.push_effect(WorkerEffect::Write(PendingWrite::Started(started)))
            }
            WorkerLoopEvent::AttemptEnded { slot, finish, .. } => {
                self.handle_attempt_end(slot, finish, now)
            }
            WorkerLoopEvent::Recorded {
                attempt_id,
                outcome,
            } => self.handle_recorded(attempt_id, outcome),
            WorkerLoopEvent::WriteRefused { attempt_id, error } => {
                self.handle_recorded(attempt_id, None);
                // Only the expiry of the lease frees the task now.
                self.fail(error, now);
            }
            WorkerLoopEvent::WriteFailed(error) => self.handle_broker_error(error, now),
            WorkerLoopEvent::Command { tid, message } => self.apply_command(tid, message, now),
            WorkerLoopEvent::Audited { held, assigned } => self.apply_audit(&held, &assigned),
            WorkerLoopEvent::LeaseLost => self.handle_lease_loss(),
            // Only the registration changes.
            WorkerLoopEvent::HostsChanged => {}
        }
        self.decide_actions(now);
        std::mem::take(&mut self.effects)
    }

    /// When the service must send [`WorkerLoopEvent::TimerFired`], unless another event comes
    /// first.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        let idle = self
            .options
            .idle_exit
            .filter(|patience| !patience.is_zero() && self.is_drained() && !self.paused);
        [
            self.options.only.is_none().then_some(self.purge_at),
            self.audits().then_some(self.audit_at),
            self.retire_at.filter(|_| !self.retired),
            self.backlog.oldest_since().map(|since| since + MAX_WAIT),
            self.stop.deadline(),
            self.exit_at,
            idle.map(|patience| self.idle_since.saturating_add(patience)),
            self.claim_size(None).map(|_| self.claim_at),
            self.classes
                .opens_at()
                .filter(|at| self.claim_size(Some(*at)).is_some())
                .map(|at| at.max(self.claim_at)),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    // -- status

    pub(super) fn status(&self) -> &'static str {
        match self.stop.stage() {
            StopStage::Running if self.paused => "paused",
            StopStage::Running if self.retired => "draining",
            StopStage::Running if self.busy() == 0 && self.is_at_task_limit() => "draining",
            StopStage::Running if self.busy() == 0 => "listening",
            // Not `running`: that is the status of tasks, and a search for those in `ps` must not
            // find workers.
            StopStage::Running => "busy",
            StopStage::Draining => "draining",
            StopStage::Terminating | StopStage::Killing => "stopping",
        }
    }

    pub(super) fn registered_status(&self) -> WorkerStatus {
        match self.stop.stage() {
            // No task should wait for this worker.
            StopStage::Running if self.retired || self.is_at_task_limit() => WorkerStatus::Draining,
            StopStage::Running if self.paused => WorkerStatus::Paused,
            StopStage::Running => WorkerStatus::Active,
            _ => WorkerStatus::Draining,
        }
    }

    pub(super) fn has_finished_task(&self) -> bool {
        self.has_finished_task
    }

    pub(super) fn busy(&self) -> u32 {
        self.classes.busy() as u32
    }

    /// Whether claimed tasks wait for a slot, so that more completions are expected soon.
    pub(super) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// The attempts whose end the broker does not know.
    pub(super) fn open_attempts(&self) -> impl Iterator<Item = AttemptId> {
        self.slots
            .iter()
            .flatten()
            .map(|running| running.attempt_id)
            .chain(self.unrecorded.iter().copied())
    }

    // -- claiming

    /// Whether new attempts may start.
    fn takes_tasks(&self) -> bool {
        let is_done = self.only_task_finished || self.retired || self.is_at_task_limit();
        !self.paused && !self.lease_lost && !is_done && self.stop.stage() == StopStage::Running
    }

    /// How many more attempts it may start.
    fn remaining_attempts(&self) -> Option<u64> {
        self.options
            .max_attempts()
            .map(|max| max.saturating_sub(self.attempts_started))
    }

    /// Whether it has started as many attempts as it may.
    fn is_at_task_limit(&self) -> bool {
        self.remaining_attempts() == Some(0)
    }

    /// How many tasks to claim, if any.
    fn claim_size(&self, now: Option<Duration>) -> Option<u32> {
        if self.claiming || !self.takes_tasks() {
            return None;
        }
        // Without a time: at some time from now on.
        let free = self.classes.free_for_claim(now.unwrap_or_default()) as u32;
        let max = match self.options.only {
            Some(_) if self.unrecorded.is_empty() && self.backlog.is_empty() => free.min(1),
            Some(_) => 0,
            // One attempt is enough to test whether the system has resources again.
            None if self.exhausted.is_some() => {
                free.min(1).saturating_sub(self.backlog.len() as u32)
            }
            None => self.backlog.claim_size(free),
        };
        let room = self.remaining_attempts().map_or(u64::MAX, |left| {
            left.saturating_sub(self.backlog.len() as u64)
        });
        let max = u64::from(max).min(room) as u32;
        (max > 0).then_some(max)
    }

    fn handle_claim(&mut self, found: Result<ClaimResult>, now: Duration) {
        self.claiming = false;
        if found.is_ok() {
            (self.agent_gone_since, self.claims_without_space) = (None, 0);
        }
        match found {
            Ok(ClaimResult::Tasks(mut claims)) => {
                // A server that forgot a claim of this worker hands out the same attempt again. It
                // is already running.
                let held: HashSet<AttemptId> = self.held_attempts().into_iter().collect();
                claims.retain(|claim| {
                    let attempt_id = claim.attempt_id;
                    !held.contains(&attempt_id) && !self.unrecorded.contains(&attempt_id)
                });
                self.classes.note_claimed(&claims, now);
                if self.takes_tasks() {
                    self.backlog.push(claims, now);
                } else {
                    claims.into_iter().for_each(|claim| {
                        self.release(claim.attempt_id, "its worker takes no tasks")
                    });
                }
            }
            Ok(ClaimResult::Empty) => self.queue_is_empty = true,
            Ok(ClaimResult::TaskFinished) => self.only_task_finished = true,
            Err(Error::NotFound(owner)) if owner == self.tid => self.handle_lease_loss(),
            Err(error) if error.is_retryable() => {
                let pause = if error.is_out_of_space() {
                    self.claims_without_space += 1;
                    space::BACKOFF.pause(self.claims_without_space)
                } else {
                    ERROR_PAUSE
                };
                self.claim_at = now + pause;
                self.handle_broker_error(error, now);
            }
            Err(error) => self.fail(error, now),
        }
    }

    /// Handles a broker error that may pass. A full disk may get space, so the worker waits. A
    /// server that has been away for too long ends the worker.
    fn handle_broker_error(&mut self, error: Error, now: Duration) {
        let is_over = match error {
            // The engine has already retried for as long as its URL says.
            Error::Unreachable { .. } => true,
            Error::AgentGone { .. } => {
                let since = *self.agent_gone_since.get_or_insert(now);
                now.saturating_sub(since) >= self.options.give_up_after
            }
            _ => false,
        };
        if is_over {
            self.fail(error, now);
        }
    }

    fn fill_slots(&mut self, now: Duration) {
        while !self.is_at_task_limit() && self.classes.has_any_room() {
            let classes = &self.classes;
            let Some(claim) = self.backlog.pop_if(|claim| classes.has_room(claim)) else {
                return;
            };
            let Some(slot) = self.classes.take(&claim.spec) else {
                return;
            };
            self.attempts_started += 1;
            let attempt_id = claim.attempt_id;
            self.slots[slot] = Some(RunningAttempt {
                attempt_id,
                started_at: now,
                release_on_stop: false,
                paused: false,
                stop_command: None,
            });
            self.push_effect(WorkerEffect::Run {
                slot,
                task: Box::new(claim),
            });
        }
    }

    // -- results

    fn handle_attempt_end(&mut self, slot: usize, finish: Box<Completion>, now: Duration) {
        let Some(running) =
            self.slots[slot].take_if(|running| running.attempt_id == finish.attempt_id)
        else {
            return;
        };
        self.classes.release(slot);
        let attempt_id = finish.attempt_id;
        let was_stopped = matches!(
            finish.report.exit,
            ExitStatus::Cancelled | ExitStatus::Killed
        );
        self.late_commands.extend(
            running
                .stop_command
                .filter(|_| !was_stopped)
                .map(|word| (attempt_id.tid, word)),
        );
        if !matches!(finish.report.exit, ExitStatus::ResourceExhausted { .. }) {
            self.backlog
                .record_duration(now.saturating_sub(running.started_at));
        }
        self.idle_since = now;
        self.queue_is_empty = false;
        self.unrecorded.insert(attempt_id);
        self.back_off_if_exhausted(&finish.report.exit, now);
        // An attempt that was killed for the lost lease was not killed on request: release its
        // task.
        let entry = if (running.release_on_stop || self.lease_lost) && was_stopped {
            PendingWrite::Release(Release {
                attempt_id,
                reason: "its worker was stopped".into(),
            })
        } else {
            PendingWrite::Finish(finish)
        };
        self.push_effect(WorkerEffect::Write(entry));
    }

    /// Out of processes, descriptors or memory: releases the prefetched tasks and backs off before
    /// claiming again. Other workers may have what this one lacks.
    fn back_off_if_exhausted(&mut self, exit: &ExitStatus, now: Duration) {
        let before = self.exhausted.take().map_or(0, |(_, times)| times);
        if let ExitStatus::ResourceExhausted { message } = exit {
            self.exhausted = Some((message.clone(), before + 1));
            self.claim_at =
                now + (EXHAUSTED_PAUSE * 2u32.pow(before.min(8))).min(MAX_EXHAUSTED_PAUSE);
            self.release_backlog("its worker cannot start a process");
            if std::mem::take(&mut self.claiming) {
                self.push_effect(WorkerEffect::CancelClaim);
            }
        }
    }

    fn handle_recorded(&mut self, attempt_id: AttemptId, outcome: Option<CompletionOutcome>) {
        self.unrecorded.remove(&attempt_id);
        // The recorded attempt may be waiting for its retry.
        self.queue_is_empty = false;
        if outcome.is_some() {
            self.agent_gone_since = None;
        }
        if let Some(CompletionOutcome::Finished(_)) = outcome {
            self.has_finished_task = true;
            self.only_task_finished |= self.options.only == Some(attempt_id.tid);
        }
        for (tid, message) in self
            .late_commands
            .extract_if(.., |(tid, _)| *tid == attempt_id.tid)
        {
            if let Some(CompletionOutcome::Retry(_)) = outcome {
                self.effects
                    .push(WorkerEffect::RunJob(CommandJob::Forward { tid, message }));
            }
        }
    }

    // -- time

    fn handle_timer(&mut self, now: Duration) {
        if !self.retired && self.retire_at.is_some_and(|at| at <= now) {
            self.retired = true;
            self.release_backlog("its worker has reached its maximum uptime");
        }
        for claim in self.backlog.drain_overdue(now) {
            self.release(claim.attempt_id, "it waited too long for a slot");
        }
        if let Some(stage) = self.stop.tick(now) {
            self.enter_stage(stage, now);
        }
    }

    /// Decides what follows after any event: start, claim, purge, audit or exit.
    fn decide_actions(&mut self, now: Duration) {
        if self.takes_tasks() {
            self.fill_slots(now);
        }
        if let Some(end) = self.decide_exit(now) {
            return self.push_effect(WorkerEffect::End(end));
        }
        if self.claiming && !self.takes_tasks() {
            self.claiming = false;
            self.push_effect(WorkerEffect::CancelClaim);
        }
        if self.claiming && self.classes.has_room_for_excluded() {
            self.claiming = false;
            self.push_effect(WorkerEffect::CancelClaim);
        }
        if let Some(max) = self.claim_size(Some(now)).filter(|_| self.claim_at <= now) {
            self.claiming = true;
            let wait = match self.options.idle_exit {
                _ if self.options.only.is_some() => ONLY_TASK_WAIT,
                Some(Duration::ZERO) => Duration::ZERO,
                _ => WAIT,
            };
            let without = if self.backlog.claims_ahead() {
                self.classes.exclude_nothing();
                Vec::new()
            } else {
                self.classes.exclude_full()
            };
            self.push_effect(WorkerEffect::Claim { max, wait, without });
        }
        if self.options.only.is_none() && self.purge_at <= now {
            self.purge_at = now + PURGE_EVERY;
            self.push_effect(WorkerEffect::Purge);
        }
        if self.audits() && self.audit_at <= now {
            self.audit_at = now + self.options.lease / AUDITS_PER_LEASE;
            let held = self.held_attempts();
            self.push_effect(WorkerEffect::Audit { held });
        }
    }

    fn decide_exit(&mut self, now: Duration) -> Option<Result<LoopEnd>> {
        if !self.is_drained() && self.exit_at.is_none_or(|by| now < by) {
            return None;
        }
        if let Some(error) = self.failure.take() {
            return Some(Err(error));
        }
        if let Some(error) = self.exhaustion_error() {
            return Some(Err(error));
        }
        let idle = self.options.idle_exit.filter(|_| !self.paused);
        // The registration may have ended together with the single task: that is not a lost lease.
        let reason = if self.only_task_finished {
            WorkerEndReason::Done
        } else if self.stop.stage() != StopStage::Running {
            WorkerEndReason::Stopped
        } else if self.lease_lost {
            return Some(Ok(LoopEnd::LeaseLost));
        } else if self.is_at_task_limit() {
            WorkerEndReason::Done
        } else if self.retired {
            WorkerEndReason::Aged
        } else if idle? == Duration::ZERO {
            // Zero means: exit once a claim has found nothing since the last task.
            return self
                .queue_is_empty
                .then_some(Ok(LoopEnd::Exit(WorkerEndReason::Idle)));
        } else {
            return (now.saturating_sub(self.idle_since) >= idle?)
                .then_some(Ok(LoopEnd::Exit(WorkerEndReason::Idle)));
        };
        Some(Ok(LoopEnd::Exit(reason)))
    }

    /// The error of a worker that could start nothing: its only task, its last allowed task, or all
    /// tasks of a worker that exits when idle.
    fn exhaustion_error(&self) -> Option<Error> {
        let has_one = self.options.only.is_some() && !self.only_task_finished;
        let (reason, times) = self.exhausted.as_ref()?;
        let is_in_vain = self.queue_is_empty || *times >= MAX_EXHAUSTED;
        let leaves = has_one
            || self.is_at_task_limit()
            || (self.options.idle_exit == Some(Duration::ZERO) && is_in_vain);
        let is_free = self.stop.stage() == StopStage::Running && !self.lease_lost;
        let want = || Error::Starved {
            what: "process for a task".into(),
            reason: reason.clone(),
        };
        (leaves && is_free).then(want)
    }

    /// Whether nothing runs, waits for a slot, or waits to be recorded.
    fn is_drained(&self) -> bool {
        self.busy() == 0 && self.backlog.is_empty() && self.unrecorded.is_empty()
    }

    pub(super) fn push_effect(&mut self, effect: WorkerEffect) {
        self.effects.push(effect);
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
