//! A circuit breaker per worker.
//!
//! ```text
//!              failed                3rd in a row               the backoff is over, a call starts
//!  Healthy ────────────► Suspect ────────────────► Ejected ───────────────────────────────────────────► HalfOpen
//!     ▲                     │                       ▲   ▲     failed: twice as long; unavailable: not        │ │
//!     │                     │                       │   └───────────────────────────────────────────────────┘ │
//!     └─────────────────────┴───────────────────────┴───────────── succeeded ──────────────────────────────────┘
//! ```
//!
//! A worker that refuses calls for a temporary reason is not removed but ejected for a while; then
//! one call tries it. Trying a worker that refuses at once, or that cannot be connected to, costs
//! that call almost nothing, so the backoff does not grow: calls return soon after the worker
//! does. Pure: events and times are arguments.

use std::time::Duration;

use raddle_model::ExponentialBackoff;
use tokio::time::Instant;

/// This many failures in a row eject a worker.
const FAILURES: u32 = 3;
/// First backoff.
const FIRST: Duration = Duration::from_secs(1);
/// Longest backoff.
const LONGEST: Duration = Duration::from_secs(60);
const BACKOFF: ExponentialBackoff = ExponentialBackoff::new(FIRST, LONGEST);

/// State of a worker's breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BreakerState {
    /// Calls go to the worker.
    #[default]
    Healthy,
    /// The last `failures` calls failed. Calls still go to the worker.
    Suspect { failures: u32 },
    /// No calls before `until`. `times` is the number of ejections in a row.
    Ejected { until: Instant, times: u32 },
    /// One call tries the worker; others do not wait for its outcome.
    HalfOpen { times: u32 },
}

/// An event of a worker's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthEvent {
    /// A call starts.
    Started,
    /// The worker accepted a call, or refused it for a good reason.
    Succeeded,
    /// The call failed, possibly after a good part of its timeout.
    Failed,
    /// The worker refused at once, or the connection broke.
    Unavailable,
    /// The call in `HalfOpen` was dropped before it had an outcome.
    Abandoned,
}

impl BreakerState {
    /// Whether calls should go to the worker while there are others.
    pub(super) fn admits(self, now: Instant) -> bool {
        match self {
            Self::Healthy | Self::Suspect { .. } => true,
            Self::Ejected { until, .. } => until <= now,
            Self::HalfOpen { .. } => false,
        }
    }

    /// The state after an event.
    pub(super) fn next_state(self, event: HealthEvent, now: Instant) -> Self {
        match (event, self) {
            (HealthEvent::Succeeded, _) => Self::Healthy,
            (HealthEvent::Failed | HealthEvent::Unavailable, Self::Healthy) => {
                Self::Suspect { failures: 1 }
            }
            (HealthEvent::Failed | HealthEvent::Unavailable, Self::Suspect { failures })
                if failures + 1 < FAILURES =>
            {
                Self::Suspect {
                    failures: failures + 1,
                }
            }
            (HealthEvent::Failed | HealthEvent::Unavailable, Self::Suspect { .. }) => {
                Self::ejected(1, now)
            }
            (HealthEvent::Failed, Self::HalfOpen { times }) => {
                Self::ejected(times.saturating_add(1), now)
            }
            (HealthEvent::Unavailable, Self::HalfOpen { .. }) => Self::ejected(1, now),
            // The call was made because all others had failed, or started before the ejection. The
            // cause is the same, so the backoff does not grow.
            (HealthEvent::Failed | HealthEvent::Unavailable, Self::Ejected { .. }) => self,
            (HealthEvent::Started, Self::Ejected { until, times }) if until <= now => {
                Self::HalfOpen { times }
            }
            (HealthEvent::Started, _) => self,
            (HealthEvent::Abandoned, Self::HalfOpen { times }) => {
                Self::Ejected { until: now, times }
            }
            (HealthEvent::Abandoned, _) => self,
        }
    }

    fn ejected(times: u32, now: Instant) -> Self {
        Self::Ejected {
            until: now + BACKOFF.pause(times),
            times,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BreakerState::*, HealthEvent::*, *};

    fn sec(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn follows_the_state_diagram() {
        let now = Instant::now();
        let (due, later) = (
            Ejected {
                until: now,
                times: 2,
            },
            Ejected {
                until: now + sec(1),
                times: 2,
            },
        );
        let suspect = |failures| Suspect { failures };
        for (before, event, after) in [
            (Healthy, Started, Healthy),
            (Healthy, Succeeded, Healthy),
            (Healthy, Failed, suspect(1)),
            (Healthy, Abandoned, Healthy),
            (suspect(1), Started, suspect(1)),
            (suspect(1), Failed, suspect(2)),
            (
                suspect(2),
                Failed,
                Ejected {
                    until: now + sec(1),
                    times: 1,
                },
            ),
            (suspect(2), Succeeded, Healthy),
            (suspect(2), Abandoned, suspect(2)),
            (due, Started, HalfOpen { times: 2 }),
            (later, Started, later),
            (later, Failed, later),
            (later, Succeeded, Healthy),
            (later, Abandoned, later),
            (HalfOpen { times: 2 }, Started, HalfOpen { times: 2 }),
            (HalfOpen { times: 2 }, Succeeded, Healthy),
            (
                HalfOpen { times: 2 },
                Failed,
                Ejected {
                    until: now + sec(4),
                    times: 3,
                },
            ),
            (Healthy, Unavailable, suspect(1)),
            (
                suspect(2),
                Unavailable,
                Ejected {
                    until: now + sec(1),
                    times: 1,
                },
            ),
            (later, Unavailable, later),
            (
                HalfOpen { times: 2 },
                Unavailable,
                Ejected {
                    until: now + sec(1),
                    times: 1,
                },
            ),
            (HalfOpen { times: 2 }, Abandoned, due),
        ] {
            assert_eq!(
                before.next_state(event, now),
                after,
                "{before:?} after {event:?}"
            );
        }
        let admitting =
            [Healthy, suspect(2), due, later, HalfOpen { times: 1 }].map(|state| state.admits(now));
        assert_eq!(admitting, [true, true, true, false, false]);
    }

    proptest! {
        #[test]
        fn never_ejects_for_ever(events in prop::collection::vec((0_u8..5, 0_u64..100), 0..60)) {
            let (mut now, mut state, mut in_a_row) = (Instant::now(), Healthy, 0);
            for (which, passed) in events {
                now += sec(passed);
                let event = [Started, Succeeded, Failed, Unavailable, Abandoned][usize::from(which)];
                state = state.next_state(event, now);
                match event {
                    Succeeded => in_a_row = 0,
                    Failed | Unavailable => in_a_row += 1,
                    Started | Abandoned => {}
                }
                // Three failures eject, and a trial always ends.
                prop_assert_eq!(matches!(state, Healthy | Suspect { .. }), in_a_row < FAILURES);
                if !matches!(state, HalfOpen { .. }) {
                    prop_assert!(state.admits(now + LONGEST));
                }
                prop_assert_eq!(state.next_state(Succeeded, now), Healthy);
            }
        }

        #[test]
        fn half_open_admits_one_call(times in 1_u32..100, calls in 1_usize..10) {
            let now = Instant::now();
            let mut state = Ejected { until: now, times };
            let admitted = (0..calls).filter(|_| {
                let admits = state.admits(now);
                state = state.next_state(Started, now);
                admits
            });
            prop_assert_eq!(admitted.count(), 1);
        }
    }
}
