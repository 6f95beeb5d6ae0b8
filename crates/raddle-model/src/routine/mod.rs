//! Functions of a program that other processes can run: their registry, and the encodings of their
//! arguments and results.
//!
//! The arguments of a task are JSON, which people write and read and the store keeps. The arguments
//! of a call have the encoding that its worker reads: MessagePack for a Raddle process, JSON for
//! any other. A function is registered once for both, and replies in the form in which it was
//! called.

mod arguments;
mod encoded_args;
mod encoding;
mod finite;
mod items;
mod json_value;
mod lifecycle;
mod raw_bytes;

use std::{collections::BTreeMap, fmt, future::Future, pin::Pin};

use futures_core::Stream;
use serde_json::Value;

pub use self::{
    arguments::Arguments,
    encoded_args::{ArgsTranscoder, EncodedArgs, OutputForm, TranscodedArgs},
    encoding::{Encoding, UnknownEncoding},
    items::{gather, items},
    lifecycle::{
        LifecycleHook, ShutdownFn, StartupError, StartupFn, State, StateValue, has_lifecycle_hooks,
        required_state, run_shutdown, run_startup, set_state, state, take_state,
    },
};
use crate::{AttemptInput, reply::ReportedError, spec::Isolation};

/// A registered function. `#[raddle::routine]` creates it.
#[derive(Clone, Copy, Debug)]
pub struct Routine {
    /// Name in tasks and calls.
    pub name: &'static str,
    /// Source location, for messages.
    pub place: &'static str,
    /// The weakest isolation in which its tasks may run: `shared` or `process`.
    pub isolation: Isolation,
    /// The function.
    pub run: RoutineFn,
}

/// How to run a function. It decodes its arguments immediately, and the returned future or stream
/// owns all its data.
#[derive(Clone, Copy)]
pub enum RoutineFn {
    /// Needs no runtime, and may block its thread.
    Plain(fn(RoutineInput<'_>) -> RoutineOutcome),
    /// Returns a future.
    Async(fn(RoutineInput<'_>) -> Result<RoutineFuture, RoutineFailure>),
    /// Returns a stream of items.
    Stream(fn(RoutineInput<'_>) -> Result<RoutineStream, RoutineFailure>),
}

/// A running async function.
pub type RoutineFuture = Pin<Box<dyn Future<Output = RoutineOutcome> + Send>>;
/// The item stream of a function.
pub type RoutineStream = Pin<Box<dyn Stream<Item = RoutineOutcome> + Send>>;
/// The outcome of a function, or of one of its items.
pub type RoutineOutcome = Result<RoutineOutput, RoutineFailure>;

/// The input of a function.
#[derive(Debug)]
pub enum RoutineInput<'a> {
    /// The arguments of a task.
    Job(Box<AttemptInput>),
    /// The arguments of a call: an array in this encoding.
    Call(Encoding, &'a [u8]),
}

/// The output of a function, in the form in which it was called.
#[derive(Clone, Debug, PartialEq)]
pub enum RoutineOutput {
    /// The result of a task.
    Json(Value),
    /// The result of a call, in its encoding.
    Bytes(Vec<u8>),
}

/// Why a function returned no value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RoutineFailure {
    /// The function was not called, because the arguments do not match its signature. A retry would
    /// fail as well.
    #[error("the arguments do not fit: {0}")]
    Unfit(String),
    /// The function returned an error.
    #[error("{message}")]
    Failed {
        /// Text for human readers.
        message: String,
        /// The error itself, if its type can be serialized.
        value: Option<RoutineOutput>,
    },
    /// The returned value could not be serialized.
    #[error("the result cannot be serialized: {0}")]
    Unwritable(String),
}

inventory::collect!(Routine);

/// Two functions of one program have the same name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "two routines are called '{name}', at {first} and at {second}: give one of them another with #[raddle::routine(name = \"…\")]"
)]
pub struct DuplicateRoutine {
    name: &'static str,
    first: &'static str,
    second: &'static str,
}

/// All functions of this program, by name.
#[derive(Clone, Debug, Default)]
pub struct Routines(BTreeMap<&'static str, Routine>);

impl RoutineInput<'_> {
    /// Returns the form of this input, which the output must have as well.
    pub fn form(&self) -> OutputForm {
        match self {
            Self::Job(_) => OutputForm::Task,
            Self::Call(encoding, _) => OutputForm::Call(*encoding),
        }
    }
}

impl Routines {
    /// Collects the functions that this program was built with.
    pub fn of_this_program() -> Result<Self, DuplicateRoutine> {
        Self::new(inventory::iter::<Routine>.into_iter().copied())
    }

    /// Collects the given functions.
    pub fn new(routines: impl IntoIterator<Item = Routine>) -> Result<Self, DuplicateRoutine> {
        let mut known = BTreeMap::<_, Routine>::new();
        for routine in routines {
            if let Some(other) = known.insert(routine.name, routine) {
                return Err(DuplicateRoutine {
                    name: routine.name,
                    first: other.place,
                    second: routine.place,
                });
            }
        }
        Ok(Self(known))
    }

    /// Returns the function of this name.
    pub fn get(&self, name: &str) -> Option<Routine> {
        self.0.get(name).copied()
    }

    /// Returns the names in sorted order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }
}

impl From<RoutineFailure> for ReportedError {
    fn from(failure: RoutineFailure) -> Self {
        let permanent = matches!(failure, RoutineFailure::Unfit(_));
        let message = failure.to_string();
        let value = match failure {
            RoutineFailure::Failed {
                value: Some(RoutineOutput::Json(value)),
                ..
            } => Some(value),
            _ => None,
        };
        Self {
            message,
            panicked_at: None,
            permanent,
            value,
        }
    }
}

impl fmt::Debug for RoutineFn {
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
