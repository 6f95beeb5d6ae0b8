//! Values on their way to another process and back.
//!
//! All that is written for a routine asks for this one trait, at the place where its type stands, so that a type that does not have it is one error
//! and not a dozen.

use futures_core::Stream;
use raddle_model::routine::{
    Arguments, EncodedArgs, OutputForm, RoutineFailure, RoutineOutcome, RoutineStream,
    TranscodedArgs, items,
};
use serde::{Serialize, de::DeserializeOwned};

#[cfg(feature = "queue")]
use crate::RoutineTask;

/// What can be an argument or the result of a routine.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot cross to another process",
    label = "this is an argument or the result of a routine",
    note = "derive `serde::Serialize` and `serde::Deserialize` for it, and own all that it has"
)]
pub trait RoutineValue: Sized {
    /// Adds it to the arguments of a call.
    fn pack(&self, packed: EncodedArgs, name: &str) -> EncodedArgs;
    /// Writes it in JSON, where it is among the arguments of a call.
    fn rewrite(rewriting: &mut TranscodedArgs<'_>, name: &str) -> Result<(), String>;
    /// Adds it to the arguments of a task.
    #[cfg(feature = "queue")]
    fn give<T>(&self, task: RoutineTask<T>, name: &str) -> RoutineTask<T>;
    /// Reads it from the arguments of either.
    fn take(arguments: &mut Arguments<'_>, name: &str) -> Result<Self, RoutineFailure>;
    /// The answer that it is.
    fn answer(&self, form: OutputForm) -> RoutineOutcome;
    /// The answers that these are.
    fn items<S: Stream<Item = Self> + Send + 'static>(form: OutputForm, stream: S)
    -> RoutineStream;
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + 'static> RoutineValue for T {
    fn pack(&self, packed: EncodedArgs, name: &str) -> EncodedArgs {
        packed.argument(name, self)
    }

    fn rewrite(rewriting: &mut TranscodedArgs<'_>, name: &str) -> Result<(), String> {
        rewriting.next::<Self>(name)
    }

    #[cfg(feature = "queue")]
    fn give<R>(&self, task: RoutineTask<R>, name: &str) -> RoutineTask<R> {
        task.argument(name, self)
    }

    fn take(arguments: &mut Arguments<'_>, name: &str) -> Result<Self, RoutineFailure> {
        arguments.next(name)
    }

    fn answer(&self, form: OutputForm) -> RoutineOutcome {
        form.value(self)
    }

    fn items<S: Stream<Item = Self> + Send + 'static>(
        form: OutputForm,
        stream: S,
    ) -> RoutineStream {
        items(form, stream)
    }
}
