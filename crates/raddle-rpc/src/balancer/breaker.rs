//! Whether a worker is worth asking: a circuit breaker.
//!
//! ```text
//!              failed                3rd in a row               the backoff is over, and somebody asks
//!  Healthy ────────────► Suspect ────────────────► Ejected ───────────────────────────────────────────► HalfOpen
//!     ▲                     │                       ▲   ▲     failed: twice as long; unavailable: not        │ │
//!     │                     │                       │   └───────────────────────────────────────────────────┘ │
//!     └─────────────────────┴───────────────────────┴───────────── succeeded ──────────────────────────────────┘
//! ```
//!
//! A worker that refuses calls for a reason that passes is not removed, but left alone for a while. After that, one call tries it. To try one that
//! says at once that it does not take calls, or that is not reached, costs that call next to nothing: it is left alone for no longer each
//! time, so that it is called again soon after it is back. Pure: what is told, and what time it is, is given.

use std::time::Duration;

use raddle_model::ExponentialBackoff;
use tokio::time::Instant;

/// So many failures in a row are no accident.
const FAILURES: u32 = 3;
/// How long a worker is left alone, the first time.
const FIRST: Duration = Duration::from_secs(1);
/// The longest that it is left alone.
const LONGEST: Duration = Duration::from_secs(60);
const BACKOFF: ExponentialBackoff = ExponentialBackoff::new(FIRST, LONGEST);

/// How a worker is thought of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BreakerState {
    /// It takes calls.
    #[default]
    Healthy,
    /// It has failed, so often in a row. It is asked as if nothing had happened.
    Suspect { failures: u32 },
    /// It is left alone until then; `times` in a row.
    Ejected { until: Instant, times: u32 },
    /// One call tries it. Others are not to wait for what comes of it.
    HalfOpen { times: u32 },
}

/// What happens to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthEvent {
    /// It is asked to take a call.
    Asked,
    /// It has taken one, or has given a good reason not to.
    Succeeded,
    /// It has not, and to find that out may have cost the call a good part of its time.
    Failed,
    /// It has not, and that was said at once; or the way to it broke.
    Unavailable,
    /// The caller of the call that was to try it did not wait for an answer.
    Abandoned,
}

impl BreakerState {
    /// Whether it is to be asked, as long as there are others.
    pub(super) fn admits(self, now: Instant) -> bool {
        match self {
            Self::Healthy | Self::Suspect { .. } => true,
            Self::Ejected { until, .. } => until <= now,
            Self::HalfOpen { .. } => false,
        }
    }

    /// What follows from what happens.
    pub(super) fn after(self, happening: HealthEvent, now: Instant) -> Self {
        match (happening, self) {
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
            // Asked because all others had failed, or before it was ejected. It is the same trouble, so it takes no longer.
            (HealthEvent::Failed | HealthEvent::Unavailable, Self::Ejected { .. }) => self,
            (HealthEvent::Asked, Self::Ejected { until, times }) if until <= now => {
                Self::HalfOpen { times }
            }
            (HealthEvent::Asked, _) => self,
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
    fn each_step_is_as_drawn() {
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
        for (before, happening, after) in [
            (Healthy, Asked, Healthy),
            (Healthy, Succeeded, Healthy),
            (Healthy, Failed, suspect(1)),
            (Healthy, Abandoned, Healthy),
            (suspect(1), Asked, suspect(1)),
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
            (due, Asked, HalfOpen { times: 2 }),
            (later, Asked, later),
            (later, Failed, later),
            (later, Succeeded, Healthy),
            (later, Abandoned, later),
            (HalfOpen { times: 2 }, Asked, HalfOpen { times: 2 }),
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
                before.after(happening, now),
                after,
                "{before:?} after {happening:?}"
            );
        }
        let admitting = [Healthy, suspect(2), due, later, HalfOpen { times: 1 }]
            .map(|health| health.admits(now));
        assert_eq!(admitting, [true, true, true, false, false]);
    }

    proptest! {
        #[test]
        fn nobody_is_left_alone_for_ever(happenings in prop::collection::vec((0_u8..5, 0_u64..100), 0..60)) {
            let (mut now, mut health, mut in_a_row) = (Instant::now(), Healthy, 0);
            for (which, passed) in happenings {
                now += sec(passed);
                let happening = [Asked, Succeeded, Failed, Unavailable, Abandoned][usize::from(which)];
                health = health.after(happening, now);
                match happening {
                    Succeeded => in_a_row = 0,
                    Failed | Unavailable => in_a_row += 1,
                    Asked | Abandoned => {}
                }
                // It takes three to be ejected, and a trial always comes to an end.
                prop_assert_eq!(matches!(health, Healthy | Suspect { .. }), in_a_row < FAILURES);
                if !matches!(health, HalfOpen { .. }) {
                    prop_assert!(health.admits(now + LONGEST));
                }
                prop_assert_eq!(health.after(Succeeded, now), Healthy);
            }
        }

        #[test]
        fn one_call_tries_at_a_time(times in 1_u32..100, asked in 1_usize..10) {
            let now = Instant::now();
            let mut health = Ejected { until: now, times };
            let admitted = (0..asked).filter(|_| {
                let admits = health.admits(now);
                health = health.after(Asked, now);
                admits
            });
            prop_assert_eq!(admitted.count(), 1);
        }
    }
}
