//! Runs one call, from decoding its arguments to its last reply.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use raddle_model::{
    Trace,
    routine::{Encoding, Routine, RoutineFn, RoutineInput, RoutineOutput, RoutineStream},
};
use raddle_wire::v1::{self, exception::Kind};
use tokio::time::{Instant, timeout_at};

use super::{
    blocking::PollWatch,
    host::{HostCall, HostRelay},
    panics,
    reply_sink::{ReplySink, exception},
};
use crate::{
    context::ContextValue,
    scope::{CallDestination, Scope},
};

/// A call that the executor has accepted.
pub(super) struct AcceptedCall {
    routine: Routine,
    encoding: Encoding,
    arguments: Bytes,
    scope: Scope,
    sink: ReplySink,
    poll: PollWatch,
    /// The host that runs the routine, unless this program does.
    host: Option<Arc<HostRelay>>,
}

impl AcceptedCall {
    pub(super) fn new(
        routine: Routine,
        encoding: Encoding,
        call: v1::Call,
        destination: CallDestination,
        sink: ReplySink,
        poll: PollWatch,
        host: Option<Arc<HostRelay>>,
    ) -> Self {
        let v1::Call {
            arguments,
            timeout_ms,
            context,
            traceparent,
            tracestate,
            depth,
            ..
        } = call;
        let received = |(name, bytes)| (name, ContextValue::received(encoding, bytes));
        let timeout = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms));
        let trace = traceparent.parse().ok().map(|parent| Trace {
            parent,
            state: tracestate.parse().ok(),
        });
        let scope = Scope {
            destination,
            values: Arc::new(context.into_iter().map(received).collect()),
            trace,
            // `checked_add`: the timeout may exceed what an `Instant` can express; then there is no
            // deadline.
            deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            depth: depth.saturating_add(1),
        };
        Self {
            routine,
            encoding,
            arguments,
            scope,
            sink,
            poll,
            host,
        }
    }

    /// Whether the routine is a plain function, which may block its thread.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.routine.run, RoutineFn::Plain(_))
    }

    /// Runs a plain function on this thread.
    pub(super) fn run_plain(self) {
        let Self {
            routine,
            encoding,
            arguments,
            scope,
            sink,
            ..
        } = self;
        let RoutineFn::Plain(function) = routine.run else {
            return;
        };
        sink.send_ack();
        let call = AssertUnwindSafe(|| {
            scope.run_sync(|| function(RoutineInput::Call(encoding, &arguments)))
        });
        match catch_unwind(call) {
            Ok(outcome) => sink.outcome(outcome),
            Err(thrown) => sink.exception(panics::exception_of_panic(&*thrown)),
        }
    }

    /// Runs an `async fn` or a stream.
    pub(super) async fn run(self) {
        let Self {
            routine,
            encoding,
            arguments,
            scope,
            sink,
            poll,
            host,
        } = self;
        let deadline = scope.deadline;
        let trace = scope.trace.clone();
        let routine = scope.run(async {
            let Some(host) = host else {
                return run_async(routine, encoding, arguments, &sink).await;
            };
            let call = HostCall {
                routine: routine.name,
                encoding,
                arguments,
                deadline,
                trace: trace.as_ref(),
                sink: &sink,
            };
            host.run(call).await;
        });
        let mut routine = pin!(AssertUnwindSafe(routine).catch_unwind());
        let watched = poll_fn(|cx| poll.track(|| routine.as_mut().poll(cx)));
        let caught = match deadline {
            None => watched.await,
            // The timeout counts from the arrival of the call, not from the first poll.
            Some(deadline) => match timeout_at(deadline, watched).await {
                Ok(caught) => caught,
                // Reply before the routine is dropped: its destructors may take time, or panic.
                Err(_) => return sink.exception(exception(Kind::TimedOut)),
            },
        };
        if let Err(thrown) = caught {
            sink.exception(panics::exception_of_panic(&*thrown));
        }
    }
}

async fn run_async(routine: Routine, encoding: Encoding, arguments: Bytes, sink: &ReplySink) {
    match routine.run {
        RoutineFn::Plain(_) => unreachable!("`run_plain` runs plain functions"),
        RoutineFn::Async(function) => match function(RoutineInput::Call(encoding, &arguments)) {
            Ok(running) => {
                drop(arguments);
                sink.ack().await;
                sink.outcome(running.await);
            }
            Err(failure) => sink.failure(failure),
        },
        RoutineFn::Stream(function) => match function(RoutineInput::Call(encoding, &arguments)) {
            Ok(items) => {
                drop(arguments);
                send_items(items, sink).await;
            }
            Err(failure) => sink.failure(failure),
        },
    }
}

async fn send_items(mut items: RoutineStream, sink: &ReplySink) {
    sink.ack().await;
    while let Some(item) = items.next().await {
        match item {
            Ok(RoutineOutput::Bytes(item)) => sink.item(item).await,
            Ok(RoutineOutput::Json(_)) => {}
            Err(failure) => return sink.failure(failure),
        }
    }
    sink.end();
}
