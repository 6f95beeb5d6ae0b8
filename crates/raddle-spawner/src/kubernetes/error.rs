//! `ApiError`: failures of API calls, and what they mean for a launch.

use std::time::Duration;

use raddle_model::ExponentialBackoff;
use serde::Deserialize;

use raddle_container::{LaunchError, LaunchFailure, one_line};

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ApiError {
    /// No answer.
    #[error("the API server at {server} cannot be reached: {reason}")]
    Unreachable { server: String, reason: String },
    /// The server refuses.
    #[error("the API server refuses ({status} {reason}): {message}")]
    Refused {
        status: u16,
        reason: String,
        message: String,
        retry_after: Option<Duration>,
    },
    /// Our credentials cannot be read.
    #[error("{0}")]
    Credentials(String),
}

/// The `Status` object of a failed call.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ApiStatus {
    pub(super) code: u16,
    pub(super) reason: String,
    pub(super) message: String,
}

/// The reason for a name that exists already.
const ALREADY_EXISTS: &str = "AlreadyExists";

impl ApiError {
    pub(super) fn refused(
        ApiStatus {
            code,
            reason,
            message,
        }: ApiStatus,
        retry_after: Option<Duration>,
    ) -> Self {
        Self::Refused {
            status: code,
            reason: one_line(&reason),
            message: one_line(&message),
            retry_after,
        }
    }

    /// Whether a retry may succeed.
    pub(super) fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            // A conflict of two updates of a quota: one must retry.
            Self::Refused {
                status: 409,
                reason,
                ..
            } => reason != ALREADY_EXISTS,
            Self::Refused { status, .. } => matches!(status, 429 | 500..),
            Self::Credentials(_) => false,
        }
    }

    /// Whether the call may have succeeded in spite of the error.
    pub(super) fn is_uncertain(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. } | Self::Refused { status: 500.., .. }
        )
    }

    pub(super) fn already_exists(&self) -> bool {
        matches!(self, Self::Refused { status: 409, reason, .. } if reason == ALREADY_EXISTS)
    }

    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// Whether the watched version is too old, so that a new list is needed.
    pub(super) fn is_expired(&self) -> bool {
        matches!(self, Self::Refused { status: 410, .. })
    }

    /// How long the server asks to wait.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        if let Self::Refused { retry_after, .. } = self {
            *retry_after
        } else {
            None
        }
    }
}

impl From<&ApiError> for LaunchError {
    fn from(fault: &ApiError) -> Self {
        let said = fault.to_string();
        match fault {
            ApiError::Unreachable { .. } => Self::new(LaunchFailure::Unreachable, said),
            ApiError::Credentials(_) => Self::new(LaunchFailure::Denied, said),
            ApiError::Refused {
                status: 429 | 500..,
                ..
            } => Self::new(LaunchFailure::Unreachable, said),
            ApiError::Refused {
                status: 403,
                message,
                ..
            } if message.contains("exceeded quota") => Self::new(
                LaunchFailure::ResourcesExhausted,
                format!("the namespace has no quota left for another pod: {message}"),
            ),
            ApiError::Refused {
                status: 401 | 403, ..
            } => {
                let needs = "the spawner's account needs to create, list, watch and delete pods, see deploy/kubernetes";
                Self::new(LaunchFailure::Denied, format!("{said}; {needs}"))
            }
            ApiError::Refused { .. } => Self::new(LaunchFailure::Refused, said),
        }
    }
}

/// Pauses that grow with consecutive failures.
#[derive(Debug, Default)]
pub(super) struct ApiBackoff(u32);

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Longest wait that a server can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

impl ApiBackoff {
    /// The pause after this failure.
    pub(super) fn pause_after(&mut self, fault: Option<&ApiError>) -> Duration {
        self.0 += 1;
        let own = ExponentialBackoff::new(FIRST_PAUSE, MAX_PAUSE).pause(self.0);
        let retry_after = fault.and_then(ApiError::retry_after).unwrap_or_default();
        own.max(retry_after.min(MAX_RETRY_AFTER))
    }

    /// Whether there was no failure yet, so that the next one is logged.
    pub(super) fn is_first(&self) -> bool {
        self.0 == 0
    }

    pub(super) fn reset(&mut self) {
        self.0 = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, reason: &str, message: &str) -> ApiError {
        ApiError::Refused {
            status,
            reason: reason.into(),
            message: message.into(),
            retry_after: None,
        }
    }

    #[test]
    fn distinguishes_passing_from_lasting_failures() {
        let unreachable = ApiError::Unreachable {
            server: "x:1".into(),
            reason: "refused".into(),
        };
        assert!(unreachable.is_retryable() && unreachable.is_uncertain());
        for (fault, passes) in [
            (refused(429, "TooManyRequests", ""), true),
            (refused(503, "", ""), true),
            (refused(409, "Conflict", ""), true),
            (refused(409, "AlreadyExists", ""), false),
            (refused(403, "Forbidden", ""), false),
            (refused(422, "Invalid", ""), false),
        ] {
            assert_eq!(fault.is_retryable(), passes, "{fault}");
        }
        assert!(
            !refused(429, "", "").is_uncertain(),
            "the server did not process it"
        );
    }

    #[test]
    fn classifies_launch_failures() {
        let seen = |fault: ApiError| LaunchError::from(&fault);
        assert_eq!(
            seen(refused(403, "Forbidden", "pods is forbidden")).kind,
            LaunchFailure::Denied
        );
        assert_eq!(
            seen(refused(403, "Forbidden", "exceeded quota: pods=5")).kind,
            LaunchFailure::ResourcesExhausted
        );
        assert_eq!(seen(refused(429, "", "")).kind, LaunchFailure::Unreachable);
        assert_eq!(
            seen(refused(422, "Invalid", "spec.x")).kind,
            LaunchFailure::Refused
        );
        assert!(
            seen(refused(403, "Forbidden", "no"))
                .to_string()
                .contains("deploy/kubernetes")
        );
    }

    #[test]
    fn pauses_grow_and_honour_retry_after_within_a_limit() {
        let mut backoff = ApiBackoff::default();
        let retry_after = |secs| ApiError::Refused {
            status: 429,
            reason: String::new(),
            message: String::new(),
            retry_after: Some(Duration::from_secs(secs)),
        };
        assert_eq!(backoff.pause_after(None), FIRST_PAUSE);
        assert_eq!(backoff.pause_after(None), FIRST_PAUSE * 2);
        assert_eq!(
            backoff.pause_after(Some(&retry_after(7))),
            Duration::from_secs(7)
        );
        assert_eq!(
            backoff.pause_after(Some(&retry_after(7000))),
            MAX_RETRY_AFTER
        );
        for _ in 0..40 {
            backoff.pause_after(None);
        }
        assert_eq!(backoff.pause_after(None), MAX_PAUSE);
    }
}
