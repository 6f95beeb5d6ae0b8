//! Every exit, under every policy.

use proptest::prelude::*;

use super::*;
use crate::{HumanDuration, RetryPolicy, arbitrary, spec::ReservedPolicy::*};

fn spec(attempts: u32, on_stop: ReservedPolicy, on_error: ReservedPolicy) -> TaskSpec {
    let mut spec = TaskSpec::command(["true"]);
    spec.retry = RetryPolicy {
        attempts,
        base: HumanDuration::secs(10),
        jitter: 0.0,
        ..RetryPolicy::default()
    };
    (spec.on_stop, spec.on_error) = (on_stop, on_error);
    spec
}

fn tid() -> Tid {
    "1790000000000000001".parse().unwrap()
}

fn lost() -> ExitStatus {
    ExitStatus::WorkerLost {
        message: "worker gone".into(),
    }
}

fn dead(state: TaskState, counters: AttemptCounters) -> NextStep {
    NextStep::Finish {
        state,
        dead: true,
        counters,
    }
}

const FRESH: AttemptCounters = AttemptCounters {
    attempt: 1,
    failures: 0,
    losses: 0,
};
const ALL: [ReservedPolicy; 3] = [Requeue, Keep, Clear];

#[test]
fn success_and_kill_are_final_under_every_policy() {
    for on_stop in ALL {
        for on_error in ALL {
            let spec = spec(5, on_stop, on_error);
            assert_eq!(
                decide_next(&spec, tid(), FRESH, &ExitStatus::Code { code: 0 }),
                finish(TaskState::Completed, FRESH)
            );
            assert_eq!(
                decide_next(&spec, tid(), FRESH, &ExitStatus::Killed),
                finish(TaskState::Killed, FRESH)
            );
        }
    }
}

#[test]
fn requeues_a_cancelled_task_only_if_its_spec_says_so() {
    for on_error in ALL {
        let cancelled = |on_stop| {
            decide_next(
                &spec(1, on_stop, on_error),
                tid(),
                FRESH,
                &ExitStatus::Cancelled,
            )
        };
        assert_eq!(cancelled(Clear), finish(TaskState::Cancelled, FRESH));
        assert_eq!(cancelled(Keep), finish(TaskState::Cancelled, FRESH));
        assert_eq!(
            cancelled(Requeue),
            NextStep::Retry {
                pause: Duration::ZERO,
                counters: FRESH
            },
            "it spends no attempt"
        );
    }
}

#[test]
fn retries_failures_until_attempts_are_exhausted() {
    let spec = spec(3, Clear, Keep);
    let mut counters = FRESH;
    for (failures, secs) in [(1, 10), (2, 20)] {
        let expected = AttemptCounters { failures, ..FRESH };
        let next = decide_next(&spec, tid(), counters, &ExitStatus::Code { code: 1 });
        assert_eq!(
            next,
            NextStep::Retry {
                pause: Duration::from_secs(secs),
                counters: expected
            }
        );
        counters = expected;
    }
    let last = AttemptCounters {
        failures: 3,
        ..FRESH
    };
    assert_eq!(
        decide_next(&spec, tid(), counters, &ExitStatus::Code { code: 1 }),
        dead(TaskState::Failed, last),
        "the last one counts too"
    );
    assert_eq!(
        decide_next(&spec, tid(), counters, &ExitStatus::Timeout),
        dead(TaskState::Timeout, last)
    );
    assert_eq!(
        decide_next(&spec, tid(), counters, &ExitStatus::OutOfMemory),
        dead(TaskState::Failed, last)
    );
}

#[test]
fn on_error_keeps_clears_or_requeues_an_exhausted_task() {
    let exhausted = |on_error, exit| decide_next(&spec(1, Clear, on_error), tid(), FRESH, &exit);
    let counters = AttemptCounters {
        failures: 1,
        ..FRESH
    };
    assert_eq!(
        exhausted(Keep, ExitStatus::Timeout),
        dead(TaskState::Timeout, counters)
    );
    assert_eq!(
        exhausted(Clear, ExitStatus::Timeout),
        finish(TaskState::Timeout, counters)
    );
    assert_eq!(
        exhausted(Keep, ExitStatus::Signal { signal: 11 }),
        dead(TaskState::Failed, counters)
    );
    assert_eq!(
        exhausted(Clear, ExitStatus::Signal { signal: 11 }),
        finish(TaskState::Failed, counters)
    );
    assert_eq!(
        exhausted(Requeue, ExitStatus::Timeout),
        NextStep::Retry {
            pause: Duration::from_secs(10),
            counters
        }
    );
}

#[test]
fn survives_a_limited_number_of_lost_workers() {
    let spec_of = |attempts| spec(attempts, Clear, Keep);
    let mut counters = FRESH;
    for losses in 1..LOSSES_ALLOWED {
        let expected = AttemptCounters { losses, ..FRESH };
        assert_eq!(
            decide_next(&spec_of(1), tid(), counters, &lost()),
            NextStep::Retry {
                pause: Duration::ZERO,
                counters: expected
            },
            "a loss costs no failure and no pause"
        );
        counters = expected;
    }
    let last = AttemptCounters {
        losses: LOSSES_ALLOWED,
        ..FRESH
    };
    assert_eq!(
        decide_next(&spec_of(1), tid(), counters, &lost()),
        dead(TaskState::Failed, last)
    );
    assert!(
        matches!(
            decide_next(&spec_of(9), tid(), counters, &lost()),
            NextStep::Retry { .. }
        ),
        "more attempts, more losses"
    );
}

#[test]
fn tasks_that_could_not_start_wait_uncharged() {
    let message = || "none left".to_owned();
    for exit in [
        ExitStatus::NoHandler { message: message() },
        ExitStatus::ResourceExhausted { message: message() },
    ] {
        let next = decide_next(&spec(1, Clear, Keep), tid(), FRESH, &exit);
        assert_eq!(
            next,
            NextStep::Retry {
                pause: NOT_STARTED_PAUSE,
                counters: FRESH
            }
        );
        assert_eq!(event_before_another(&exit), TaskEventKind::Released);
    }
}

#[test]
fn expired_leases_are_charged_only_after_many_attempts() {
    let counters = AttemptCounters {
        attempt: UNCHARGED_ATTEMPTS,
        ..FRESH
    };
    assert_eq!(
        decide_next(
            &spec(1, Clear, Keep),
            tid(),
            counters,
            &ExitStatus::LeaseExpired
        ),
        NextStep::Retry {
            pause: Duration::ZERO,
            counters
        }
    );
    assert_eq!(
        event_before_another(&ExitStatus::LeaseExpired),
        TaskEventKind::Released
    );
    let counters = AttemptCounters {
        attempt: UNCHARGED_ATTEMPTS + 1,
        ..FRESH
    };
    let charged = AttemptCounters {
        losses: 1,
        ..counters
    };
    let next = decide_next(
        &spec(1, Clear, Keep),
        tid(),
        counters,
        &ExitStatus::LeaseExpired,
    );
    assert_eq!(
        next,
        NextStep::Retry {
            pause: Duration::ZERO,
            counters: charged
        }
    );
}

proptest! {
    #[test]
    fn next_step_is_a_legal_transition(
        mut spec in arbitrary::spec(), tid in arbitrary::tid(), exit in arbitrary::exit(),
        on_stop in arbitrary::reserved(), failures in 0..30u32, losses in 0..30u32, attempt: u32,
    ) {
        spec.on_stop = on_stop;
        let counters = AttemptCounters { attempt, failures, losses };
        match decide_next(&spec, tid, counters, &exit) {
            NextStep::Finish { state, dead, .. } => {
                prop_assert!(TaskState::Running.may_become(state) && state.is_terminal());
                prop_assert_eq!(state == TaskState::Completed, exit.is_success());
                prop_assert!(!dead || spec.on_error == Keep && matches!(state, TaskState::Failed | TaskState::Timeout));
            }
            NextStep::Retry { pause, counters: after } => {
                prop_assert_eq!(after.attempt, attempt, "the number of an attempt is given by the claim alone");
                let spent = after.failures - failures + after.losses - losses;
                let is_charged = match exit {
                    ExitStatus::LeaseExpired => attempt > UNCHARGED_ATTEMPTS,
                    exit => exit != ExitStatus::Cancelled,
                };
                prop_assert_eq!(spent, u32::from(is_charged));
                prop_assert!(pause <= spec.retry.max.0 + Duration::from_micros(1));
            }
        }
    }

    #[test]
    fn retries_end_unless_the_spec_requeues(
        mut spec in arbitrary::spec(), tid in arbitrary::tid(),
        exits in proptest::collection::vec(arbitrary::exit(), 1..20),
        on_error in prop_oneof![Just(Keep), Just(Clear)],
    ) {
        // Each stop that requeues the task is requested by a user. Only automatic retries must come
        // to an end.
        (spec.on_error, spec.on_stop) = (on_error, Clear);
        let most = spec.retry.attempts + spec.retry.attempts.max(LOSSES_ALLOWED) + UNCHARGED_ATTEMPTS;
        let mut counters = AttemptCounters::default();
        let mut ended = None;
        for exit in exits.iter().cycle().take(most as usize) {
            counters.attempt += 1;
            match decide_next(&spec, tid, counters, exit) {
                NextStep::Finish { state, .. } => {
                    ended = Some(state);
                    break;
                }
                NextStep::Retry { counters: after, .. } => counters = after,
            }
        }
        prop_assert!(ended.is_some_and(TaskState::is_terminal), "{counters:?} after {most} attempts");
    }

    #[test]
    fn requeue_on_error_never_finishes_a_failing_task(
        mut spec in arbitrary::spec(), tid in arbitrary::tid(), exits in proptest::collection::vec(arbitrary::failure(), 1..60),
    ) {
        spec.on_error = Requeue;
        let mut counters = AttemptCounters::default();
        for exit in exits {
            match decide_next(&spec, tid, counters, &exit) {
                NextStep::Retry { counters: after, .. } => counters = after,
                over => prop_assert!(false, "{over:?}"),
            }
        }
    }
}

#[test]
fn a_routine_that_asks_to_run_again_is_not_charged() {
    let exit = ExitStatus::Error {
        message: "not yet".into(),
        permanent: false,
        retry_after_ms: Some(30_000),
    };
    for on_error in ALL {
        assert_eq!(
            decide_next(&spec(1, Clear, on_error), tid(), FRESH, &exit),
            NextStep::Retry {
                pause: Duration::from_secs(30),
                counters: FRESH
            }
        );
    }
}
