//! Changes of one task, decided from a snapshot. Pure: nothing here talks to the server.

use raddle_model::{
    AttemptReport, ControlMessage, ExitStatus, NextStep, TaskEventKind, TaskSpec, TaskState, Tid,
    apply_command::{self, CommandEffect},
    next_step,
    spec::ReservedPolicy,
    time::nanos_after,
};
use serde::Serialize;

use super::{
    record::{FinishedRecord, Record, StoredSpec, TaskLocation},
    schema::output_field,
    value::{at_micros, at_nanos},
};
use raddle_broker::{
    AttemptId, CompletionOutcome, OutputStream, Result,
    rollups::{Histogram, run_time},
};

/// A task as it was read.
pub(super) struct Snapshot {
    pub(super) tid: Tid,
    /// The stored spec with its header.
    pub(super) stored: String,
    /// The stored record; empty if there is none.
    pub(super) raw: String,
    pub(super) record: Record,
    pub(super) done: Option<FinishedRecord>,
    /// The stored final record up to the report; empty if there is none.
    pub(super) raw_done: String,
    /// The stored control messages.
    pub(super) commands: Vec<String>,
    /// The server's time of the read, in microseconds.
    pub(super) now: i64,
}

/// A change that is being decided.
pub(super) struct Draft<'a> {
    before: &'a Snapshot,
    record: Record,
    end: Option<ChangeEnd>,
    has_applied_commands: bool,
    is_retried: bool,
    /// The new partition and the stored spec, if the task moves to another queue.
    moved: Option<(String, String)>,
    events: Vec<ChangeEvent>,
    replies: Vec<String>,
    /// Ends of output to store.
    pub(super) output: Vec<(OutputStream, Tail)>,
    /// Apply only if this worker's lease has expired.
    pub(super) lost_owner: Option<Tid>,
}

/// The end of an attempt's output.
pub(super) struct Tail {
    /// Whether it is the whole output.
    pub(super) whole: bool,
    pub(super) bytes: Vec<u8>,
}

struct ChangeEnd {
    state: TaskState,
    dead: bool,
    report: AttemptReport,
    owner: Option<Tid>,
}

#[derive(Clone, Serialize)]
struct ChangeEvent {
    kind: u8,
    worker: String,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// A change as `apply_changes.lua` expects it. Absent fields are not checked or applied.
#[derive(Serialize)]
pub(super) struct Change {
    tid: String,
    partition: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_partition: Option<String>,
    /// The stored spec, if it changes with the partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<String>,
    from: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    commands: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_owner: Option<String>,
    /// Whether a worker leaves the registry.
    removes_worker: bool,
    /// Whether the chained tasks are submitted.
    submits_chained: bool,
    changes_status: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished: Option<String>,
    state: u8,
    name: String,
    /// The bucket of the time that the final attempt ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<usize>,
    /// Whether another attempt follows one that failed.
    retried: bool,
    dead_letter: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    deletes_commands: bool,
    events: Vec<ChangeEvent>,
    replies: Vec<String>,
    output: Vec<OutputAppend>,
}

/// Bytes to append to the output of an attempt, by their index in the arguments.
#[derive(Serialize)]
struct OutputAppend {
    field: String,
    /// Whether they are the whole output.
    whole: bool,
    bytes: usize,
}

/// The bucket of the time that an attempt ran, if it did.
pub(super) fn run_bucket(report: &AttemptReport) -> Option<usize> {
    run_time(report).map(Histogram::bucket)
}

impl Snapshot {
    pub(super) fn spec(&self) -> Result<TaskSpec> {
        StoredSpec::parse(self.tid, &self.stored)?.spec(self.tid)
    }

    pub(super) fn is_service(&self) -> bool {
        self.record.partition.is_none()
    }

    /// The final state, once it is reached.
    pub(super) fn end(&self) -> Option<TaskState> {
        self.done.as_ref().map(|done| done.state)
    }

    pub(super) fn state(&self) -> TaskState {
        self.end().unwrap_or_else(|| self.record.state())
    }

    /// Whether this attempt is the current one. Workers' own tasks end only by leaving the
    /// registry.
    pub(super) fn is_current_attempt(&self, attempt_id: AttemptId) -> bool {
        let attempt = (self.record.counters.attempt, self.record.owner);
        self.done.is_none()
            && self.record.is_active()
            && attempt == (attempt_id.attempt, Some(attempt_id.owner))
            && !self.is_service()
    }

    /// A report for an attempt that cannot report itself.
    pub(super) fn report(&self, exit: ExitStatus) -> AttemptReport {
        AttemptReport::bare(exit, at_micros(self.now))
    }
}

impl<'a> Draft<'a> {
    pub(super) fn new(before: &'a Snapshot) -> Self {
        Self {
            before,
            record: before.record.clone(),
            end: None,
            has_applied_commands: false,
            is_retried: false,
            moved: None,
            events: Vec::new(),
            replies: Vec::new(),
            output: Vec::new(),
            lost_owner: None,
        }
    }

    /// Adds an event.
    pub(super) fn event(
        &mut self,
        kind: TaskEventKind,
        worker: Option<Tid>,
        detail: Option<String>,
    ) {
        let worker = worker.map_or(String::new(), |worker| worker.to_string());
        self.events.push(ChangeEvent {
            kind: kind as u8,
            worker,
            attempt: self.record.counters.attempt,
            detail,
        });
    }

    /// Records that an attempt is paused, or continues.
    pub(super) fn pause(&mut self, paused: bool) {
        self.event(
            if paused {
                TaskEventKind::Paused
            } else {
                TaskEventKind::Resumed
            },
            None,
            None,
        );
        self.record.paused = paused;
    }

    /// Ends the attempt, and applies the decision that follows.
    pub(super) fn end_attempt(&mut self, report: AttemptReport) -> CompletionOutcome {
        let owner = self.before.record.owner;
        let next = match self.before.spec() {
            Ok(spec) => {
                next_step::decide_next(&spec, self.before.tid, self.record.counters, &report.exit)
            }
            // A task with an unreadable spec cannot be retried.
            Err(_) => NextStep::Finish {
                state: TaskState::Failed,
                dead: false,
                counters: self.record.counters,
            },
        };
        match next {
            NextStep::Finish {
                state,
                dead,
                counters,
            } => {
                self.record.counters = counters;
                self.finish(state, dead, report, owner);
                CompletionOutcome::Finished(state)
            }
            NextStep::Retry { pause, counters } => {
                self.record.counters = counters;
                self.is_retried = true;
                let kind = next_step::event_before_another(&report.exit);
                self.event(kind, owner, Some(report.exit.to_string()));
                self.requeue(nanos_after(self.before.now.saturating_mul(1000), pause))
            }
        }
    }

    /// Returns the task to its queue as if it had not been claimed.
    pub(super) fn give_back(&mut self, kind: TaskEventKind, reason: String) -> CompletionOutcome {
        self.event(kind, self.before.record.owner, Some(reason));
        self.requeue(self.before.now.saturating_mul(1000))
    }

    /// Applies a command to a waiting task, and replies unless that ended it.
    pub(super) fn apply_command(&mut self, message: &ControlMessage) {
        match apply_command::apply_command(message, self.is_paused(), self.is_requeued_on_stop()) {
            CommandEffect::End(state, exit) => return self.end_waiting(state, exit),
            CommandEffect::Hold => {
                self.event(TaskEventKind::Paused, None, None);
                self.record.location = TaskLocation::Paused;
            }
            CommandEffect::Free => {
                self.event(TaskEventKind::Resumed, None, None);
                self.enqueue(self.record.run_at);
            }
            CommandEffect::Nothing => {}
        }
        let answer = apply_command::answer(message, self.is_paused());
        self.replies
            .push(serde_json::to_string(&answer).expect("a reply has only string keys"));
    }

    /// Moves the waiting task to another partition, with its spec as it is to be stored.
    pub(super) fn move_to(&mut self, partition: String, stored: String) {
        self.record.partition = Some(partition.clone());
        self.moved = Some((partition, stored));
    }

    /// Ends the task.
    pub(super) fn finish(
        &mut self,
        state: TaskState,
        dead: bool,
        report: AttemptReport,
        owner: Option<Tid>,
    ) {
        let detail = (!report.exit.is_success()).then(|| report.exit.to_string());
        self.event(state.into(), owner, detail);
        self.end = Some(ChangeEnd {
            state,
            dead,
            report,
            owner,
        });
    }

    /// The state after the change.
    pub(super) fn state(&self) -> TaskState {
        self.end
            .as_ref()
            .map_or_else(|| self.record.state(), |end| end.state)
    }

    /// The change as `apply_changes.lua` expects it. Output bytes are added to `bytes`.
    pub(super) fn change(&self, bytes: &mut Vec<Vec<u8>>) -> Change {
        let before = self.before;
        let (done, expires, key) = match &self.end {
            Some(end) => {
                let report =
                    serde_json::to_string(&end.report).expect("a report has only string keys");
                let done = FinishedRecord {
                    state: end.state,
                    dead: end.dead,
                    owner: end.owner,
                    counters: self.record.counters,
                    finished_at: before.now,
                    service: before.is_service(),
                    events: self.record.events.clone(),
                    report,
                };
                let expires = (before.now / 1000).saturating_add_unsigned(self.record.ttl);
                let key = Some(self.record.key.clone()).filter(|key| !key.is_empty());
                (Some(done.to_string()), Some(expires.to_string()), key)
            }
            None => (None, None, None),
        };
        // Rounded up, so that it is not early.
        let due = self
            .record
            .run_at
            .map(|at| (at.saturating_add(999) / 1000).to_string());
        Change {
            tid: before.tid.to_string(),
            partition: before.record.partition.clone().unwrap_or_default(),
            new_partition: self.moved.as_ref().map(|(partition, _)| partition.clone()),
            spec: self.moved.as_ref().map(|(_, stored)| stored.clone()),
            from: before.raw.clone(),
            commands: self.has_applied_commands.then_some(before.commands.len()),
            lost_owner: self.lost_owner.map(|lost_owner| lost_owner.to_string()),
            removes_worker: before.is_service() && self.end.is_some(),
            submits_chained: before.record.chained
                && self
                    .end
                    .as_ref()
                    .is_some_and(|end| end.state == TaskState::Completed),
            changes_status: done.is_some()
                || self.moved.is_some()
                || self.record.location != before.record.location,
            to: done.is_none().then(|| self.record.to_string()),
            due,
            state: self.end.as_ref().map_or(0, |end| end.state as u8),
            name: self.record.name.clone(),
            run: self.end.as_ref().and_then(|end| run_bucket(&end.report)),
            retried: self.is_retried,
            dead_letter: self.end.as_ref().is_some_and(|end| end.dead),
            finished: done,
            expires,
            key,
            deletes_commands: self.has_applied_commands,
            events: self.events.clone(),
            replies: self.replies.clone(),
            output: self
                .output
                .iter()
                .map(|(stream, Tail { whole, bytes: tail })| {
                    bytes.push(tail.clone());
                    OutputAppend {
                        field: output_field(before.tid, before.record.counters.attempt, *stream),
                        whole: *whole,
                        bytes: bytes.len(),
                    }
                })
                .collect(),
        }
    }

    /// Makes the task wait for another attempt, and applies the commands that its worker received
    /// or did not receive in time.
    fn requeue(&mut self, run_at: i64) -> CompletionOutcome {
        self.record.owner = None;
        self.record.claimed_at = None;
        self.record.pid = None;
        self.record.since = None;
        // The script deletes what the attempt has chained.
        self.record.chained = false;
        self.enqueue(Some(run_at));
        // The last attempt was paused and not resumed.
        if std::mem::take(&mut self.record.paused) {
            self.record.location = TaskLocation::Paused;
        }
        self.has_applied_commands = true;
        // The worker had received the command and did not live to obey it.
        if let Some(word) = self.record.pending_command.take()
            && let CommandEffect::End(state, exit) = apply_command::apply_command(
                &ControlMessage::new(word),
                false,
                self.is_requeued_on_stop(),
            )
        {
            self.end_waiting(state, exit);
            return CompletionOutcome::Finished(state);
        }
        for body in &self.before.commands {
            match body.parse::<ControlMessage>() {
                Ok(message) => self.apply_command(&message),
                Err(error) => {
                    self.event(TaskEventKind::ControlIgnored, None, Some(error.to_string()))
                }
            }
            if let Some(end) = &self.end {
                return CompletionOutcome::Finished(end.state);
            }
        }
        CompletionOutcome::Retry(at_nanos(run_at))
    }

    fn enqueue(&mut self, run_at: Option<i64>) {
        self.record.run_at = run_at.filter(|at| *at > self.before.now.saturating_mul(1000));
        self.record.location = if self.record.run_at.is_some() {
            // The claim that makes it ready records when that was.
            self.record.since = None;
            TaskLocation::Delayed
        } else {
            self.record.since = Some(self.before.now);
            TaskLocation::Ready
        };
    }

    pub(super) fn end_waiting(&mut self, state: TaskState, exit: ExitStatus) {
        let report = self.before.report(exit);
        self.finish(state, false, report, None);
    }

    fn is_paused(&self) -> bool {
        self.record.location == TaskLocation::Paused
    }

    /// Whether a stopped task returns to its queue. An unreadable one does not.
    fn is_requeued_on_stop(&self) -> bool {
        self.before
            .spec()
            .is_ok_and(|spec| spec.on_stop == ReservedPolicy::Requeue)
    }
}
