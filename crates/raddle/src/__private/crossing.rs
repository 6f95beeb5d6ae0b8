//! Values on their way to another process and back.
//!
//! All that is written for a routine asks for this one trait, at the place where its type stands, so that a type that does not have it is one error
//! and not a dozen.

use futures_core::Stream;
use raddle_core::routine::{Arguments, Failure, Form, Items, Outcome, Packed, Rewriting, items};
use serde::{Serialize, de::DeserializeOwned};

#[cfg(feature = "queue")]
use crate::Task;

/// What can be an argument or the result of a routine.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot cross to another process",
    label = "this is an argument or the result of a routine",
    note = "derive `serde::Serialize` and `serde::Deserialize` for it, and own all that it has"
)]
pub trait Crosses: Sized {
    /// Adds it to the arguments of a call.
    fn pack(&self, packed: Packed, name: &str) -> Packed;
    /// Writes it in JSON, where it is among the arguments of a call.
    fn rewrite(rewriting: &mut Rewriting<'_>, name: &str) -> Result<(), String>;
    /// Adds it to the arguments of a task.
    #[cfg(feature = "queue")]
    fn give<T>(&self, task: Task<T>, name: &str) -> Task<T>;
    /// Reads it from the arguments of either.
    fn take(arguments: &mut Arguments<'_>, name: &str) -> Result<Self, Failure>;
    /// The answer that it is.
    fn answer(&self, form: Form) -> Outcome;
    /// The answers that these are.
    fn items<S: Stream<Item = Self> + Send + 'static>(form: Form, stream: S) -> Items;
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + 'static> Crosses for T {
    fn pack(&self, packed: Packed, name: &str) -> Packed {
        packed.argument(name, self)
    }

    fn rewrite(rewriting: &mut Rewriting<'_>, name: &str) -> Result<(), String> {
        rewriting.next::<Self>(name)
    }

    #[cfg(feature = "queue")]
    fn give<R>(&self, task: Task<R>, name: &str) -> Task<R> {
        task.argument(name, self)
    }

    fn take(arguments: &mut Arguments<'_>, name: &str) -> Result<Self, Failure> {
        arguments.next(name)
    }

    fn answer(&self, form: Form) -> Outcome {
        form.value(self)
    }

    fn items<S: Stream<Item = Self> + Send + 'static>(form: Form, stream: S) -> Items {
        items(form, stream)
    }
}
