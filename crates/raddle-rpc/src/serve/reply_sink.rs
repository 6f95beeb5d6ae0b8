//! Sends the replies of a call.

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

/// Longest error message that is sent.
const MAX_ERROR_LEN: usize = 256 * 1024;

/// Sends the replies of one call.
#[derive(Clone)]
pub(super) struct ReplySink(Arc<ReplySinkInner>);

struct ReplySinkInner {
    target: SinkTarget,
    credit: Semaphore,
    /// Completed when the `Ack` was sent.
    ack: Once,
    /// The transport has written the `Ack`.
    ack_written: Notify,
}

enum SinkTarget {
    Link(LinkSink),
    /// A gRPC stream. Unbounded, because the credit, which is given back as the client reads,
    /// bounds it.
    Grpc(UnboundedSender<(What, Bytes)>),
}

/// A call of a link.
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

    /// For a gRPC call.
    pub(super) fn of_grpc(to: UnboundedSender<(What, Bytes)>) -> Self {
        Self::new(SinkTarget::Grpc(to))
    }

    fn new(target: SinkTarget) -> Self {
        let credit = Semaphore::new(CREDIT_WINDOW as usize);
        Self(Arc::new(ReplySinkInner {
            target,
            credit,
            ack: Once::new(),
            ack_written: Notify::new(),
        }))
    }

    /// Adds credit from the client. Returns whether the total is plausible.
    pub(super) fn add_credit(&self, items: u32) -> bool {
        let is_plausible =
            self.0.credit.available_permits() + items as usize <= MAX_CREDIT as usize;
        if is_plausible {
            self.0.credit.add_permits(items as usize);
        }
        is_plausible
    }

    /// Sends the `Ack`, and waits until the transport has written it, or the client is gone. Called
    /// before the routine is first polled: if the worker dies in the routine, the caller knows that
    /// the routine may have begun.
    pub(super) async fn ack(&self) {
        self.send_ack();
        if let SinkTarget::Grpc(to) = &self.0.target {
            tokio::select! {
                () = self.0.ack_written.notified() => {}
                () = to.closed() => {}
            }
        }
    }

    /// Records that the transport has written the `Ack`.
    pub(super) fn record_ack_written(&self) {
        self.0.ack_written.notify_one();
    }

    /// Whether the replies are written by another thread.
    pub(super) fn is_grpc(&self) -> bool {
        matches!(self.0.target, SinkTarget::Grpc(_))
    }

    /// Sends the `Ack` once. `Once` makes a second thread wait for the first, so that nothing
    /// overtakes the `Ack`.
    pub(super) fn send_ack(&self) {
        self.0
            .ack
            .call_once(|| self.send_in(FlushMode::Now, What::Ack(v1::Ack {}), Bytes::new()));
    }

    /// Sends an item of a stream. Waits for credit, and while the link's writer is full.
    pub(super) async fn item(&self, item: Vec<u8>) {
        if let Ok(permit) = self.0.credit.acquire_many(item_weight(item.len())).await {
            permit.forget();
        }
        if let SinkTarget::Link(LinkSink { writer, .. }) = &self.0.target
            && writer.is_full()
        {
            writer.wait_for_room().await;
        }
        self.value(item, What::Item(v1::Item {}));
    }

    /// Sends the end of a stream.
    pub(super) fn end(&self) {
        self.send(What::End(v1::End {}), Bytes::new());
    }

    /// Sends the result of a function.
    pub(super) fn outcome(&self, outcome: RoutineOutcome) {
        match outcome {
            Ok(answer) => self.value(into_bytes(answer), What::Result(v1::Outcome {})),
            Err(failure) => self.failure(failure),
        }
    }

    /// Sends a failure, which ends the call.
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
                    .map(into_bytes)
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

    /// Sends an exception, which ends the call.
    pub(super) fn exception(&self, mut exception: v1::Exception) {
        let value = std::mem::take(&mut exception.value);
        exception.message = shorten(exception.message);
        self.send(What::Exception(exception), value);
    }

    /// Refuses the call.
    pub(super) fn refuse(&self, error: &RpcError, mode: FlushMode) {
        let (code, message) = (error.code as i32, shorten(error.message.clone()));
        let refusal = v1::Refusal {
            code,
            message,
            encodings: encoding::to_numbers(&error.encodings),
        };
        self.send_in(mode, What::Refusal(refusal), Bytes::new());
    }

    /// Sends a value, or an exception if the value is too large.
    fn value(&self, value: Vec<u8>, what: What) {
        if value.len() <= MAX_VALUE {
            return self.send(what, value.into());
        }
        let message = format!("it has {} bytes, and the limit is {MAX_VALUE}", value.len());
        self.failure(RoutineFailure::Unwritable(message));
    }

    /// Sends a reply of an accepted call, after the `Ack`.
    fn send(&self, what: What, body: Bytes) {
        self.send_ack();
        self.send_in(FlushMode::Now, what, body);
    }

    fn send_in(&self, mode: FlushMode, what: What, body: Bytes) {
        match &self.0.target {
            SinkTarget::Link(link) => link.send(mode, what, body),
            // The receiver is dropped when the client is gone.
            SinkTarget::Grpc(to) => drop(to.send((what, body))),
        }
    }
}

impl LinkSink {
    fn send(&self, mode: FlushMode, what: What, body: Bytes) {
        // Items of a stream follow each other quickly, so they are gathered.
        let is_urgent =
            self.in_flight.load(Ordering::Relaxed) <= FEW_CALLS && !matches!(what, What::Item(_));
        let mode = if is_urgent { mode } else { FlushMode::Deferred };
        // Fails when the link is closed.
        let _ = self.writer.push(
            self.id,
            &v1::Answer {
                id: self.id,
                what: Some(what),
            },
            body,
            mode,
        );
    }
}

impl Drop for LinkSink {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Shortens an error message, which may quote large input, so that it fits a frame's head.
fn shorten(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(MAX_ERROR_LEN));
    message
}

/// An exception of this kind without details.
pub(super) fn exception(kind: Kind) -> v1::Exception {
    v1::Exception {
        kind: kind.into(),
        ..v1::Exception::default()
    }
}

/// Calls produce bytes; JSON is for tasks.
fn into_bytes(answer: RoutineOutput) -> Vec<u8> {
    match answer {
        RoutineOutput::Bytes(bytes) => bytes,
        RoutineOutput::Json(_) => Vec::new(),
    }
}
