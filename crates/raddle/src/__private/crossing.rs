//! `RoutineValue`: conversion of arguments and results.
//!
//! All generated code requires this one trait, at the span of the user's type, so that an
//! unsupported type gives one error instead of a dozen.

use futures_core::Stream;
use raddle_model::routine::{
    Arguments, EncodedArgs, OutputForm, RoutineFailure, RoutineOutcome, RoutineStream,
    TranscodedArgs, items,
};
use serde::{Serialize, de::DeserializeOwned};

#[cfg(feature = "queue")]
use crate::RoutineTask;

/// A type that can be an argument or the result of a routine.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot cross to another process",
    label = "this is an argument or the result of a routine",
    note = "derive `serde::Serialize` and `serde::Deserialize` for it, and own all that it has"
)]
pub trait RoutineValue: Sized {
    /// Adds the value to the arguments of a call.
    fn pack(&self, packed: EncodedArgs, name: &str) -> EncodedArgs;
    /// Transcodes an argument of this type to JSON.
    fn rewrite(rewriting: &mut TranscodedArgs<'_>, name: &str) -> Result<(), String>;
    /// Adds the value to the arguments of a task.
    #[cfg(feature = "queue")]
    fn give<T>(&self, task: RoutineTask<T>, name: &str) -> RoutineTask<T>;
    /// Decodes the value from the arguments of a call or task.
    fn take(arguments: &mut Arguments<'_>, name: &str) -> Result<Self, RoutineFailure>;
    /// Encodes the value as a result.
    fn answer(&self, form: OutputForm) -> RoutineOutcome;
    /// Encodes a stream of values as results.
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
