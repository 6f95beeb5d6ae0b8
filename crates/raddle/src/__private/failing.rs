//! Routines that return a `Result`.

use std::{fmt::Display, marker::PhantomData};

use raddle_model::routine::{OutputForm, RoutineFailure, RoutineOutput};
use serde::Serialize;

/// The two types of a `Result`, also behind an alias.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is called `Result`, and is none",
    label = "a routine that can fail returns a `Result`"
)]
pub trait RoutineReturn {
    /// Type of a success.
    type Value;
    /// Type of a failure.
    type Error;
}

/// A type that can be the error of a routine.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what went wrong",
    label = "this is the error of a routine",
    note = "implement `Display` for it"
)]
pub trait RoutineError {
    /// The failure, with the serialised error if there is one.
    fn failure(&self, written: Option<RoutineOutput>) -> RoutineFailure;
}

/// An error whose type may be serialisable. The generated code calls `value`: the inherent method,
/// if the type is serialisable, and otherwise that of [`OpaqueError`] (autoref specialisation).
#[derive(Debug)]
pub struct SerializableError<'a, E>(pub &'a E);

/// An error of another type, of which only the message is sent.
pub trait OpaqueError {
    /// Always `None`.
    fn value(&self, _: OutputForm) -> Option<RoutineOutput> {
        None
    }
}

/// Detects whether a type is a `Result` in the same way: by an inherent constant, or that of
/// [`NotResult`].
#[derive(Debug)]
pub struct ResultProbe<T>(PhantomData<T>);

/// All other types.
pub trait NotResult {
    /// Always false.
    const IS_RESULT: bool = false;
}

impl<T, E> RoutineReturn for Result<T, E> {
    type Value = T;
    type Error = E;
}

#[diagnostic::do_not_recommend]
impl<E: Display> RoutineError for E {
    fn failure(&self, value: Option<RoutineOutput>) -> RoutineFailure {
        // With its causes, if the error's type has them.
        RoutineFailure::Failed {
            message: format!("{self:#}"),
            value,
        }
    }
}

impl<E: Serialize + 'static> SerializableError<'_, E> {
    /// The serialised error.
    pub fn value(&self, form: OutputForm) -> Option<RoutineOutput> {
        form.value(self.0).ok()
    }
}

impl<E> OpaqueError for SerializableError<'_, E> {}

impl<T, E> ResultProbe<Result<T, E>> {
    /// Always true.
    pub const IS_RESULT: bool = true;
}

impl<T> NotResult for ResultProbe<T> {}
