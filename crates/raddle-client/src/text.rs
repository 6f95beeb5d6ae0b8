//! Text about tasks and workers, for people.

use std::time::Duration;

use jiff::Timestamp;
use raddle_model::{Progress, Target, TaskView};

/// Formats a time to the second.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// Formats a count: `1 task`, `2 tasks`, `2 processes`.
pub fn count(n: u64, what: &str) -> String {
    let end = match n {
        1 => "",
        _ if what.ends_with('s') => "es",
        _ => "s",
    };
    format!("{n} {what}{end}")
}

/// Replaces control characters, which could move the cursor or change colours.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// The time since `then`: `3s`, `5m`, `2h`, `4d`.
pub fn age(then: Timestamp, now: Timestamp) -> String {
    one_unit(Duration::try_from(now.duration_since(then)).unwrap_or_default())
}

/// A duration with one unit: `3s`, `5m`, `2h`, `4d`.
pub fn one_unit(length: Duration) -> String {
    match length.as_secs() {
        secs @ 0..120 => format!("{secs}s"),
        secs @ 120..7_200 => format!("{}m", secs / 60),
        secs @ 7_200..172_800 => format!("{}h", secs / 3600),
        secs => format!("{}d", secs / 86_400),
    }
}

/// A duration to about three digits: `12ms`, `1.2s`, `5m`.
pub fn three_digits(length: Duration) -> String {
    match length.as_millis() {
        millis @ 0..1_000 => format!("{millis}ms"),
        1_000..100_000 => format!("{:.1}s", length.as_secs_f64()),
        _ => one_unit(length),
    }
}

/// The reported progress of a task.
pub fn progress(progress: &Progress) -> String {
    match (progress.percent, progress.message.as_str()) {
        (Some(percent), "") => format!("{percent:.0} %"),
        (Some(percent), message) => format!("{percent:.0} %, {message}"),
        (None, message) => message.to_owned(),
    }
}

/// The target of a task as text: the words of a command, or the name of a routine.
pub fn target_text(task: &TaskView) -> String {
    match &task.spec.target {
        Target::Command(argv) => argv.join(" "),
        Target::Routine(name) => format!("routine {name}"),
        Target::Handler(name) => format!("handler {name}"),
        Target::Service(name) => format!("service {name}"),
        Target::Request(text) => format!("request {text}"),
        _ => "unknown".into(),
    }
}

/// A note for lists, beside the state of a task: how it ended, and why it is held back.
pub fn note(task: &TaskView, now: Timestamp) -> String {
    let exit = task
        .report
        .as_ref()
        .filter(|report| !report.exit.is_success())
        .map(|report| report.exit.to_string());
    let mut notes: Vec<String> = exit.into_iter().collect();
    if task.paused {
        notes.push("paused".into());
    }
    if task.dead {
        notes.push("dead letter".into());
    }
    if let Some(at) = task
        .run_at
        .filter(|at| !task.state.is_terminal() && *at > now)
    {
        notes.push(format!("not before {}", time(at)));
    }
    notes.join(", ")
}

/// Splits a message into the error and the hint: the part that names a command or a flag.
pub fn split_hint(message: &str) -> (&str, Option<&str>) {
    let named = ["'raddle ", "--"]
        .iter()
        .flat_map(|mark| message.match_indices(mark))
        .map(|(at, _)| at);
    let begins = named.filter_map(|at| {
        let ends = [": ", "; ", ". "]
            .iter()
            .filter_map(|end| message[..at].rfind(end).map(|end| (end, end + 2)));
        ends.max()
    });
    match begins.min() {
        Some((end, begin)) => (&message[..end], Some(&message[begin..])),
        None => (message, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_one_unit() {
        let shown: Vec<_> = [0, 119, 120, 7_199, 7_200, 172_799, 172_800]
            .map(Duration::from_secs)
            .map(one_unit)
            .into();
        assert_eq!(shown, ["0s", "119s", "2m", "119m", "2h", "47h", "2d"]);
        assert_eq!(
            [7, 1_250, 200_000]
                .map(Duration::from_millis)
                .map(three_digits),
            ["7ms", "1.2s", "3m"]
        );
    }

    #[test]
    fn a_hint_is_the_part_that_names_a_command_or_a_flag() {
        for (message, expected) in [
            (
                "task 1 is created: wait for it with --wait",
                ("task 1 is created", Some("wait for it with --wait")),
            ),
            (
                "no broker at sqlite:/x: it does not exist. Check --queue-url; 'raddle submit' creates it",
                (
                    "no broker at sqlite:/x: it does not exist",
                    Some("Check --queue-url; 'raddle submit' creates it"),
                ),
            ),
            (
                "cannot read x: no such file",
                ("cannot read x: no such file", None),
            ),
            ("--jobs is for many", ("--jobs is for many", None)),
        ] {
            assert_eq!(split_hint(message), expected);
        }
    }
}
