//! What a worker decides: which tasks to claim, where they run, what is written of them, when it stops and why it leaves.
//!
//! [`WorkerCore::on`] takes what has happened and says what to do about it. It does no I/O and reads no clock: `now` is the worker's age. The
//! service carries the effects out, in their order. Words are in `obey.rs`, the stages of a stop in `stopping.rs`, audits in `audit.rs`.
//!
//! Every claim that comes in ends in exactly one of [`PendingWrite::Finish`], [`PendingWrite::Unbegun`], [`PendingWrite::Release`] and [`WorkerEffect::Forsake`].

use std::{collections::HashSet, time::Duration};

use raddle_broker::{AttemptId, Completion, CompletionOutcome, Error, LeasedTask, Release, Result};
use raddle_model::{
    ControlMessage, ExitStatus, Tid,
    stop::{StagedStop, StopPolicy, StopStage},
    worker::WorkerStatus,
};

use super::{
    Options, WorkerEndReason,
    backlog::{Backlog, PATIENCE},
    completion_batcher::PendingWrite,
    control_commands::CommandJob,
    event::{ClaimResult, LoopEnd, WorkerEffect, WorkerLoopEvent},
    slot_classes::SlotClasses,
};
use crate::space;

/// How long one wait for tasks or words lasts before it is begun again. Nothing depends on it.
pub(super) const WAIT: Duration = Duration::from_secs(3600);
/// How long a worker for one task waits for it between two looks at whether it is over.
const LOOK: Duration = Duration::from_millis(250);
/// How often a resident worker removes what has expired.
const PURGE_EVERY: Duration = Duration::from_secs(60);
/// After an attempt that the system gave nothing to begin with, before the next is claimed. It doubles as long as that goes on.
const STARVED_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_STARVED_PAUSE: Duration = Duration::from_secs(30);
/// After so many in a row a worker that is to leave when it has nothing to do has nothing to do.
const STARVED_TIMES: u32 = 3;
/// How often within its lease a worker compares what it holds with what the broker assigns to it.
const AUDITS_PER_LEASE: u32 = 2;
/// After an error of the broker, before the next try.
pub(super) const ERROR_PAUSE: Duration = Duration::from_millis(500);

/// An attempt in a slot.
#[derive(Debug)]
pub(super) struct RunningAttempt {
    pub(super) attempt_id: AttemptId,
    began: Duration,
    /// What ends by a stop goes back to the queue instead of counting as cancelled.
    pub(super) give_back: bool,
    pub(super) paused: bool,
    /// The word that is to end it.
    pub(super) told: Option<ControlMessage>,
}

pub(super) struct WorkerCore {
    pub(super) tid: Tid,
    pub(super) options: Options,
    /// When it begins nothing more.
    retire_at: Option<Duration>,
    pub(super) slots: Vec<Option<RunningAttempt>>,
    pub(super) classes: SlotClasses,
    pub(super) backlog: Backlog,
    pub(super) stop: StagedStop,
    /// How many of the requests to stop have been carried out.
    pub(super) heeded: u32,
    /// When it leaves, whatever is still to be done: it kills.
    pub(super) leave_by: Option<Duration>,
    /// Why it cannot go on.
    pub(super) failure: Option<Error>,
    pub(super) paused: bool,
    pub(super) lease_lost: bool,
    /// Attempts that are over here, and not yet in the broker.
    pub(super) unsettled: HashSet<AttemptId>,
    /// How many attempts it has begun.
    begun: u64,
    /// It is old enough to leave.
    retired: bool,
    /// Words that came when their attempt was already over. If the task waits again they are for the task.
    pub(super) late: Vec<(Tid, ControlMessage)>,
    /// The one task this worker is for has reached its end.
    only_done: bool,
    /// A task has come to its end here.
    has_ended_task: bool,
    /// The last look at the queue found nothing.
    nothing_waits: bool,
    idle_since: Duration,
    /// Whether tasks are being asked for.
    claiming: bool,
    /// Not before this.
    claim_at: Duration,
    /// What the system refused when an attempt was last to begin, and how often in a row it has.
    starved: Option<(String, u32)>,
    /// Since when the agent has not answered.
    away_since: Option<Duration>,
    /// Claims in a row for which the broker had no space.
    claims_without_space: u32,
    purge_at: Duration,
    audit_at: Duration,
    /// Attempts that the broker assigned to this worker at the last audit, and that it did not hold.
    pub(super) unknown: HashSet<AttemptId>,
    effects: Vec<WorkerEffect>,
}

impl WorkerCore {
    /// A worker that is about to begin, with what it has claimed already. `age` and `begun` are what it has come to under earlier ids.
    pub(super) fn new(
        tid: Tid,
        options: Options,
        age: Duration,
        begun: u64,
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
            heeded: 0,
            leave_by: None,
            failure: None,
            paused: options.paused,
            lease_lost: false,
            unsettled: HashSet::new(),
            begun,
            retired: false,
            late: Vec::new(),
            only_done: false,
            has_ended_task: false,
            nothing_waits: false,
            idle_since: Duration::ZERO,
            claiming: false,
            claim_at: Duration::ZERO,
            starved: None,
            away_since: None,
            claims_without_space: 0,
            purge_at: PURGE_EVERY,
            audit_at: options.lease / AUDITS_PER_LEASE,
            unknown: HashSet::new(),
            effects: Vec::new(),
            options,
        }
    }

    /// What to do about it. After [`WorkerEffect::End`] there is nothing more to say.
    pub(super) fn on(&mut self, event: WorkerLoopEvent, now: Duration) -> Vec<WorkerEffect> {
        match event {
            WorkerLoopEvent::Time => self.tick(now),
            WorkerLoopEvent::Asked(times) => self.heed(times, now),
            WorkerLoopEvent::Claimed(found) => self.claimed(found, now),
            WorkerLoopEvent::Started(started) => {
                self.act(WorkerEffect::Write(PendingWrite::Started(started)))
            }
            WorkerLoopEvent::Ended { slot, finish, .. } => self.ended(slot, finish, now),
            WorkerLoopEvent::Settled {
                attempt_id,
                outcome,
            } => self.settled(attempt_id, outcome),
            WorkerLoopEvent::Refused { attempt_id, error } => {
                self.settled(attempt_id, None);
                // Only the end of its lease will free the task.
                self.fail(error, now);
            }
            WorkerLoopEvent::Unwritten(error) => self.away(error, now),
            WorkerLoopEvent::Told { tid, message } => self.apply_command(tid, message, now),
            WorkerLoopEvent::Audited { held, assigned } => self.compare(&held, &assigned),
            WorkerLoopEvent::LeaseLost => self.lose_lease(),
        }
        self.go_on(now);
        std::mem::take(&mut self.effects)
    }

    /// When to be told that time has passed, if nothing happens before.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        let idle = self
            .options
            .idle_exit
            .filter(|patience| !patience.is_zero() && self.is_quiet() && !self.paused);
        [
            self.options.only.is_none().then_some(self.purge_at),
            self.audits().then_some(self.audit_at),
            self.retire_at.filter(|_| !self.retired),
            self.backlog.oldest().map(|since| since + PATIENCE),
            self.stop.deadline(),
            self.leave_by,
            idle.map(|patience| self.idle_since.saturating_add(patience)),
            self.wants(None).map(|_| self.claim_at),
            self.classes
                .opens_at()
                .filter(|at| self.wants(Some(*at)).is_some())
                .map(|at| at.max(self.claim_at)),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    // -- what others see of it

    pub(super) fn status(&self) -> &'static str {
        match self.stop.stage() {
            StopStage::Running if self.paused => "paused",
            StopStage::Running if self.retired => "draining",
            StopStage::Running if self.busy() == 0 && self.is_spent() => "draining",
            StopStage::Running if self.busy() == 0 => "listening",
            // Not `running`: that is what tasks are, and whoever looks for those in `ps` wants no worker.
            StopStage::Running => "busy",
            StopStage::Draining => "draining",
            StopStage::Terminating | StopStage::Killing => "stopping",
        }
    }

    pub(super) fn registered_status(&self) -> WorkerStatus {
        match self.stop.stage() {
            // Nobody is to wait for it.
            StopStage::Running if self.retired || self.is_spent() => WorkerStatus::Draining,
            StopStage::Running if self.paused => WorkerStatus::Paused,
            StopStage::Running => WorkerStatus::Active,
            _ => WorkerStatus::Draining,
        }
    }

    pub(super) fn has_ended_task(&self) -> bool {
        self.has_ended_task
    }

    pub(super) fn busy(&self) -> u32 {
        self.classes.busy() as u32
    }

    /// Whether tasks are at hand that will begin, and so end, soon.
    pub(super) fn has_more(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// The attempts whose end is not known to the broker.
    pub(super) fn open(&self) -> impl Iterator<Item = AttemptId> {
        self.slots
            .iter()
            .flatten()
            .map(|running| running.attempt_id)
            .chain(self.unsettled.iter().copied())
    }

    // -- intake

    /// The one place that says whether tasks are begun: a worker that retires stops here.
    fn takes_tasks(&self) -> bool {
        let is_done = self.only_done || self.retired || self.is_spent();
        !self.paused && !self.lease_lost && !is_done && self.stop.stage() == StopStage::Running
    }

    /// How many attempts it may still begin.
    fn left(&self) -> Option<u64> {
        self.options
            .most_tasks()
            .map(|max| max.saturating_sub(self.begun))
    }

    /// Whether it has begun all that it may.
    fn is_spent(&self) -> bool {
        self.left() == Some(0)
    }

    /// How many tasks to ask for, if any: a worker that may take only so many is bounded here.
    fn wants(&self, now: Option<Duration>) -> Option<u32> {
        if self.claiming || !self.takes_tasks() {
            return None;
        }
        // Without a time: at some time from now on.
        let free = self.classes.free_for_claim(now.unwrap_or_default()) as u32;
        let max = match self.options.only {
            Some(_) if self.unsettled.is_empty() && self.backlog.is_empty() => free.min(1),
            Some(_) => 0,
            // One is enough to see whether it is better by now.
            None if self.starved.is_some() => free.min(1).saturating_sub(self.backlog.len() as u32),
            None => self.backlog.wants(free),
        };
        let room = self.left().map_or(u64::MAX, |left| {
            left.saturating_sub(self.backlog.len() as u64)
        });
        let max = u64::from(max).min(room) as u32;
        (max > 0).then_some(max)
    }

    fn claimed(&mut self, found: Result<ClaimResult>, now: Duration) {
        self.claiming = false;
        if found.is_ok() {
            (self.away_since, self.claims_without_space) = (None, 0);
        }
        match found {
            Ok(ClaimResult::Tasks(mut claims)) => {
                // A server that forgot a claim of this worker gives the same attempt out again. It is under way.
                let held: HashSet<AttemptId> = self.held().into_iter().collect();
                claims.retain(|claim| {
                    let attempt_id = claim.attempt_id;
                    !held.contains(&attempt_id) && !self.unsettled.contains(&attempt_id)
                });
                self.classes.note_claimed(&claims, now);
                if self.takes_tasks() {
                    self.backlog.push(claims, now);
                } else {
                    claims.into_iter().for_each(|claim| {
                        self.give_back(claim.attempt_id, "its worker takes no tasks")
                    });
                }
            }
            Ok(ClaimResult::Nothing) => self.nothing_waits = true,
            Ok(ClaimResult::Over) => self.only_done = true,
            Err(Error::NotFound(owner)) if owner == self.tid => self.lose_lease(),
            Err(error) if error.is_retryable() => {
                let pause = if error.is_out_of_space() {
                    self.claims_without_space += 1;
                    space::BACKOFF.pause(self.claims_without_space)
                } else {
                    ERROR_PAUSE
                };
                self.claim_at = now + pause;
                self.away(error, now);
            }
            Err(error) => self.fail(error, now),
        }
    }

    /// The broker could not do what it was asked to. Whether that may go on depends on why: a full disk may be emptied, and somebody who
    /// is there is needed for that; a server that has been away for long enough is taken for gone.
    fn away(&mut self, error: Error, now: Duration) {
        let is_over = match error {
            // The engine has tried for as long as its URL says.
            Error::Unreachable { .. } => true,
            Error::AgentGone { .. } => {
                let since = *self.away_since.get_or_insert(now);
                now.saturating_sub(since) >= self.options.give_up_after
            }
            _ => false,
        };
        if is_over {
            self.fail(error, now);
        }
    }

    fn fill_slots(&mut self, now: Duration) {
        while !self.is_spent() && self.classes.has_any_room() {
            let classes = &self.classes;
            let Some(claim) = self.backlog.pop_if(|claim| classes.has_room(claim)) else {
                return;
            };
            let Some(slot) = self.classes.take(&claim.spec) else {
                return;
            };
            self.begun += 1;
            let attempt_id = claim.attempt_id;
            self.slots[slot] = Some(RunningAttempt {
                attempt_id,
                began: now,
                give_back: false,
                paused: false,
                told: None,
            });
            self.act(WorkerEffect::Run {
                slot,
                claim: Box::new(claim),
            });
        }
    }

    // -- what slots and ledger tell

    fn ended(&mut self, slot: usize, finish: Box<Completion>, now: Duration) {
        let Some(running) =
            self.slots[slot].take_if(|running| running.attempt_id == finish.attempt_id)
        else {
            return;
        };
        self.classes.release(slot);
        let attempt_id = finish.attempt_id;
        let obeyed = matches!(
            finish.report.exit,
            ExitStatus::Cancelled | ExitStatus::Killed
        );
        self.late.extend(
            running
                .told
                .filter(|_| !obeyed)
                .map(|word| (attempt_id.tid, word)),
        );
        if !matches!(finish.report.exit, ExitStatus::ResourceExhausted { .. }) {
            self.backlog.ran_for(now.saturating_sub(running.began));
        }
        self.idle_since = now;
        self.nothing_waits = false;
        self.unsettled.insert(attempt_id);
        self.note_want(&finish.report.exit, now);
        // What was killed because the lease is lost was not killed on request: the task goes on elsewhere.
        let entry = if (running.give_back || self.lease_lost) && obeyed {
            PendingWrite::Release(Release {
                attempt_id,
                reason: "its worker was told to give it back".into(),
            })
        } else {
            PendingWrite::Finish(finish)
        };
        self.act(WorkerEffect::Write(entry));
    }

    /// A worker that can begin nothing is no place for tasks: others may have what it lacks, and it looks again after a while.
    fn note_want(&mut self, exit: &ExitStatus, now: Duration) {
        let before = self.starved.take().map_or(0, |(_, times)| times);
        if let ExitStatus::ResourceExhausted { message } = exit {
            self.starved = Some((message.clone(), before + 1));
            self.claim_at =
                now + (STARVED_PAUSE * 2u32.pow(before.min(8))).min(LONGEST_STARVED_PAUSE);
            self.return_backlog("its worker can start no process");
            if std::mem::take(&mut self.claiming) {
                self.act(WorkerEffect::Unclaim);
            }
        }
    }

    fn settled(&mut self, attempt_id: AttemptId, outcome: Option<CompletionOutcome>) {
        self.unsettled.remove(&attempt_id);
        // It may be one that waits again.
        self.nothing_waits = false;
        if outcome.is_some() {
            self.away_since = None;
        }
        if let Some(CompletionOutcome::Done(_)) = outcome {
            self.has_ended_task = true;
            self.only_done |= self.options.only == Some(attempt_id.tid);
        }
        for (tid, message) in self.late.extract_if(.., |(tid, _)| *tid == attempt_id.tid) {
            if let Some(CompletionOutcome::Again(_)) = outcome {
                self.effects
                    .push(WorkerEffect::Errand(CommandJob::PassOn { tid, message }));
            }
        }
    }

    // -- time, and what follows

    fn tick(&mut self, now: Duration) {
        if !self.retired && self.retire_at.is_some_and(|at| at <= now) {
            self.retired = true;
            self.return_backlog("its worker is old enough to leave");
        }
        for claim in self.backlog.overdue(now) {
            self.give_back(claim.attempt_id, "it waited too long for a slot");
        }
        if let Some(stage) = self.stop.tick(now) {
            self.enter(stage, now);
        }
    }

    /// What is to be done whatever has happened.
    fn go_on(&mut self, now: Duration) {
        if self.takes_tasks() {
            self.fill_slots(now);
        }
        if let Some(end) = self.end(now) {
            return self.act(WorkerEffect::End(end));
        }
        if self.claiming && !self.takes_tasks() {
            self.claiming = false;
            self.act(WorkerEffect::Unclaim);
        }
        if self.claiming && self.classes.has_room_for_excluded() {
            self.claiming = false;
            self.act(WorkerEffect::Unclaim);
        }
        if let Some(max) = self.wants(Some(now)).filter(|_| self.claim_at <= now) {
            self.claiming = true;
            let wait = match self.options.idle_exit {
                _ if self.options.only.is_some() => LOOK,
                Some(Duration::ZERO) => Duration::ZERO,
                _ => WAIT,
            };
            let without = if self.backlog.claims_ahead() {
                self.classes.exclude_nothing();
                Vec::new()
            } else {
                self.classes.exclude_full()
            };
            self.act(WorkerEffect::Claim { max, wait, without });
        }
        if self.options.only.is_none() && self.purge_at <= now {
            self.purge_at = now + PURGE_EVERY;
            self.act(WorkerEffect::Purge);
        }
        if self.audits() && self.audit_at <= now {
            self.audit_at = now + self.options.lease / AUDITS_PER_LEASE;
            let held = self.held();
            self.act(WorkerEffect::Audit { held });
        }
    }

    fn end(&mut self, now: Duration) -> Option<Result<LoopEnd>> {
        if !self.is_quiet() && self.leave_by.is_none_or(|by| now < by) {
            return None;
        }
        if let Some(error) = self.failure.take() {
            return Some(Err(error));
        }
        if let Some(error) = self.want() {
            return Some(Err(error));
        }
        let idle = self.options.idle_exit.filter(|_| !self.paused);
        // Its registration may have ended with its task: that is no loss.
        let reason = if self.only_done {
            WorkerEndReason::Done
        } else if self.stop.stage() != StopStage::Running {
            WorkerEndReason::Stopped
        } else if self.lease_lost {
            return Some(Ok(LoopEnd::LeaseLost));
        } else if self.is_spent() {
            WorkerEndReason::Done
        } else if self.retired {
            WorkerEndReason::Aged
        } else if idle? == Duration::ZERO {
            // Zero means: when a look at the queue has found nothing since the last task.
            return self
                .nothing_waits
                .then_some(Ok(LoopEnd::Left(WorkerEndReason::Idle)));
        } else {
            return (now.saturating_sub(self.idle_since) >= idle?)
                .then_some(Ok(LoopEnd::Left(WorkerEndReason::Idle)));
        };
        Some(Ok(LoopEnd::Left(reason)))
    }

    /// Why a worker leaves that has been of no use: it was there for this very task, or has nothing more to try.
    fn want(&self) -> Option<Error> {
        let has_one = self.options.only.is_some() && !self.only_done;
        let (reason, times) = self.starved.as_ref()?;
        let is_in_vain = self.nothing_waits || *times >= STARVED_TIMES;
        let leaves = has_one
            || self.is_spent()
            || (self.options.idle_exit == Some(Duration::ZERO) && is_in_vain);
        let is_free = self.stop.stage() == StopStage::Running && !self.lease_lost;
        let want = || Error::Starved {
            what: "process for a task".into(),
            reason: reason.clone(),
        };
        (leaves && is_free).then(want)
    }

    /// Whether nothing runs, waits for a slot, or waits to be written.
    fn is_quiet(&self) -> bool {
        self.busy() == 0 && self.backlog.is_empty() && self.unsettled.is_empty()
    }

    pub(super) fn act(&mut self, effect: WorkerEffect) {
        self.effects.push(effect);
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
