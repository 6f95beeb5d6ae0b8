//! Errors of calls.

use std::{convert::Infallible, fmt};

use raddle_discovery::Encodings;
use serde::{Deserialize, Deserializer, de::Error as _};
use tonic::Code;

/// The error of a routine that returns none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Never(Infallible);

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError<E = Never> {
    /// The routine returned this error.
    #[error("{0}")]
    Failed(E),
    /// The routine panicked.
    #[error("the routine panicked at {place}: {message}")]
    Panicked {
        /// The panic message.
        message: String,
        /// Where in the code.
        place: String,
        /// The backtrace.
        backtrace: String,
    },
    /// The call timed out.
    #[error("the call timed out")]
    TimedOut,
    /// The call was cancelled because its worker was stopped.
    #[error("the call was cancelled: its worker was stopped")]
    Cancelled,
    /// The worker, or the connection to it, was lost before the call ended.
    #[error("the worker was lost: {reason}{}", if *may_have_begun { "; the routine may have begun" } else { "" })]
    Lost {
        /// The cause.
        reason: String,
        /// Whether the routine may have begun. If not, the call can safely be made again.
        may_have_begun: bool,
    },
    /// There is no worker to call.
    #[error(transparent)]
    NoWorkers(#[from] NoWorkersAvailable),
    /// The call was made outside the scope of a pool.
    #[error(
        "no pool to call in: call in `pool.scope(…)`, or with `.on(&pool)`. A task of `tokio::spawn` is outside every scope: use `pool.spawn(…)`, or in \
         a routine `raddle::spawn(…)`"
    )]
    NoPool,
    /// No worker has a routine of this name.
    #[error("{0}: check that the workers run the same version of the program")]
    UnknownRoutine(String),
    /// The worker speaks another version of the protocol.
    #[error("{0}")]
    Version(String),
    /// The worker does not let this caller call the routine.
    #[error("{0}")]
    Denied(String),
    /// The arguments cannot be encoded, or do not fit the routine.
    #[error("{0}")]
    Arguments(String),
    /// The result could not be sent, or is not of the expected type.
    #[error("cannot read the result: {0}")]
    Result(String),
}

/// Every worker was tried, or there is none. Holds the last error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no workers available{}", .0.as_ref().map(|last| format!(": {last}")).unwrap_or_default())]
pub struct NoWorkersAvailable(pub Option<String>);

/// Why a worker did not accept a call, or why an accepted call was lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    /// The gRPC status code.
    pub code: Code,
    /// The message, for people.
    pub message: String,
    /// Whether the routine may have begun. If so, the call must not go to another worker.
    pub may_have_begun: bool,
    /// The encodings that the worker reads, if it has refused that of the call.
    pub encodings: Encodings,
}

/// The consequence of an error for the worker and for the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Temporary: the worker stays, and the next one is tried.
    Transient,
    /// The worker is unusable: it is removed, and the next one is tried.
    Worker,
    /// The worker is healthy but cannot run this call: it stays, and the next one is tried.
    Mismatch,
    /// The call itself is wrong, or may have begun: it fails.
    Call,
}

/// Prefix of the message when no process listens at the worker's address.
const NO_LISTENER: &str = "no worker listens at this address";

impl RpcError {
    /// The call was not accepted.
    pub fn refused(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            may_have_begun: false,
            encodings: Encodings::new(),
        }
    }

    /// The call may have begun, and its connection was lost.
    pub fn lost(message: impl Into<String>) -> Self {
        Self {
            may_have_begun: true,
            ..Self::refused(Code::Unavailable, message)
        }
    }

    /// No process listens at the worker's address.
    pub(crate) fn no_listener(error: &std::io::Error) -> Self {
        Self::refused(Code::Unavailable, format!("{NO_LISTENER} ({error})"))
    }

    /// Whether no process listens at the worker's address, so that the error says nothing about a
    /// worker.
    pub fn is_no_listener(&self) -> bool {
        self.code == Code::Unavailable && self.message.starts_with(NO_LISTENER)
    }

    /// The consequence of the error for the worker and for the call.
    pub fn class(&self) -> ErrorClass {
        if self.may_have_begun {
            return ErrorClass::Call;
        }
        match self.code {
            Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => {
                ErrorClass::Transient
            }
            Code::NotFound | Code::FailedPrecondition | Code::PermissionDenied => {
                ErrorClass::Mismatch
            }
            Code::InvalidArgument => ErrorClass::Call,
            _ => ErrorClass::Worker,
        }
    }
}

impl CallError {
    /// The same error for a routine that can return one.
    pub(crate) fn widen<E>(self) -> CallError<E> {
        match self {
            Self::Failed(Never(never)) => match never {},
            Self::Panicked {
                message,
                place,
                backtrace,
            } => CallError::Panicked {
                message,
                place,
                backtrace,
            },
            Self::TimedOut => CallError::TimedOut,
            Self::Cancelled => CallError::Cancelled,
            Self::Lost {
                reason,
                may_have_begun,
            } => CallError::Lost {
                reason,
                may_have_begun,
            },
            Self::NoWorkers(none) => CallError::NoWorkers(none),
            Self::NoPool => CallError::NoPool,
            Self::UnknownRoutine(message) => CallError::UnknownRoutine(message),
            Self::Version(message) => CallError::Version(message),
            Self::Denied(message) => CallError::Denied(message),
            Self::Arguments(message) => CallError::Arguments(message),
            Self::Result(message) => CallError::Result(message),
        }
    }
}

impl<E> CallError<E> {
    /// Whether the routine may have begun. If not, the call can safely be made again.
    pub fn may_have_begun(&self) -> bool {
        match self {
            Self::Lost { may_have_begun, .. } => *may_have_begun,
            Self::Failed(_)
            | Self::Panicked { .. }
            | Self::TimedOut
            | Self::Cancelled
            | Self::Result(_) => true,
            Self::NoWorkers(_)
            | Self::NoPool
            | Self::UnknownRoutine(_)
            | Self::Version(_)
            | Self::Denied(_)
            | Self::Arguments(_) => false,
        }
    }
}

impl<E> From<RpcError> for CallError<E> {
    fn from(error: RpcError) -> Self {
        let RpcError {
            code,
            message,
            may_have_begun,
            encodings: _,
        } = error;
        match code {
            Code::DeadlineExceeded => Self::TimedOut,
            _ if may_have_begun => Self::Lost {
                reason: message,
                may_have_begun,
            },
            Code::NotFound => Self::UnknownRoutine(message),
            Code::FailedPrecondition => Self::Version(message),
            Code::PermissionDenied => Self::Denied(message),
            Code::InvalidArgument => Self::Arguments(message),
            _ => Self::Lost {
                reason: message,
                may_have_begun,
            },
        }
    }
}

impl fmt::Display for Never {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {}
    }
}

impl std::error::Error for Never {}

impl<'de> Deserialize<'de> for Never {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("this routine returns no error"))
    }
}
