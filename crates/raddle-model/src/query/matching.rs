//! Whether a task matches a query.

use std::{borrow::Cow, time::Duration};

use jiff::Timestamp;
use serde_json::Value;

use super::{
    Condition, ExitTest, FlagField, IdField, NumberField, Pattern, SpanField, TaskQuery, TextField,
    TimeField,
};
use crate::{ExitStatus, TaskView, Tid, tid::TidArg};

impl TaskQuery {
    /// Whether a task matches, seen from `now`.
    pub fn matches(&self, task: &TaskView, now: Timestamp) -> bool {
        let mut terms = self.terms.iter();
        terms.all(|term| term.condition.holds(task, now) != term.negated)
    }
}

impl Condition {
    fn holds(&self, task: &TaskView, now: Timestamp) -> bool {
        match self {
            Self::Word(words) => is_any_in(words, task.spec.display_name()),
            Self::State(states) => states.contains(&task.state),
            Self::Text(field, patterns) => has_text(task, *field, patterns),
            Self::Meta(key, patterns) => {
                let value = task.spec.metadata.get(key).map(value_text);
                value.is_some_and(|value| any_matches(patterns, &value))
            }
            Self::Error(patterns) => {
                let exit = task.report.as_ref().map(|report| &report.exit);
                exit.is_some_and(|exit| is_any_in(patterns, &exit.to_string()))
            }
            Self::Id(field, ids) => {
                let id = match field {
                    IdField::Id => Some(task.tid),
                    IdField::Worker => task.worker,
                    IdField::Parent => task.parent,
                };
                id.is_some_and(|id| ids.iter().any(|named| is_id(*named, id)))
            }
            Self::Flag(field, set) => {
                let is_set = match field {
                    FlagField::Dead => task.dead,
                    FlagField::Paused => task.paused,
                    FlagField::Delayed => is_delayed(task, now),
                };
                is_set == *set
            }
            Self::Number(field, tests) => {
                let number = match field {
                    NumberField::Tries => i64::from(task.attempt),
                    NumberField::Priority => i64::from(task.spec.priority),
                };
                let mut tests = tests.iter();
                tests.any(|(how, other)| how.holds(number, i64::from(*other)))
            }
            Self::Exit(tests) => {
                let exit = task.report.as_ref().map(|report| &report.exit);
                exit.is_some_and(|exit| tests.iter().any(|test| ended_so(exit, *test)))
            }
            Self::Span(field, tests) => {
                let span = match field {
                    SpanField::Took => task.run_time(now),
                    SpanField::Waited => waited(task, now),
                };
                span.is_some_and(|span| tests.iter().any(|(how, other)| how.holds(span, other.0)))
            }
            // The id holds the time of submission, so engines can compare ids.
            Self::Time(field, point) => {
                let submitted = i128::from(task.tid.unix_nanos());
                let time = point.resolve(now).as_nanosecond();
                match field {
                    TimeField::Since => submitted >= time,
                    TimeField::Until => submitted < time,
                }
            }
        }
    }
}

fn has_text(task: &TaskView, field: TextField, patterns: &[Pattern]) -> bool {
    let spec = &task.spec;
    let text = match field {
        TextField::Name => Some(spec.display_name()),
        TextField::Queue => Some(spec.queue.as_str()),
        TextField::Kind => spec.kind.as_deref(),
        TextField::Batch => spec.batch.as_deref(),
        TextField::Cap => return spec.needs().iter().any(|cap| any_matches(patterns, cap)),
    };
    text.is_some_and(|text| any_matches(patterns, text))
}

fn any_matches(patterns: &[Pattern], text: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(text))
}

/// Whether one of these patterns, which are in lower case, matches a part of the text.
fn is_any_in(patterns: &[Pattern], text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    patterns.iter().any(|pattern| pattern.is_in(&text))
}

fn is_id(named: TidArg, id: Tid) -> bool {
    match named {
        TidArg::Full(tid) => tid == id,
        TidArg::Short(short) => short == id.short(),
    }
}

fn ended_so(exit: &ExitStatus, test: ExitTest) -> bool {
    match test {
        ExitTest::Kind(kind) => exit.kind() == kind,
        ExitTest::Code(how, other) => match exit {
            ExitStatus::Code { code } => how.holds(*code, other),
            _ => false,
        },
    }
}

fn is_delayed(task: &TaskView, now: Timestamp) -> bool {
    !task.state.is_terminal()
        && !task.state.is_active()
        && task.run_at.is_some_and(|time| time > now)
}

/// How long the task waited for its last claim, or has waited so far. A task that ended before a
/// worker claimed it waited until its end.
fn waited(task: &TaskView, now: Timestamp) -> Option<Duration> {
    let until = task.claimed_at.or(task.finished_at).unwrap_or(now);
    Duration::try_from(until.duration_since(task.created_at)).ok()
}

fn value_text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => text.into(),
        other => other.to_string().into(),
    }
}
