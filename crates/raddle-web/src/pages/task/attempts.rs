//! The attempts of a task as a chart.

use jiff::Timestamp;
use raddle_model::{TaskEventKind, TaskState, TaskView};
use raddle_view::events::AttemptSpan;

use crate::pages::charts::Span;

/// How many attempts are drawn, the newest.
const DRAWN: usize = 12;

/// The attempts as rows of a chart: how long each waited and ran.
pub(super) fn gantt_rows(
    task: &TaskView,
    attempts: &[AttemptSpan],
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
            let begun = attempt.started_at.unwrap_or(attempt.claimed_at);
            let class = match attempt.end {
                Some(TaskEventKind::Completed) => "f-ok",
                Some(TaskEventKind::Timeout | TaskEventKind::Cancelled) => "f-warn",
                Some(TaskEventKind::Released) => "f-wait",
                Some(_) => "f-bad",
                None => "f-run",
            };
            let ran = span(begun, attempt.ended_at.unwrap_or(now), class, "ran");
            let waited = span(
                attempt.waited_from.unwrap_or(begun),
                begun,
                "f-wait",
                "waited",
            );
            (format!("Attempt {}", attempt.attempt), vec![waited, ran])
        })
        .collect();
    let waits_again = task.state == TaskState::Created;
    if waits_again {
        let from = attempts
            .last()
            .and_then(|last| last.ended_at)
            .unwrap_or(task.created_at);
        rows.push(("Waits".into(), vec![span(from, now, "f-wait", "waits for")]));
    }
    rows.split_off(rows.len().saturating_sub(DRAWN))
}
