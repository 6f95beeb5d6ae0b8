//! Functions that return a stream of items.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
use serde::Serialize;
use serde_json::Value;

use super::{OutputForm, RoutineFailure, RoutineOutcome, RoutineOutput, RoutineStream};

/// A stream that encodes each item.
struct EncodedItems<S> {
    form: OutputForm,
    stream: Pin<Box<S>>,
}

/// Wraps the stream of a function so that its items are encoded in this form.
pub fn items<S>(form: OutputForm, stream: S) -> RoutineStream
where
    S: Stream<Item: Serialize + 'static> + Send + 'static,
{
    Box::pin(EncodedItems {
        form,
        stream: Box::pin(stream),
    })
}

/// Collects all items into an array: the result of a task whose function returns a stream.
pub async fn gather(mut items: RoutineStream) -> Result<Value, RoutineFailure> {
    let mut all = Vec::new();
    while let Some(item) = poll_fn(|cx| items.as_mut().poll_next(cx)).await {
        all.push(item?.into_json()?);
    }
    Ok(Value::Array(all))
}

impl<S: Stream<Item: Serialize + 'static>> Stream for EncodedItems<S> {
    type Item = RoutineOutcome;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<RoutineOutcome>> {
        let form = self.form;
        self.stream
            .as_mut()
            .poll_next(cx)
            .map(|item| item.map(|item| form.value(&item)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.stream.size_hint()
    }
}

impl RoutineOutput {
    /// Returns the JSON value of a task's result.
    pub fn into_json(self) -> Result<Value, RoutineFailure> {
        match self {
            Self::Json(value) => Ok(value),
            Self::Bytes(_) => Err(RoutineFailure::Unwritable(
                "it is in the form of a call's".into(),
            )),
        }
    }
}
