//! Where what comes of a call goes.

use std::sync::{
    Arc, Once,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use raddle_discovery::encoding;
use raddle_model::routine::{RoutineFailure, RoutineOutcome, RoutineOutput};
use raddle_wire::v1::{self, answer::What, exception::Kind};
use tokio::sync::{Notify, Semaphore, mpsc::UnboundedSender};
use tonic::Code;

use crate::{
    RpcError,
    link::{CREDIT_WINDOW, FEW_CALLS, FlushMode, LinkWriter, MAX_CREDIT, item_weight},
    stream::MAX_VALUE,
};

/// The longest message of an error that is sent.
const LONGEST: usize = 256 * 1024;

/// Where what comes of one call goes.
#[derive(Clone)]
pub(super) struct ReplySink(Arc<ReplySinkInner>);

struct ReplySinkInner {
    to: SinkTarget,
    credit: Semaphore,
    /// Done when the `Ack` has been sent.
    ack: Once,
    /// The transport has the `Ack`.
    ack_written: Notify,
}

enum SinkTarget {
    Link(LinkSink),
    /// Who called by `Dispatch`. What bounds it is the credit, which is given back as it is read.
    Grpc(UnboundedSender<(What, Bytes)>),
}

/// The call of this number of a link, which has so many in flight.
struct LinkSink {
    id: u64,
    writer: Arc<LinkWriter>,
    in_flight: Arc<AtomicUsize>,
}

impl ReplySink {
    /// For a call of a link.
    pub(super) fn of_link(id: u64, writer: &Arc<LinkWriter>, in_flight: &Arc<AtomicUsize>) -> Self {
        in_flight.fetch_add(1, Ordering::Relaxed);
        Self::new(SinkTarget::Link(LinkSink {
            id,
            writer: Arc::clone(writer),
            in_flight: Arc::clone(in_flight),
        }))
    }

    /// For a call by gRPC, which has its own stream.
    pub(super) fn of_grpc(to: UnboundedSender<(What, Bytes)>) -> Self {
        Self::new(SinkTarget::Grpc(to))
    }

    fn new(to: SinkTarget) -> Self {
        let credit = Semaphore::new(CREDIT_WINDOW as usize);
        Self(Arc::new(ReplySinkInner {
            to,
            credit,
            ack: Once::new(),
            ack_written: Notify::new(),
        }))
    }

    /// Lets so many more items be sent. Returns whether that makes sense.
    pub(super) fn allow(&self, items: u32) -> bool {
        let is_sense = self.0.credit.available_permits() + items as usize <= MAX_CREDIT as usize;
        if is_sense {
            self.0.credit.add_permits(items as usize);
        }
        is_sense
    }

    /// Says that the call was taken, and waits until the transport has that, or the client is gone. Called before the first poll of the routine: of a
    /// worker that dies in there, the caller knows that the routine may have begun.
    pub(super) async fn ack(&self) {
        self.send_ack();
        if let SinkTarget::Grpc(to) = &self.0.to {
            tokio::select! {
                () = self.0.ack_written.notified() => {}
                () = to.closed() => {}
            }
        }
    }

    /// The transport has the `Ack`.
    pub(super) fn ack_is_written(&self) {
        self.0.ack_written.notify_one();
    }

    /// Whether another thread sends what comes of the call.
    pub(super) fn is_grpc(&self) -> bool {
        matches!(self.0.to, SinkTarget::Grpc(_))
    }

    /// Says that the call was taken, if nothing has said so. `Once` makes a second thread wait for the first, so that nothing overtakes the `Ack`.
    pub(super) fn send_ack(&self) {
        self.0
            .ack
            .call_once(|| self.send_in(FlushMode::Now, What::Ack(v1::Ack {}), Bytes::new()));
    }

    /// An item. Waits until the client has room for it, and has read some of what it was sent before.
    pub(super) async fn item(&self, item: Vec<u8>) {
        if let Ok(permit) = self.0.credit.acquire_many(item_weight(item.len())).await {
            permit.forget();
        }
        if let SinkTarget::Link(LinkSink { writer, .. }) = &self.0.to
            && writer.is_full()
        {
            writer.wait_for_room().await;
        }
        self.value(item, What::Item(v1::Item {}));
    }

    /// The end of a stream.
    pub(super) fn end(&self) {
        self.send(What::End(v1::End {}), Bytes::new());
    }

    /// The end of a function.
    pub(super) fn outcome(&self, outcome: RoutineOutcome) {
        match outcome {
            Ok(answer) => self.value(bytes(answer), What::Result(v1::Outcome {})),
            Err(failure) => self.failure(failure),
        }
    }

    /// The end of anything that failed.
    pub(super) fn failure(&self, failure: RoutineFailure) {
        match failure {
            RoutineFailure::Unfit(_) => {
                self.refuse(
                    &RpcError::refused(Code::InvalidArgument, failure.to_string()),
                    FlushMode::Now,
                );
            }
            RoutineFailure::Failed { message, value } => {
                let value = value
                    .map(bytes)
                    .filter(|value| value.len() <= MAX_VALUE)
                    .unwrap_or_default();
                self.exception(v1::Exception {
                    message,
                    value: value.into(),
                    ..exception(Kind::Failed)
                });
            }
            RoutineFailure::Unwritable(_) => {
                self.exception(v1::Exception {
                    message: failure.to_string(),
                    ..exception(Kind::Unwritable)
                });
            }
        }
    }

    /// The end, otherwise.
    pub(super) fn exception(&self, mut exception: v1::Exception) {
        let value = std::mem::take(&mut exception.value);
        exception.message = shortened(exception.message);
        self.send(What::Exception(exception), value);
    }

    /// It is not taken. In haste only if nobody else is kept waiting by that.
    pub(super) fn refuse(&self, error: &RpcError, haste: FlushMode) {
        let (code, message) = (error.code as i32, shortened(error.message.clone()));
        let refusal = v1::Refusal {
            code,
            message,
            encodings: encoding::numbers(&error.encodings),
        };
        self.send_in(haste, What::Refusal(refusal), Bytes::new());
    }

    /// A value, if it is not too large for any message.
    fn value(&self, value: Vec<u8>, what: What) {
        if value.len() <= MAX_VALUE {
            return self.send(what, value.into());
        }
        let message = format!(
            "it has {} bytes, and at most {MAX_VALUE} can be sent",
            value.len()
        );
        self.failure(RoutineFailure::Unwritable(message));
    }

    /// Sends something of a call that was taken. The `Ack` comes first, whatever it is.
    fn send(&self, what: What, body: Bytes) {
        self.send_ack();
        self.send_in(FlushMode::Now, what, body);
    }

    fn send_in(&self, haste: FlushMode, what: What, body: Bytes) {
        match &self.0.to {
            SinkTarget::Link(link) => link.send(haste, what, body),
            // A client that is gone needs no answer.
            SinkTarget::Grpc(to) => drop(to.send((what, body))),
        }
    }
}

impl LinkSink {
    fn send(&self, haste: FlushMode, what: What, body: Bytes) {
        // Items come one after the other, as fast as they can.
        let is_alone =
            self.in_flight.load(Ordering::Relaxed) <= FEW_CALLS && !matches!(what, What::Item(_));
        let haste = if is_alone { haste } else { FlushMode::Deferred };
        // As above.
        let _ = self.writer.push(
            self.id,
            &v1::Answer {
                id: self.id,
                what: Some(what),
            },
            body,
            haste,
        );
    }
}

impl Drop for LinkSink {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A message may quote what it is about, which may be larger than any head.
fn shortened(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(LONGEST));
    message
}

/// One of this kind, about which nothing else is to be said.
pub(super) fn exception(kind: Kind) -> v1::Exception {
    v1::Exception {
        kind: kind.into(),
        ..v1::Exception::default()
    }
}

/// Calls are asked, and so answered, in bytes.
fn bytes(answer: RoutineOutput) -> Vec<u8> {
    match answer {
        RoutineOutput::Bytes(bytes) => bytes,
        RoutineOutput::Json(_) => Vec::new(),
    }
}
