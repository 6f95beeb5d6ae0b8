//! Functions of a program that other processes can run: the list of them, and the forms in which their arguments and results travel.
//!
//! A task has its arguments as JSON, which people write and read, and which is kept for long. A call has them in the encoding that its worker
//! reads: MessagePack, if that is a process of Raddle, and JSON if it is not. A function is registered once, for all: it answers in the form in
//! which it was asked.

mod any;
mod arguments;
mod encoding;
mod finite;
mod form;
mod items;
mod octets;

use std::{collections::BTreeMap, fmt, future::Future, pin::Pin};

use futures_core::Stream;
use serde_json::Value;

pub use self::{
    arguments::Arguments,
    encoding::{Encoding, UnknownEncoding},
    form::{Form, Packed, Rewrite, Rewriting},
    items::{gather, items},
};
use crate::{Job, reply::Fault};

/// A registered function. Made by `#[raddle::routine]`.
#[derive(Clone, Copy, Debug)]
pub struct Routine {
    /// Its name in tasks and calls.
    pub name: &'static str,
    /// Where it stands in the source, for messages.
    pub place: &'static str,
    /// Runs it.
    pub run: Run,
}

/// How a function is run. Its arguments are read at once, and what follows owns all it needs.
#[derive(Clone, Copy)]
pub enum Run {
    /// It has no need of a runtime, and may block its thread.
    Plain(fn(Given<'_>) -> Outcome),
    /// It is polled by one.
    Async(fn(Given<'_>) -> Result<Running, Failure>),
    /// It gives items, one after the other.
    Stream(fn(Given<'_>) -> Result<Items, Failure>),
}

/// A function that is running.
pub type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;
/// A function that gives items.
pub type Items = Pin<Box<dyn Stream<Item = Outcome> + Send>>;
/// What has come of a function, or of one of its items.
pub type Outcome = Result<Answer, Failure>;

/// What a function is given.
#[derive(Debug)]
pub enum Given<'a> {
    /// The arguments of a task.
    Job(Box<Job>),
    /// The arguments of a call: an array, in this encoding.
    Call(Encoding, &'a [u8]),
}

/// What a function gives back, in the form in which it was asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// To a task.
    Json(Value),
    /// To a call, in its encoding.
    Bytes(Vec<u8>),
}

/// Why a function has given nothing back.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// It was not called: its arguments are others. There is no use in another try.
    #[error("the arguments do not fit: {0}")]
    Unfit(String),
    /// It returned an error.
    #[error("{message}")]
    Failed {
        /// For people.
        message: String,
        /// The error itself, where its type can be written down.
        value: Option<Answer>,
    },
    /// What it returned could not be written down.
    #[error("the result cannot be written down: {0}")]
    Unwritable(String),
}

inventory::collect!(Routine);

/// Two functions of one program with the same name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "two routines are called '{name}', at {first} and at {second}: give one of them another with #[raddle::routine(name = \"…\")]"
)]
pub struct Clash {
    name: &'static str,
    first: &'static str,
    second: &'static str,
}

/// All functions of this program.
#[derive(Clone, Debug, Default)]
pub struct Routines(BTreeMap<&'static str, Routine>);

impl Given<'_> {
    /// The form that it has, and that the answer is to have.
    pub fn form(&self) -> Form {
        match self {
            Self::Job(_) => Form::Task,
            Self::Call(encoding, _) => Form::Call(*encoding),
        }
    }
}

impl Routines {
    /// Those that this program was built with.
    pub fn of_this_program() -> Result<Self, Clash> {
        Self::new(inventory::iter::<Routine>.into_iter().copied())
    }

    /// These.
    pub fn new(routines: impl IntoIterator<Item = Routine>) -> Result<Self, Clash> {
        let mut known = BTreeMap::<_, Routine>::new();
        for routine in routines {
            if let Some(other) = known.insert(routine.name, routine) {
                return Err(Clash { name: routine.name, first: other.place, second: routine.place });
            }
        }
        Ok(Self(known))
    }

    /// The one of this name.
    pub fn get(&self, name: &str) -> Option<Routine> {
        self.0.get(name).copied()
    }

    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        let permanent = matches!(failure, Failure::Unfit(_));
        let message = failure.to_string();
        let value = match failure {
            Failure::Failed { value: Some(Answer::Json(value)), .. } => Some(value),
            _ => None,
        };
        Self { message, panicked_at: None, permanent, value }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::Async(_) => "Async",
            Self::Stream(_) => "Stream",
        })
    }
}

#[cfg(test)]
mod tests;
