//! What went wrong with a call, and what that means for a launch.

use std::time::Duration;

use raddle_model::ExponentialBackoff;
use serde::Deserialize;

use raddle_container::{LaunchError, LaunchFailure, one_line};

/// What went wrong with a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ApiError {
    /// There is no answer.
    #[error("the API server at {server} cannot be reached: {reason}")]
    Unreachable { server: String, reason: String },
    /// The answer is that it will not be.
    #[error("the API server refuses ({status} {reason}): {message}")]
    Refused {
        status: u16,
        reason: String,
        message: String,
        retry_after: Option<Duration>,
    },
    /// What we are known by cannot be read.
    #[error("{0}")]
    Unknown(String),
}

/// What the API says of a failure.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ApiStatus {
    pub(super) code: u16,
    pub(super) reason: String,
    pub(super) message: String,
}

/// What the API says of a name that another pod has.
const TAKEN: &str = "AlreadyExists";

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

    /// Whether it may go better if tried again.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            // Two that change the same count of a quota: one has to come again.
            Self::Refused {
                status: 409,
                reason,
                ..
            } => reason != TAKEN,
            Self::Refused { status, .. } => matches!(status, 429 | 500..),
            Self::Unknown(_) => false,
        }
    }

    /// Whether it may have been done all the same.
    pub(super) fn is_open(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. } | Self::Refused { status: 500.., .. }
        )
    }

    pub(super) fn is_taken(&self) -> bool {
        matches!(self, Self::Refused { status: 409, reason, .. } if reason == TAKEN)
    }

    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// That a list which is followed is out of date, and has to be asked for anew.
    pub(super) fn is_expired(&self) -> bool {
        matches!(self, Self::Refused { status: 410, .. })
    }

    /// How long the server wants to be left alone.
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
            ApiError::Unknown(_) => Self::new(LaunchFailure::Denied, said),
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
                format!("the namespace has no room for another pod: {message}"),
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

/// Pauses that grow while something does not go well.
#[derive(Debug, Default)]
pub(super) struct ApiBackoff(u32);

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A server that wants to be left alone for longer is asked all the same.
const LONGEST_WISH: Duration = Duration::from_secs(60);

impl ApiBackoff {
    /// How long to wait after this.
    pub(super) fn after(&mut self, fault: Option<&ApiError>) -> Duration {
        self.0 += 1;
        let own = ExponentialBackoff::new(FIRST_PAUSE, LONGEST_PAUSE).pause(self.0);
        let wish = fault.and_then(ApiError::retry_after).unwrap_or_default();
        own.max(wish.min(LONGEST_WISH))
    }

    /// Whether this is the first in a row: the others need not be said.
    pub(super) fn is_fresh(&self) -> bool {
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
    fn what_passes_is_told_from_what_does_not() {
        let unreachable = ApiError::Unreachable {
            server: "x:1".into(),
            reason: "refused".into(),
        };
        assert!(unreachable.is_passing() && unreachable.is_open());
        for (fault, passes) in [
            (refused(429, "TooManyRequests", ""), true),
            (refused(503, "", ""), true),
            (refused(409, "Conflict", ""), true),
            (refused(409, "AlreadyExists", ""), false),
            (refused(403, "Forbidden", ""), false),
            (refused(422, "Invalid", ""), false),
        ] {
            assert_eq!(fault.is_passing(), passes, "{fault}");
        }
        assert!(!refused(429, "", "").is_open(), "it was not even looked at");
    }

    #[test]
    fn what_is_conflict_is_named() {
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
    fn pauses_grow_and_a_wish_is_granted_within_reason() {
        let mut backoff = ApiBackoff::default();
        let wish = |secs| ApiError::Refused {
            status: 429,
            reason: String::new(),
            message: String::new(),
            retry_after: Some(Duration::from_secs(secs)),
        };
        assert_eq!(backoff.after(None), FIRST_PAUSE);
        assert_eq!(backoff.after(None), FIRST_PAUSE * 2);
        assert_eq!(backoff.after(Some(&wish(7))), Duration::from_secs(7));
        assert_eq!(backoff.after(Some(&wish(7000))), LONGEST_WISH);
        for _ in 0..40 {
            backoff.after(None);
        }
        assert_eq!(backoff.after(None), LONGEST_PAUSE);
    }
}
