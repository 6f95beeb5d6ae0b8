//! `raddle tid` and `raddle task status`: one task or worker.

use jiff::Timestamp;
use raddle_client::text::target_text;
use raddle_model::{Target, TaskView, Tid};
use raddle_view::task::{attempt_limits, expiry, lost_output, return_value, task_record};
use serde_json::json;

use crate::{args::TaskArg, context::Context, error::Outcome, format, table, tid, worker};

/// How many characters of a return value `task status` shows.
const MAX_VALUE_CHARS: usize = 200;

/// Prints the full id.
pub(super) async fn tid(context: &Context, arg: TaskArg) -> Outcome {
    let broker = context.open_existing().await?;
    let (task, _) = tid::find_task_or_worker(&*broker, arg).await?;
    let record = json!({ "tid": task.tid, "short": task.tid.short().to_string() });
    context.show(&record, || format!("{}\n", task.tid))
}

/// Prints a task or worker.
pub(super) async fn status(context: &Context, arg: TaskArg) -> Outcome {
    let broker = context.open_existing().await?;
    let (task, runs) = tid::find_task_or_worker(&*broker, arg).await?;
    let lost = lost_output(&*broker, &task).await?;
    context.show(&task_record(&task), || text(&task, &runs, &lost))
}

fn text(task: &TaskView, runs: &[Tid], lost: &[String]) -> String {
    let now = Timestamp::now();
    let mut lines = vec![
        ("task", task.tid.to_string()),
        ("name", task.spec.display_name().into()),
    ];
    lines.push(("state", state_text(task)));
    lines.push(("target", target_text(task)));
    lines.push((
        "queue",
        format!("{}, priority {}", task.spec.queue, task.spec.priority),
    ));
    if matches!(task.spec.target, Target::Routine(_) | Target::Handler(_)) {
        // A worker without hosts gives a shared task a process of its own.
        lines.push(("isolation", task.spec.isolation().to_string()));
    }
    if !task.spec.requires.is_empty() {
        lines.push(("requires", task.spec.requires.to_string()));
    }
    if !worker::is_worker(task) {
        lines.extend(attempt_lines(task));
    }
    let optional = [
        ("progress", task.progress.as_ref().map(format::progress)),
        ("chained", (task.chained > 0).then(|| chained_text(task))),
        ("parent", task.parent.map(|tid| tid.to_string())),
        (
            "runs",
            (!runs.is_empty()).then(|| {
                runs.iter()
                    .map(Tid::to_string)
                    .collect::<Vec<_>>()
                    .join(", ")
            }),
        ),
        ("worker", task.worker.map(|tid| tid.to_string())),
        (
            "pid",
            task.pid
                .filter(|_| !task.state.is_terminal())
                .map(|pid| pid.to_string()),
        ),
        ("directory", task.spec.cwd.clone()),
        (
            "created",
            Some(format!(
                "{} ({} ago)",
                format::time(task.created_at),
                format::age(task.created_at, now)
            )),
        ),
        (
            "not before",
            task.run_at
                .filter(|_| !task.state.is_terminal())
                .map(format::time),
        ),
        ("expires", expiry(task).map(format::time)),
        (
            "finished",
            task.finished_at
                .map(|at| format!("{} ({} ago)", format::time(at), format::age(at, now))),
        ),
        ("took", task.run_time(now).map(format::three_digits)),
    ];
    lines.extend(
        optional
            .into_iter()
            .filter_map(|(label, value)| Some((label, value?))),
    );
    if let Some(report) = &task.report {
        lines.push(("exit", report.exit.to_string()));
        lines.extend(return_value(Some(report)).map(|value| ("returned", truncate(value))));
        lines.push((
            "output",
            format!(
                "{} bytes, {} on stderr",
                report.stdout_bytes, report.stderr_bytes
            ),
        ));
        lines.extend(lost.iter().map(|lost| ("lost", lost.clone())));
        let cpu = std::time::Duration::from_micros(report.usage.user_us + report.usage.system_us);
        lines.push((
            "used",
            format!(
                "{} MiB at most, {} of cpu",
                report.usage.peak_rss_bytes >> 20,
                format::three_digits(cpu)
            ),
        ));
    }
    table::labelled(&lines)
}

/// The beginning of a value as JSON. `raddle result` prints all of it.
fn truncate(value: &serde_json::Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!(
            "{}… ({} bytes, see 'raddle result')",
            &text[..end],
            text.len()
        ),
        None => text,
    }
}

/// The number of the latest attempt, and the failures and losses with their limits. The number also
/// counts released attempts, which are not charged.
fn attempt_lines(task: &TaskView) -> Vec<(&'static str, String)> {
    let limits = attempt_limits(task);
    let of = |limit: Option<u32>| limit.map_or_else(String::new, |limit| format!(" of {limit}"));
    let mut lines = vec![("attempt", task.attempt.to_string())];
    lines.push((
        "failures",
        format!(
            "{}{}",
            task.failures,
            of(limits.map(|(failures, _)| failures))
        ),
    ));
    if task.losses > 0 {
        lines.push((
            "losses",
            format!(
                "{}{}, by lost workers",
                task.losses,
                of(limits.map(|(_, losses)| losses))
            ),
        ));
    }
    lines
}

fn chained_text(task: &TaskView) -> String {
    format!(
        "{}, submitted if this attempt succeeds",
        format::count(task.chained, "task")
    )
}

fn state_text(task: &TaskView) -> String {
    let mut text = task.state.to_string();
    if task.paused {
        text.push_str(", paused");
    }
    if task.dead {
        text.push_str(", in the dead-letter queue");
    }
    text
}
