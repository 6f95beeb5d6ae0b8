//! One attempt in a Rust host: decode, run, answer exactly once.

#![expect(
    clippy::result_large_err,
    reason = "a `HostError` is made once per failed attempt and sent at once"
)]

use std::{
    any::Any,
    cell::RefCell,
    future::Future,
    panic::{self, AssertUnwindSafe, PanicHookInfo},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use raddle_model::{
    AttemptInput, ReplyLine, Target, TaskSpec, Trace,
    host::{AttemptRef, FromHost, HostError, StartAttempt},
    reply::{LogLevel, LogLine, ReportedError},
    routine::{Encoding, Routine, RoutineFn, RoutineInput, RoutineOutput, Routines, gather},
};
use tokio::task::AbortHandle;

use super::{Attempts, Outbox};
use crate::host::context::{self, AttemptContext};

/// An attempt that has begun.
#[derive(Clone)]
pub(super) struct RunningAttempt {
    context: Arc<AttemptContext>,
    /// Drops the future of an `async fn`. A plain function that has begun cannot be ended.
    abort: Option<AbortHandle>,
}

impl RunningAttempt {
    /// Asks the attempt to end. A future that does not look for that itself is dropped, and so is
    /// any future under `force`.
    pub(super) fn cancel(&self, force: bool) {
        let cooperates = self.context.cancel();
        if (force || !cooperates)
            && let Some(abort) = &self.abort
        {
            abort.abort();
        }
    }
}

/// Sends the one answer of an attempt, also if its future is dropped.
struct Answer {
    id: u64,
    outbox: Arc<Outbox>,
    attempts: Arc<Attempts>,
    is_sent: bool,
    /// Whether to send from this thread: the loop does not have to wake up for it.
    is_on_thread: bool,
}

impl Answer {
    fn send(mut self, outcome: Result<Vec<u8>, HostError>) {
        let (message, payload) = match outcome {
            Ok(payload) => (FromHost::Result(AttemptRef { id: self.id }), Some(payload)),
            Err(error) => (
                FromHost::Error(HostError {
                    id: self.id,
                    ..error
                }),
                None,
            ),
        };
        self.put(&message, payload.as_deref());
    }

    fn put(&mut self, message: &FromHost, payload: Option<&[u8]>) {
        self.is_sent = true;
        self.attempts.end(self.id);
        if self.is_on_thread {
            self.outbox.send_now(message, payload);
        } else {
            self.outbox.send(message, payload);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.is_sent {
            let error = HostError {
                id: self.id,
                message: "it was cancelled".into(),
                cancelled: true,
                ..HostError::default()
            };
            self.put(&FromHost::Error(error), None);
        }
    }
}

/// Begins an attempt.
pub(super) fn start(
    start: StartAttempt<'static>,
    payload: Vec<u8>,
    routines: &Routines,
    attempts: &Arc<Attempts>,
    outbox: &Arc<Outbox>,
) {
    let id = start.id;
    let trace = start.traceparent.map(|parent| Trace {
        parent,
        state: start.tracestate.clone(),
    });
    let context = AttemptContext::new(id, Arc::clone(outbox), trace);
    let routine = routines.get(&start.routine);
    let is_plain = matches!(
        routine,
        Some(Routine {
            run: RoutineFn::Plain(_),
            ..
        })
    );
    let answer = Answer {
        id,
        outbox: Arc::clone(outbox),
        attempts: Arc::clone(attempts),
        is_sent: false,
        is_on_thread: is_plain,
    };
    let Some(routine) = routine.filter(|_| !start.handler) else {
        let message = format!("this program has no routine '{}'", start.routine);
        return answer.send(Err(HostError {
            message,
            permanent: true,
            ..HostError::default()
        }));
    };
    // Under the lock: an attempt that ends at once waits for it, so it is known before it ends.
    let mut running = attempts.lock();
    let abort = match routine.run {
        RoutineFn::Plain(function) => {
            let context = Arc::clone(&context);
            tokio::task::spawn_blocking(move || {
                let outcome = context.scope_sync(|| {
                    panic::catch_unwind(AssertUnwindSafe(|| {
                        with_input(start, &payload, function).and_then(encode)
                    }))
                });
                answer.send(outcome.unwrap_or_else(|thrown| Err(panicked(&*thrown))));
            });
            None
        }
        RoutineFn::Async(function) => {
            let run = async move {
                let running = with_input(start, &payload, function)?;
                drop(payload);
                encode(running.await.map_err(failed)?)
            };
            Some(spawn(&context, run, answer))
        }
        RoutineFn::Stream(function) => {
            let run = async move {
                let items = with_input(start, &payload, function)?;
                let value = gather(items).await.map_err(failed)?;
                serde_json::to_vec(&value).map_err(|error| unwritable(&error))
            };
            Some(spawn(&context, run, answer))
        }
    };
    running.insert(id, RunningAttempt { context, abort });
}

fn spawn(
    context: &Arc<AttemptContext>,
    run: impl Future<Output = Result<Vec<u8>, HostError>> + Send + 'static,
    answer: Answer,
) -> AbortHandle {
    let run = context.scope(CatchUnwind(Box::pin(run)));
    tokio::spawn(async move { answer.send(run.await) }).abort_handle()
}

/// Calls a function with the arguments of an attempt.
fn with_input<T>(
    start: StartAttempt<'static>,
    payload: &[u8],
    call: impl FnOnce(RoutineInput<'_>) -> Result<T, raddle_model::routine::RoutineFailure>,
) -> Result<T, HostError> {
    let unfit = |message: String| HostError {
        message: format!("the arguments do not fit: {message}"),
        permanent: true,
        ..HostError::default()
    };
    let input = match (start.encoding.as_deref(), start.tid) {
        (None | Some("json"), Some(tid)) => {
            let mut spec = TaskSpec::new(Target::Routine(start.routine.into_owned()));
            if !payload.is_empty() {
                spec.args = serde_json::from_slice(payload)
                    .map_err(|error| unfit(format!("they are not an array: {error}")))?;
            }
            spec.kwargs = start.kwargs.into_owned();
            RoutineInput::Job(Box::new(AttemptInput::new(tid, start.attempt, spec)))
        }
        (None | Some("json"), None) => RoutineInput::Call(Encoding::Json, payload),
        (Some("messagepack"), _) => RoutineInput::Call(Encoding::MessagePack, payload),
        (Some(other), _) => return Err(unfit(format!("the encoding '{other}' is unknown"))),
    };
    call(input).map_err(failed)
}

fn encode(output: RoutineOutput) -> Result<Vec<u8>, HostError> {
    match output {
        RoutineOutput::Json(value) => {
            serde_json::to_vec(&value).map_err(|error| unwritable(&error))
        }
        RoutineOutput::Bytes(bytes) => Ok(bytes),
    }
}

fn unwritable(error: &serde_json::Error) -> HostError {
    HostError {
        message: format!("the result cannot be serialized: {error}"),
        ..HostError::default()
    }
}

fn failed(failure: raddle_model::routine::RoutineFailure) -> HostError {
    let ReportedError {
        message,
        permanent,
        value,
        ..
    } = failure.into();
    HostError {
        message,
        permanent,
        value,
        ..HostError::default()
    }
}

fn panicked(thrown: &(dyn Any + Send)) -> HostError {
    let text = thrown.downcast_ref::<&str>().map(ToString::to_string);
    let message = text
        .or_else(|| thrown.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".into());
    let place = PANICKED_AT.with(|place| place.borrow_mut().take());
    HostError {
        message,
        panicked_at: Some(place.unwrap_or_else(|| "an unknown place".into())),
        ..HostError::default()
    }
}

thread_local! {
    /// Where the last panic of this thread happened, until its attempt reports it.
    static PANICKED_AT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes the places of panics, and writes them to the log of the attempt that panics.
pub(super) fn install_panic_hook() {
    panic::set_hook(Box::new(|info: &PanicHookInfo<'_>| {
        let backtrace = std::backtrace::Backtrace::capture();
        let text = match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => format!("{info}\n{backtrace}"),
            _ => info.to_string(),
        };
        match context::current() {
            Some(attempt) => {
                let line = LogLine {
                    level: LogLevel::Error,
                    message: text,
                };
                let _ = attempt.say(&ReplyLine::Log(line));
            }
            None => eprintln!("{text}"),
        }
        let place = info.location().map(ToString::to_string);
        PANICKED_AT.with(|at| *at.borrow_mut() = place);
    }));
}

/// A future whose panics are failures of its attempt.
struct CatchUnwind<F>(Pin<Box<F>>);

impl<F: Future<Output = Result<Vec<u8>, HostError>>> Future for CatchUnwind<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match panic::catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx))) {
            Ok(polled) => polled,
            Err(thrown) => Poll::Ready(Err(panicked(&*thrown))),
        }
    }
}
