//! Functions that give items, one after the other.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
use serde::Serialize;
use serde_json::Value;

use super::{Answer, Failure, Form, Items, Outcome};

/// A stream whose items are written down as they come.
struct Written<S> {
    form: Form,
    stream: Pin<Box<S>>,
}

/// The items of a function that was asked in this form.
pub fn items<S>(form: Form, stream: S) -> Items
where
    S: Stream<Item: Serialize + 'static> + Send + 'static,
{
    Box::pin(Written { form, stream: Box::pin(stream) })
}

/// Waits for all items. They are a list, which is the result of a task whose function gives items.
pub async fn gather(mut items: Items) -> Result<Value, Failure> {
    let mut all = Vec::new();
    while let Some(item) = poll_fn(|cx| items.as_mut().poll_next(cx)).await {
        all.push(item?.into_json()?);
    }
    Ok(Value::Array(all))
}

impl<S: Stream<Item: Serialize + 'static>> Stream for Written<S> {
    type Item = Outcome;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Outcome>> {
        let form = self.form;
        self.stream.as_mut().poll_next(cx).map(|item| item.map(|item| form.value(&item)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.stream.size_hint()
    }
}

impl Answer {
    /// The answer to a task.
    pub fn into_json(self) -> Result<Value, Failure> {
        match self {
            Self::Json(value) => Ok(value),
            Self::Bytes(_) => Err(Failure::Unwritable("it is in the form of a call's".into())),
        }
    }
}
