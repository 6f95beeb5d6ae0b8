//! Calls whose arguments and results are encoded elsewhere: those of programs in other languages.

use std::{collections::BTreeMap, fmt, future::poll_fn, sync::Arc, task::ready, time::Duration};

use bytes::Bytes;
use raddle_model::{
    Trace,
    routine::{EncodedArgs, Encoding},
};
use raddle_wire::v1::exception::Kind;

use super::{CallState, exception_error};
use crate::{
    CallError, CallTarget, Never, balancer::hash_key, connection::CallEvent, context::ContextValue,
    scope::CallDestination,
};

/// A call with encoded arguments. It starts with the first [`next`](Self::next), and is cancelled
/// on drop.
#[must_use = "a call is made when its first reply is asked for"]
pub struct RawCall {
    state: CallState,
}

/// A value that a routine has returned, in MessagePack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawReply {
    /// One item of a stream.
    Item(Vec<u8>),
    /// The result.
    Result(Vec<u8>),
}

/// The error that a routine has returned, in MessagePack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawFailure {
    /// The text of the error.
    pub message: String,
    /// The error itself; empty if it cannot be encoded.
    pub value: Vec<u8>,
}

impl RawCall {
    /// A call of the routine with this name. `arguments` is an array in MessagePack.
    pub fn new(routine: String, arguments: Vec<u8>) -> Self {
        Self {
            state: CallState::new(routine, EncodedArgs::packed(arguments)),
        }
    }

    /// Makes the call on this pool or proxy.
    pub fn on(mut self, target: impl CallTarget) -> Self {
        let proxy = target.proxy().clone();
        self.state
            .configure(|call| call.scope.destination = CallDestination::Proxy(proxy));
        self
    }

    /// Sets a timeout. Caller and worker both end the call then.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.state.configure(|call| call.timeout = Some(timeout));
        self
    }

    /// Sets the affinity key, as [`Call::key`](super::Call::key) does.
    pub fn key(mut self, key: impl fmt::Display) -> Self {
        let key = hash_key(&key);
        self.state.configure(|call| call.key = Some(key));
        self
    }

    /// Sets the trace that the call continues.
    pub fn trace(mut self, trace: Trace) -> Self {
        self.state.configure(|call| call.scope.trace = Some(trace));
        self
    }

    /// Sets the context values, in MessagePack.
    pub fn values(mut self, values: BTreeMap<String, Vec<u8>>) -> Self {
        let received = |(name, value): (String, Vec<u8>)| {
            let value = ContextValue::received(Encoding::MessagePack, value.into());
            (name, value)
        };
        let values = Arc::new(values.into_iter().map(received).collect());
        self.state.configure(|call| call.scope.values = values);
        self
    }

    /// The next item, or the result. `None` after the last one, and after an error.
    pub async fn next(&mut self) -> Option<Result<RawReply, CallError<RawFailure>>> {
        poll_fn(|cx| {
            loop {
                let reply = match ready!(self.state.poll_event(cx)) {
                    Ok((CallEvent::Accepted, _)) => continue,
                    Ok((CallEvent::Item(value), encoding)) => {
                        packed(&value, encoding).map(RawReply::Item)
                    }
                    Ok((CallEvent::Result(value), encoding)) => {
                        packed(&value, encoding).map(RawReply::Result)
                    }
                    Ok((CallEvent::End, _)) => return None.into(),
                    Ok((CallEvent::Exception(exception), encoding)) => {
                        Err(if exception.kind() == Kind::Failed {
                            CallError::Failed(RawFailure {
                                value: packed(&exception.value, encoding).unwrap_or_default(),
                                message: exception.message,
                            })
                        } else {
                            exception_error::<Never>(exception, encoding).widen()
                        })
                    }
                    Ok((CallEvent::Failed(error), _)) => Err(error.into()),
                    Err(error) => Err(error.widen()),
                };
                if reply.is_err() {
                    self.state = CallState::Finished;
                }
                return Some(reply).into();
            }
        })
        .await
    }
}

/// The value in MessagePack.
fn packed(value: &Bytes, encoding: Encoding) -> Result<Vec<u8>, CallError<RawFailure>> {
    if encoding == Encoding::MessagePack || value.is_empty() {
        return Ok(value.to_vec());
    }
    encoding
        .rewrite_any(value, Encoding::MessagePack)
        .map_err(CallError::Result)
}

impl fmt::Display for RawFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for RawCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawCall").finish_non_exhaustive()
    }
}
