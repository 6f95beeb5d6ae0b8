//! Calls of routines, as futures and streams.

mod raw;

use std::{
    borrow::Cow,
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use raddle_model::routine::{EncodedArgs, Encoding};
use raddle_wire::{
    PROTOCOL,
    v1::{self, exception::Kind},
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

pub use self::raw::{RawCall, RawFailure, RawReply};
use crate::{
    CallError, CallTarget, Never,
    connection::{CallEvent, CallRequest, ReplyStream},
    scope::{CallDestination, Scope},
};

/// A call of a function. It starts when first polled, and is cancelled on drop.
#[must_use = "a call is made when it is awaited"]
pub struct Call<T, E = Never> {
    state: CallState,
    result: PhantomData<fn() -> Result<T, E>>,
}

/// A call of a function that returns a stream. It starts when the first item is polled, and is
/// cancelled on drop.
#[must_use = "a call is made when the first item is asked for"]
pub struct CallStream<T> {
    state: CallState,
    result: PhantomData<fn() -> T>,
}

enum CallState {
    Prepared(Box<PreparedCall>),
    Dispatching(Pin<Box<dyn Future<Output = Result<AcceptedCall, CallError>> + Send>>),
    /// With the deadline. The worker ends the call then too, unless its thread is blocked.
    Streaming(Box<ReplyStream>, Option<Pin<Box<Sleep>>>),
    Finished,
}

/// The replies of an accepted call, and its deadline.
type AcceptedCall = (ReplyStream, Option<Instant>);

struct PreparedCall {
    routine: Cow<'static, str>,
    arguments: EncodedArgs,
    scope: Scope,
    timeout: Option<Duration>,
    key: Option<u64>,
}

impl CallState {
    fn new(routine: impl Into<Cow<'static, str>>, arguments: EncodedArgs) -> Self {
        // The scope is that of the place where the call is written, not where it is awaited: the
        // future may move to another task.
        let scope = Scope::current();
        Self::Prepared(Box::new(PreparedCall {
            routine: routine.into(),
            arguments,
            scope,
            timeout: None,
            key: None,
        }))
    }

    fn configure(&mut self, change: impl FnOnce(&mut PreparedCall)) {
        if let Self::Prepared(prepared) = self {
            change(prepared);
        }
    }

    /// The next event, and the encoding of its value. Starts the call if necessary.
    fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(CallEvent, Encoding), CallError>> {
        loop {
            match self {
                Self::Prepared(_) => {
                    let Self::Prepared(prepared) = std::mem::replace(self, Self::Finished) else {
                        unreachable!("matched above")
                    };
                    *self = Self::Dispatching(Box::pin(prepared.call()));
                }
                Self::Dispatching(dispatching) => match ready!(dispatching.as_mut().poll(cx)) {
                    Ok((replies, deadline)) => {
                        let timer = deadline.map(|deadline| Box::pin(sleep_until(deadline)));
                        *self = Self::Streaming(Box::new(replies), timer);
                    }
                    Err(error) => {
                        *self = Self::Finished;
                        return Poll::Ready(Err(error));
                    }
                },
                Self::Streaming(replies, timer) => {
                    let Poll::Ready(event) = replies.poll_next(cx) else {
                        ready!(
                            timer
                                .as_mut()
                                .map_or(Poll::Pending, |timer| timer.as_mut().poll(cx))
                        );
                        *self = Self::Finished;
                        return Poll::Ready(Err(CallError::TimedOut));
                    };
                    let encoding = replies.encoding();
                    if event.is_last() {
                        *self = Self::Finished;
                    }
                    return Poll::Ready(Ok((event, encoding)));
                }
                Self::Finished => return Poll::Ready(Ok((CallEvent::End, Encoding::default()))),
            }
        }
    }

    /// The next value or error. `None` after the last.
    fn poll_value<T, E>(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, CallError<E>>>>
    where
        T: DeserializeOwned + 'static,
        E: DeserializeOwned + 'static,
    {
        loop {
            let value = match ready!(self.poll_event(cx)) {
                Ok((CallEvent::Accepted, _)) => continue,
                Ok((CallEvent::Item(value) | CallEvent::Result(value), encoding)) => {
                    encoding.read(&value).map_err(CallError::Result)
                }
                Ok((CallEvent::End, _)) => return Poll::Ready(None),
                Ok((CallEvent::Exception(exception), encoding)) => {
                    Err(exception_error(exception, encoding))
                }
                Ok((CallEvent::Failed(error), _)) => Err(error.into()),
                Err(error) => Err(error.widen()),
            };
            if value.is_err() {
                *self = Self::Finished;
            }
            return Poll::Ready(Some(value));
        }
    }
}

impl PreparedCall {
    async fn call(self) -> Result<AcceptedCall, CallError> {
        let Self {
            routine,
            arguments,
            scope,
            timeout,
            key,
        } = self;
        let proxy = match &scope.destination {
            CallDestination::None => return Err(CallError::NoPool),
            CallDestination::Proxy(proxy) => proxy.clone(),
            CallDestination::Route(route) => route.proxy().await?,
        };
        let transcode = arguments.rewrite();
        let arguments = arguments.finish().map_err(CallError::Arguments)?;
        let timeout = scope.timeout(timeout);
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(CallError::TimedOut);
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let (traceparent, tracestate) = match scope.trace() {
            Some(trace) => (
                trace.parent.to_string(),
                trace.state.as_ref().map(ToString::to_string),
            ),
            None => (String::new(), None),
        };
        let call = v1::Call {
            protocol: PROTOCOL,
            routine: routine.into_owned(),
            arguments: arguments.into(),
            // In the protocol, 0 means no timeout.
            timeout_ms: timeout.map_or(0, |timeout| (timeout.as_millis() as u64).max(1)),
            traceparent,
            tracestate: tracestate.unwrap_or_default(),
            route: proxy.route(),
            depth: scope.depth,
            ..v1::Call::default()
        };
        let request =
            CallRequest::new(call, transcode, scope.values, key).map_err(CallError::Arguments)?;
        let dispatch = proxy.dispatch(request, timeout);
        let replies = match deadline {
            None => dispatch.await?,
            Some(deadline) => timeout_at(deadline, dispatch)
                .await
                .unwrap_or(Err(CallError::TimedOut))?,
        };
        Ok((replies, deadline))
    }
}

/// The methods that `Call` and `CallStream` share.
macro_rules! prepared {
    ($call:ident < $($of:ident),+ >) => {
        impl<$($of),+> $call<$($of),+> {
            /// A call of the routine with this name.
            pub fn new(routine: &'static str, arguments: EncodedArgs) -> Self {
                Self { state: CallState::new(routine, arguments), result: PhantomData }
            }

            /// Makes the call on this pool or proxy, instead of the one of the scope.
            pub fn on(mut self, target: impl CallTarget) -> Self {
                let proxy = target.proxy().clone();
                self.state.configure(|prepared| prepared.scope.destination = CallDestination::Proxy(proxy));
                self
            }

            /// Sets a timeout. Caller and worker both end the call then.
            pub fn timeout(mut self, timeout: Duration) -> Self {
                self.state.configure(|prepared| prepared.timeout = Some(timeout));
                self
            }

            /// Sets the affinity key: with a `Sticky` balancer, calls with the same key go to the
            /// same worker while it exists. The key's text counts: the number 42 is the key `"42"`.
            pub fn key(mut self, key: impl std::fmt::Display) -> Self {
                let key = crate::balancer::hash_key(&key);
                self.state.configure(|prepared| prepared.key = Some(key));
                self
            }
        }

        impl<$($of),+> fmt::Debug for $call<$($of),+> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let routine = match &self.state {
                    CallState::Prepared(prepared) => Some(prepared.routine.as_ref()),
                    _ => None,
                };
                f.debug_struct(stringify!($call)).field("routine", &routine).finish_non_exhaustive()
            }
        }
    };
}

prepared!(Call<T, E>);
prepared!(CallStream<T>);

impl<T: DeserializeOwned + 'static, E: DeserializeOwned + 'static> Future for Call<T, E> {
    type Output = Result<T, CallError<E>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(self.state.poll_value(cx));
        self.state = CallState::Finished;
        let none = || {
            Err(CallError::Result(
                "the routine ended without a result".into(),
            ))
        };
        Poll::Ready(outcome.unwrap_or_else(none))
    }
}

impl<T: DeserializeOwned + 'static> CallStream<T> {
    /// The next item. `None` after the last one, and after an error.
    pub async fn next(&mut self) -> Option<Result<T, CallError>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl<T: DeserializeOwned + 'static> Stream for CallStream<T> {
    type Item = Result<T, CallError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.state.poll_value(cx)
    }
}

/// Converts an exception that the worker reports.
fn exception_error<E: DeserializeOwned + 'static>(
    exception: v1::Exception,
    encoding: Encoding,
) -> CallError<E> {
    let kind = exception.kind();
    let v1::Exception {
        message,
        value,
        place,
        backtrace,
        ..
    } = exception;
    match kind {
        Kind::Failed => match encoding.read(&value) {
            Ok(error) => CallError::Failed(error),
            Err(error) => CallError::Result(format!(
                "the routine failed ({message}), and cannot read its error: {error}"
            )),
        },
        Kind::Panicked => CallError::Panicked {
            message,
            place,
            backtrace,
        },
        Kind::Cancelled => CallError::Cancelled,
        Kind::TimedOut => CallError::TimedOut,
        Kind::Unwritable | Kind::Unspecified => CallError::Result(message),
    }
}
