//! What can go wrong with a call.

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
        /// What it said.
        message: String,
        /// Where in the code.
        place: String,
        /// How it came there.
        backtrace: String,
    },
    /// It did not end in the time it had.
    #[error("the call did not end in the time it had")]
    TimedOut,
    /// It was cancelled, because its worker was told to stop.
    #[error("the call was cancelled: its worker was told to stop")]
    Cancelled,
    /// Its worker, or the way to it, was lost before anybody heard of an end.
    #[error("the worker was lost: {reason}{}", if *may_have_begun { "; the routine may have begun" } else { "" })]
    Lost {
        /// What happened.
        reason: String,
        /// Whether the routine may have begun. If not, the call can be made again without a second thought.
        may_have_begun: bool,
    },
    /// There is nobody to call.
    #[error(transparent)]
    NoWorkers(#[from] NoWorkersAvailable),
    /// It was called outside of the scope of a pool.
    #[error(
        "no pool to call in: call it in `pool.scope(…)`, or with `.on(&pool)`. A task of `tokio::spawn` is outside of every scope: spawn it with \
         `pool.spawn(…)`, or in a routine with `raddle::spawn(…)`"
    )]
    NoPool,
    /// No worker has a routine of this name.
    #[error("{0}: are the workers of another version?")]
    UnknownRoutine(String),
    /// The worker speaks another version of the protocol.
    #[error("{0}")]
    Version(String),
    /// The worker does not let this caller call the routine.
    #[error("{0}")]
    Denied(String),
    /// The arguments cannot be sent, or do not fit the routine.
    #[error("{0}")]
    Arguments(String),
    /// The result could not be sent, or is not of the type that is asked for.
    #[error("the result could not be read: {0}")]
    Result(String),
}

/// Every worker was tried, or there is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no workers available{}", .0.as_ref().map(|last| format!(": {last}")).unwrap_or_default())]
pub struct NoWorkersAvailable(pub Option<String>);

/// Why a worker did not take a call, or why nothing is heard of one that it may have taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    /// As gRPC has it.
    pub code: Code,
    /// For people.
    pub message: String,
    /// Whether the routine may have begun. Then nobody else may be asked.
    pub may_have_begun: bool,
    /// The encodings that the worker reads, if it has refused that of the call.
    pub reads: Encodings,
}

/// What follows from an error for the worker, and for the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// It will pass: the worker stays, and the next one is asked.
    Passing,
    /// The worker is no use: it goes, and the next one is asked.
    Worker,
    /// The worker is well, but not the one for this call: it stays, and the next one is asked.
    Unsuited,
    /// The call itself, or nobody can tell any more: it is over.
    Call,
}

/// What is said where nobody was met.
const NOBODY: &str = "nobody serves there";

impl RpcError {
    /// A call that was not taken.
    pub fn refused(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            may_have_begun: false,
            reads: Encodings::new(),
        }
    }

    /// A call of which nothing is heard any more.
    pub fn lost(message: impl Into<String>) -> Self {
        Self {
            may_have_begun: true,
            ..Self::refused(Code::Unavailable, message)
        }
    }

    /// Nobody was met where the worker is said to serve.
    pub(crate) fn nobody(error: &std::io::Error) -> Self {
        Self::refused(Code::Unavailable, format!("{NOBODY} ({error})"))
    }

    /// Whether nobody was met there at all, and so nothing can be said of who serves.
    pub fn is_of_nobody(&self) -> bool {
        self.code == Code::Unavailable && self.message.starts_with(NOBODY)
    }

    /// What follows from it.
    pub fn blame(&self) -> ErrorClass {
        if self.may_have_begun {
            return ErrorClass::Call;
        }
        match self.code {
            Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => {
                ErrorClass::Passing
            }
            Code::NotFound | Code::FailedPrecondition | Code::PermissionDenied => {
                ErrorClass::Unsuited
            }
            Code::InvalidArgument => ErrorClass::Call,
            _ => ErrorClass::Worker,
        }
    }
}

impl CallError {
    /// The same error, of a routine that could have returned one.
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
    /// Whether the routine may have begun. If not, the call can be made again without a second thought.
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
            reads: _,
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
