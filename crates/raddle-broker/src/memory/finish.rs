//! The end of attempts, and of tasks.

use raddle_core::{EventKind, Exit, Next, Report, Tid, settle};

use super::state::{Due, End, Now, Place, Run, State};
use crate::request::{Fence, Finish, Stream, Verdict};

impl State {
    /// Ends an attempt: result, state, event, removal and what follows it in one step.
    pub(super) fn finish(&mut self, finish: Finish, now: Now) -> Verdict {
        let Finish { fence, report, stdout, stderr } = finish;
        let Some(run) = self.active(fence) else { return self.refuse(fence, now) };
        self.append_output(fence, Stream::Stdout, stdout);
        self.append_output(fence, Stream::Stderr, stderr);
        let has_run = report.exit.is_success() || report.started_at.is_some();
        if has_run && !run.running {
            self.log(fence, EventKind::Running, Some(run.owner), None, now);
        }
        let follow_ups = if report.exit.is_success() { self.take_chained(fence) } else { Vec::new() };
        let verdict = self.settle(fence, run, report, now);
        // Their keys are looked at now that its own is free: a task may follow itself.
        follow_ups.into_iter().for_each(|submit| _ = self.admit(submit, now));
        if matches!(verdict, Verdict::Done(_)) {
            self.dismiss(run.owner);
        }
        verdict
    }

    /// Carries out what follows from the end of an attempt.
    pub(super) fn settle(&mut self, fence: Fence, run: Run, report: Report, now: Now) -> Verdict {
        let owner = run.owner;
        let tid = fence.tid;
        let task = self.known(tid);
        match settle(&task.spec, tid, task.tally, &report.exit) {
            Next::Done { state, dead, tally } => {
                task.tally = tally;
                self.end(fence, Some(owner), End { state, dead, report, when: now })
            }
            Next::Again { pause, tally } => {
                task.tally = tally;
                let kind = settle::event_before_another(&report.exit);
                self.log(fence, kind, Some(owner), Some(report.exit.to_string()), now);
                let due = now.plus(pause);
                self.wait_again(tid, run, due, now)
            }
        }
    }

    /// Lets a task wait for its next attempt; held, if the last one was told to stand still: nobody has said that it may go on.
    pub(super) fn wait_again(&mut self, tid: Tid, last: Run, due: Due, now: Now) -> Verdict {
        if last.paused {
            self.move_to(tid, Place::Held(Some(due).filter(|due| due.due > now.mono)));
        } else {
            self.line_up(tid, Some(due), now);
        }
        // Words that came for the attempt and were not obeyed in time hold for the task.
        self.obey_pending(tid, last.told, now).unwrap_or(Verdict::Again(due.at))
    }

    /// Brings a task to its terminal state.
    pub(super) fn end(&mut self, fence: Fence, worker: Option<Tid>, end: End) -> Verdict {
        let End { state, when, .. } = end;
        let detail = Some(&end.report.exit).filter(|exit| !exit.is_success()).map(Exit::to_string);
        self.log(fence, state.into(), worker, detail, when);
        self.move_to(fence.tid, Place::Done(Box::new(end)));
        Verdict::Done(state)
    }

    /// The account of an attempt that nobody is left to give, or of none at all.
    pub(super) fn report_of(&self, fence: Fence, exit: Exit, now: Now) -> Report {
        let written = |stream| self.output_of(fence, stream).len() as u64;
        let (stdout_bytes, stderr_bytes) = (written(Stream::Stdout), written(Stream::Stderr));
        Report { stdout_bytes, stderr_bytes, ..Report::bare(exit, now.wall) }
    }

    /// Refuses a write of an attempt that is not the latest any more.
    pub(super) fn refuse(&mut self, fence: Fence, now: Now) -> Verdict {
        self.stale_writes += 1;
        // The log holds nothing of tasks that are not there: the record may have been purged meanwhile.
        if self.tasks.contains_key(&fence.tid) {
            self.log(fence, EventKind::StaleWrite, None, None, now);
        }
        Verdict::Stale
    }
}
