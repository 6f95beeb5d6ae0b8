//! The query language for tasks: `state:failed queue:mail name:frame-* took:>30s since:-1h`.
//!
//! The CLI, the HTTP API, the dashboard and the TUI share this parser. A query is a value without
//! a clock: relative times are resolved when it is matched, so a stored query moves with the time
//! unless [`TaskQuery::fix_times`] fixes it.
//!
//! There is no sorting: tasks are listed by id, which is the one order that an engine can serve for
//! all tasks. Sorting what happens to be on the screen would mislead.

mod display;
mod error;
mod matching;
mod parse;
mod pattern;
mod term;

use jiff::Timestamp;

pub use error::{QueryError, QueryErrorKind};
pub use pattern::Pattern;
pub use term::{
    Comparison, Condition, ExitTest, FlagField, IdField, NumberField, SpanField, Term, TextField,
    TimeField, TimePoint,
};

use crate::{TaskState, Tid, text::serialized_as_text, tid::TidArg};

/// The longest query, in bytes.
pub const MAX_BYTES: usize = 2048;
/// The largest number of values in a query.
pub const MAX_TOKENS: usize = 128;

/// Which tasks to show: those that match every term. The default matches all.
///
/// `Display` writes the canonical text, which parses to an equal query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskQuery {
    terms: Vec<Term>,
}

impl TaskQuery {
    /// The query of one flag.
    pub fn flag(field: FlagField, set: bool) -> Self {
        let condition = Condition::Flag(field, set);
        Self::from_iter([Term::new(condition)])
    }

    /// The terms, all of which must match.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Whether every task matches.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The query that also requires the terms of `other`.
    pub fn and(mut self, other: Self) -> Self {
        self.terms.extend(other.terms);
        self
    }

    /// The same query with its relative times fixed at `now`.
    pub fn fix_times(mut self, now: Timestamp) -> Self {
        for term in &mut self.terms {
            if let Condition::Time(_, point) = &mut term.condition {
                *point = TimePoint::At(point.resolve(now));
            }
        }
        self
    }

    /// The states that a matching task can have.
    pub fn states(&self) -> Vec<TaskState> {
        let mut states = TaskState::ALL.to_vec();
        for term in &self.terms {
            if let Condition::State(named) = &term.condition {
                states.retain(|state| named.contains(state) != term.negated);
            }
        }
        states
    }

    /// The one text that a field must have, if a term says so without a wildcard.
    pub fn exact(&self, wanted: TextField) -> Option<&str> {
        self.required().find_map(|condition| match condition {
            Condition::Text(field, patterns) if *field == wanted => match patterns.as_slice() {
                [pattern] => pattern.literal(),
                _ => None,
            },
            _ => None,
        })
    }

    /// The ids of which a task must have one in a field, if a term names some.
    pub fn ids(&self, wanted: IdField) -> Option<&[TidArg]> {
        self.required().find_map(|condition| match condition {
            Condition::Id(field, ids) if *field == wanted => Some(ids.as_slice()),
            _ => None,
        })
    }

    /// Whether a flag must have this value.
    pub fn requires(&self, wanted: FlagField, value: bool) -> bool {
        self.terms.iter().any(|term| match term.condition {
            Condition::Flag(field, set) => field == wanted && (set != term.negated) == value,
            _ => false,
        })
    }

    /// The first id that is too young to match, if the query has an end.
    pub fn first_id_after(&self, now: Timestamp) -> Option<Tid> {
        self.times(TimeField::Until, now).filter_map(id_at).min()
    }

    /// The time before which no task matches, if the query has a beginning.
    pub fn oldest(&self, now: Timestamp) -> Option<Timestamp> {
        self.times(TimeField::Since, now).max()
    }

    fn times(&self, wanted: TimeField, now: Timestamp) -> impl Iterator<Item = Timestamp> {
        self.required()
            .filter_map(move |condition| match condition {
                Condition::Time(field, point) if *field == wanted => Some(point.resolve(now)),
                _ => None,
            })
    }

    fn required(&self) -> impl Iterator<Item = &Condition> {
        let positive = self.terms.iter().filter(|term| !term.negated);
        positive.map(|term| &term.condition)
    }
}

impl FromIterator<Term> for TaskQuery {
    fn from_iter<T: IntoIterator<Item = Term>>(terms: T) -> Self {
        Self {
            terms: terms.into_iter().collect(),
        }
    }
}

fn id_at(time: Timestamp) -> Option<Tid> {
    Tid::from_u64(u64::try_from(time.as_nanosecond()).ok()?)
}

serialized_as_text!(TaskQuery);

#[cfg(test)]
mod tests;
