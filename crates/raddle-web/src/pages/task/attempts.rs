//! The attempts of a task, from its events.

use jiff::Timestamp;
use raddle_model::{TaskEvent, TaskEventKind, TaskState, TaskView, Tid};

use crate::pages::charts::Span;

/// How many attempts are drawn, the newest.
const DRAWN: usize = 12;

/// An attempt.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Attempt {
    pub(super) number: u32,
    pub(super) worker: Option<Tid>,
    /// Since when the task waited for it.
    pub(super) waited_from: Timestamp,
    pub(super) claimed: Option<Timestamp>,
    pub(super) began: Option<Timestamp>,
    pub(super) ended: Option<Timestamp>,
    pub(super) outcome: Option<TaskEventKind>,
    pub(super) detail: Option<String>,
}

/// The attempts, oldest first.
pub(super) fn of_events(task: &TaskView, events: &[TaskEvent]) -> Vec<Attempt> {
    let mut attempts: Vec<Attempt> = Vec::new();
    let mut waits_from = task.created_at;
    for event in events.iter().filter(|event| event.attempt > 0) {
        if attempts.last().is_none_or(|last| last.number < event.attempt) {
            attempts.push(Attempt {
                number: event.attempt,
                worker: event.worker,
                waited_from: waits_from,
                claimed: None,
                began: None,
                ended: None,
                outcome: None,
                detail: None,
            });
        }
        let Some(attempt) = attempts.iter_mut().rfind(|it| it.number == event.attempt) else {
            continue;
        };
        attempt.worker = attempt.worker.or(event.worker);
        match event.event {
            TaskEventKind::Spawning => attempt.claimed = Some(event.at),
            TaskEventKind::Running => attempt.began = Some(event.at),
            TaskEventKind::Retrying | TaskEventKind::Released | TaskEventKind::Reclaimed => {
                attempt.end(event);
                waits_from = event.at;
            }
            kind if kind.is_terminal() => attempt.end(event),
            _ => {}
        }
    }
    attempts
}

impl Attempt {
    fn end(&mut self, event: &TaskEvent) {
        self.ended = Some(event.at);
        self.outcome = Some(event.event);
        self.detail.clone_from(&event.detail);
    }
}

/// The attempts as rows of a chart: how long each waited and ran.
pub(super) fn gantt_rows(
    task: &TaskView,
    attempts: &[Attempt],
    now: Timestamp,
) -> Vec<(String, Vec<Span>)> {
    let span = |from, to: Timestamp, class, word: &str| {
        let length = raddle_client::text::age(from, to);
        Span {
            from,
            to: to.max(from),
            class,
            label: format!("{word} {length}"),
        }
    };
    let mut rows: Vec<_> = attempts
        .iter()
        .map(|attempt| {
            let begun = attempt.began.or(attempt.claimed).or(attempt.ended).unwrap_or(now);
            let class = match attempt.outcome {
                Some(TaskEventKind::Completed) => "f-ok",
                Some(TaskEventKind::Timeout | TaskEventKind::Cancelled) => "f-warn",
                Some(TaskEventKind::Released) => "f-wait",
                Some(_) => "f-bad",
                None => "f-run",
            };
            let ran = span(begun, attempt.ended.unwrap_or(now), class, "ran");
            let waited = span(attempt.waited_from, begun, "f-wait", "waited");
            (format!("Attempt {}", attempt.number), vec![waited, ran])
        })
        .collect();
    let waits_again = task.state == TaskState::Created;
    if waits_again {
        let from = attempts.last().and_then(|last| last.ended).unwrap_or(task.created_at);
        rows.push(("Waits".into(), vec![span(from, now, "f-wait", "waits for")]));
    }
    rows.split_off(rows.len().saturating_sub(DRAWN))
}

#[cfg(test)]
mod tests {
    use raddle_model::TaskSpec;

    use super::*;

    #[test]
    fn attempts_follow_from_events() {
        let at = |secs| Timestamp::from_second(1_700_000_000 + secs).unwrap();
        let tid = Tid::from_u64(1_700_000_000_000_000_000).unwrap();
        let event = |second, attempt, event| TaskEvent {
            id: Tid::from_u64(tid.as_u64() + second as u64).unwrap(),
            tid,
            event,
            at: at(second),
            attempt,
            worker: None,
            detail: None,
        };
        use TaskEventKind::{Completed, Created, Retrying, Running, Spawning};
        let events = [
            event(0, 0, Created),
            event(2, 1, Spawning),
            event(3, 1, Running),
            event(5, 1, Retrying),
            event(9, 2, Spawning),
            event(9, 2, Running),
            event(12, 2, Completed),
        ];
        let mut task = TaskView::new(tid, TaskSpec::command(["true"]), at(0));
        let waits = gantt_rows(&task, &[], at(1));
        assert_eq!(waits.len(), 1);
        task.state = TaskState::Completed;
        let attempts = of_events(&task, &events);
        let times = attempts.iter().map(|it| (it.waited_from, it.began, it.ended, it.outcome));
        assert_eq!(
            times.collect::<Vec<_>>(),
            [
                (at(0), Some(at(3)), Some(at(5)), Some(Retrying)),
                (at(5), Some(at(9)), Some(at(12)), Some(Completed)),
            ]
        );
        assert_eq!(gantt_rows(&task, &attempts, at(20)).len(), 2);
    }
}
