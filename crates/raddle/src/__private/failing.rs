//! Routines that can fail.

use std::{fmt::Display, marker::PhantomData};

use raddle_model::routine::{OutputForm, RoutineFailure, RoutineOutput};
use serde::Serialize;

/// The two types of a `Result`, also where an alias hides one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is called `Result`, and is none",
    label = "a routine that can fail returns a `Result`"
)]
pub trait RoutineReturn {
    /// Where all went well.
    type Value;
    /// Where not.
    type Error;
}

/// What a routine can return as its error.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what went wrong",
    label = "this is the error of a routine",
    note = "implement `Display` for it"
)]
pub trait RoutineError {
    /// The failure that it is, if it was written down so.
    fn failure(&self, written: Option<RoutineOutput>) -> RoutineFailure;
}

/// An error that may be of a type that can be written down. It is asked with `value`, which is its own method if it is, and else that of [`OpaqueError`].
#[derive(Debug)]
pub struct SerializableError<'a, E>(pub &'a E);

/// An error of another type, of which only its words are told.
pub trait OpaqueError {
    /// Nothing.
    fn value(&self, _: OutputForm) -> Option<RoutineOutput> {
        None
    }
}

/// Tells whether a type is a `Result`, in the same way: with a constant of its own, or of [`NotResult`].
#[derive(Debug)]
pub struct ResultProbe<T>(PhantomData<T>);

/// All other types.
pub trait NotResult {
    /// It is not.
    const IS_RESULT: bool = false;
}

impl<T, E> RoutineReturn for Result<T, E> {
    type Value = T;
    type Error = E;
}

#[diagnostic::do_not_recommend]
impl<E: Display> RoutineError for E {
    fn failure(&self, value: Option<RoutineOutput>) -> RoutineFailure {
        // With its causes, where the error's type can tell them.
        RoutineFailure::Failed {
            message: format!("{self:#}"),
            value,
        }
    }
}

impl<E: Serialize + 'static> SerializableError<'_, E> {
    /// The error itself, if it can be written down after all.
    pub fn value(&self, form: OutputForm) -> Option<RoutineOutput> {
        form.value(self.0).ok()
    }
}

impl<E> OpaqueError for SerializableError<'_, E> {}

impl<T, E> ResultProbe<Result<T, E>> {
    /// It is.
    pub const IS_RESULT: bool = true;
}

impl<T> NotResult for ResultProbe<T> {}
