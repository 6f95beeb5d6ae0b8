//! The terms of a query.

use std::ops::RangeInclusive;

use jiff::Timestamp;

use super::Pattern;
use crate::{HumanDuration, TaskState, text::names, tid::TidArg};

/// One condition of a query, or its opposite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Whether the condition must not hold.
    pub negated: bool,
    /// The condition.
    pub condition: Condition,
}

impl Term {
    /// The term that requires this condition.
    pub fn new(condition: Condition) -> Self {
        Self {
            negated: false,
            condition,
        }
    }
}

/// A condition on a task. Of several values, one must match.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// The display name contains one of these texts, in any case.
    Word(Vec<Pattern>),
    /// The task is in one of these states.
    State(Vec<TaskState>),
    /// A field has one of these texts.
    Text(TextField, Vec<Pattern>),
    /// The metadata has one of these values under a key.
    Meta(String, Vec<Pattern>),
    /// The text about the end of the task contains one of these, in any case.
    Error(Vec<Pattern>),
    /// A field has one of these ids.
    Id(IdField, Vec<TidArg>),
    /// A flag is set, or is not.
    Flag(FlagField, bool),
    /// A number passes one of these tests.
    Number(NumberField, Vec<(Comparison, i32)>),
    /// The last attempt ended in one of these ways.
    Exit(Vec<ExitTest>),
    /// A duration passes one of these tests.
    Span(SpanField, Vec<(Comparison, HumanDuration)>),
    /// The task was submitted since, or until, a time.
    Time(TimeField, TimePoint),
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitTest {
    /// By itself, with an exit code that passes the test.
    Code(Comparison, i32),
    /// In a way of this name: see [`ExitStatus::kind`](crate::ExitStatus::kind).
    Kind(&'static str),
}

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimePoint {
    /// This time.
    At(Timestamp),
    /// So long ago.
    Ago(HumanDuration),
}

impl TimePoint {
    /// The time, seen from `now`.
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(time) => time,
            Self::Ago(HumanDuration(ago)) => now.checked_sub(ago).unwrap_or(Timestamp::MIN),
        }
    }
}

/// How to compare a value of a task with the value of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Comparison {
    /// The same.
    Equal = 0,
    /// At least.
    AtLeast = 1,
    /// At most.
    AtMost = 2,
    /// More than.
    More = 3,
    /// Less than.
    Less = 4,
}

impl Comparison {
    /// Whether `value` compares in this way with `other`.
    pub fn holds<T: PartialOrd>(self, value: T, other: T) -> bool {
        match self {
            Self::Equal => value == other,
            Self::AtLeast => value >= other,
            Self::AtMost => value <= other,
            Self::More => value > other,
            Self::Less => value < other,
        }
    }
}

names! {
    Comparison {
        Equal => "",
        AtLeast => ">=",
        AtMost => "<=",
        More => ">",
        Less => "<",
    }
}

/// A field with a text, or with several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TextField {
    /// The display name.
    Name = 0,
    /// The queue.
    Queue = 1,
    /// The label for metrics.
    Kind = 2,
    /// The batch.
    Batch = 3,
    /// A capability that a worker needs for it.
    Cap = 4,
}

names! {
    TextField {
        Name => "name",
        Queue => "queue",
        Kind => "kind",
        Batch => "batch",
        Cap => "cap",
    }
}

/// A field with an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IdField {
    /// The task itself.
    Id = 0,
    /// The worker that has the task, or had it last.
    Worker = 1,
    /// The task that submitted it.
    Parent = 2,
}

names! {
    IdField {
        Id => "id",
        Worker => "worker",
        Parent => "parent",
    }
}

/// A field that is set or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FlagField {
    /// The task is a dead letter.
    Dead = 0,
    /// The task is paused.
    Paused = 1,
    /// The task waits for a time.
    Delayed = 2,
}

names! {
    FlagField {
        Dead => "dead",
        Paused => "paused",
        Delayed => "delayed",
    }
}

/// A field with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NumberField {
    /// The number of the latest attempt.
    Tries = 0,
    /// The priority.
    Priority = 1,
}

names! {
    NumberField {
        Tries => "tries",
        Priority => "priority",
    }
}

impl NumberField {
    /// The numbers that a query may name.
    pub fn range(self) -> RangeInclusive<i32> {
        match self {
            Self::Tries => 0..=1_000_000,
            Self::Priority => 0..=9,
        }
    }
}

/// The exit codes that a query may name.
pub(super) const EXIT_CODES: RangeInclusive<i32> = -255..=255;

/// A field with a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SpanField {
    /// The run time of the last attempt, or of the running one so far.
    Took = 0,
    /// From the submission to the last claim, or until now.
    Waited = 1,
}

names! {
    SpanField {
        Took => "took",
        Waited => "waited",
    }
}

/// An end of a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TimeField {
    /// Submitted at this time or later.
    Since = 0,
    /// Submitted before this time.
    Until = 1,
}

names! {
    TimeField {
        Since => "since",
        Until => "until",
    }
}
