//! Routines that can fail.

use std::{fmt::Display, marker::PhantomData};

use raddle_core::routine::{Answer, Failure, Form};
use serde::Serialize;

/// The two types of a `Result`, also where an alias hides one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is called `Result`, and is none",
    label = "a routine that can fail returns a `Result`"
)]
pub trait Returns {
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
pub trait Tells {
    /// The failure that it is, if it was written down so.
    fn failure(&self, written: Option<Answer>) -> Failure;
}

/// An error that may be of a type that can be written down. It is asked with `value`, which is its own method if it is, and else that of [`Unwritten`].
#[derive(Debug)]
pub struct Written<'a, E>(pub &'a E);

/// An error of another type, of which only its words are told.
pub trait Unwritten {
    /// Nothing.
    fn value(&self, _: Form) -> Option<Answer> {
        None
    }
}

/// Tells whether a type is a `Result`, in the same way: with a constant of its own, or of [`NoResult`].
#[derive(Debug)]
pub struct Probe<T>(PhantomData<T>);

/// All other types.
pub trait NoResult {
    /// It is not.
    const IS_RESULT: bool = false;
}

impl<T, E> Returns for Result<T, E> {
    type Value = T;
    type Error = E;
}

#[diagnostic::do_not_recommend]
impl<E: Display> Tells for E {
    fn failure(&self, value: Option<Answer>) -> Failure {
        // With its causes, where the error's type can tell them.
        Failure::Failed { message: format!("{self:#}"), value }
    }
}

impl<E: Serialize + 'static> Written<'_, E> {
    /// The error itself, if it can be written down after all.
    pub fn value(&self, form: Form) -> Option<Answer> {
        form.value(self.0).ok()
    }
}

impl<E> Unwritten for Written<'_, E> {}

impl<T, E> Probe<Result<T, E>> {
    /// It is.
    pub const IS_RESULT: bool = true;
}

impl<T> NoResult for Probe<T> {}
