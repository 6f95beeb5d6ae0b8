//! Where what comes of a call goes.

use std::sync::Arc;

use bytes::Bytes;
use raddle_core::routine::{Answer, Failure, Outcome};
use raddle_wire::v1::{self, answer::What, exception::Kind};
use tokio::sync::Semaphore;
use tonic::Code;

use crate::{
    RpcError,
    connection::{
        MAX_VALUE,
        link::{WINDOW, cost},
        outbox::Outbox,
    },
};

/// Where what comes of one call goes.
#[derive(Clone)]
pub(super) struct Sink {
    id: u64,
    outbox: Arc<Outbox<v1::Answer>>,
    credit: Arc<Semaphore>,
}

impl Sink {
    /// For the call of this number.
    pub(super) fn new(id: u64, outbox: &Arc<Outbox<v1::Answer>>) -> Self {
        Self { id, outbox: Arc::clone(outbox), credit: Arc::new(Semaphore::new(WINDOW as usize)) }
    }

    /// Lets so many more items be sent.
    pub(super) fn allow(&self, items: u32) {
        // A client that gives more credit than there can be items gains nothing by it, and must break nothing.
        if self.credit.available_permits() < Semaphore::MAX_PERMITS / 2 {
            self.credit.add_permits(items as usize);
        }
    }

    /// The call was taken.
    pub(super) fn ack(&self) {
        self.send(What::Ack(v1::Ack {}));
    }

    /// An item. Waits until the client has room for it.
    pub(super) async fn item(&self, item: Vec<u8>) {
        if let Ok(permit) = self.credit.acquire_many(cost(item.len())).await {
            permit.forget();
        }
        self.value(item, What::Item);
    }

    /// The end of a stream.
    pub(super) fn end(&self) {
        self.send(What::End(v1::End {}));
    }

    /// The end of a function.
    pub(super) fn outcome(&self, outcome: Outcome) {
        match outcome {
            Ok(answer) => self.value(packed(answer), What::Result),
            Err(failure) => self.failure(failure),
        }
    }

    /// The end of anything that failed.
    pub(super) fn failure(&self, failure: Failure) {
        match failure {
            Failure::Unfit(_) => self.refuse(&RpcError::refused(Code::InvalidArgument, failure.to_string())),
            Failure::Failed { message, value } => {
                let value: Bytes =
                    value.map(packed).filter(|value| value.len() <= MAX_VALUE).unwrap_or_default().into();
                self.exception(v1::Exception { message, value, ..exception(Kind::Failed) });
            }
            Failure::Unwritable(_) => {
                self.exception(v1::Exception { message: failure.to_string(), ..exception(Kind::Unwritable) });
            }
        }
    }

    /// The end, otherwise.
    pub(super) fn exception(&self, exception: v1::Exception) {
        self.send(What::Exception(exception));
    }

    /// It is not taken.
    pub(super) fn refuse(&self, error: &RpcError) {
        self.send(What::Refusal(v1::Refusal { code: error.code as i32, message: error.message.clone() }));
    }

    /// A value, if it is not too large for any message.
    fn value(&self, value: Vec<u8>, what: impl FnOnce(Bytes) -> What) {
        if value.len() <= MAX_VALUE {
            return self.send(what(value.into()));
        }
        let message = format!("it has {} bytes, and at most {MAX_VALUE} can be sent", value.len());
        self.failure(Failure::Unwritable(message));
    }

    fn send(&self, what: What) {
        // A client that is gone needs no answer.
        let _ = self.outbox.push(v1::Answer { id: self.id, what: Some(what) });
    }
}

/// One of this kind, about which nothing else is to be said.
pub(super) fn exception(kind: Kind) -> v1::Exception {
    v1::Exception { kind: kind.into(), ..v1::Exception::default() }
}

/// Calls are asked, and so answered, in MessagePack.
fn packed(answer: Answer) -> Vec<u8> {
    match answer {
        Answer::Packed(bytes) => bytes,
        Answer::Json(_) => Vec::new(),
    }
}
