//! Every end of an attempt, under every policy.

use proptest::prelude::*;

use super::*;
use crate::{Retry, Span, arbitrary, spec::Reserved::*};

fn spec(attempts: u32, on_stop: Reserved, on_error: Reserved) -> Spec {
    let mut spec = Spec::command(["true"]);
    spec.retry = Retry { attempts, base: Span::secs(10), jitter: 0.0, ..Retry::default() };
    (spec.on_stop, spec.on_error) = (on_stop, on_error);
    spec
}

fn tid() -> Tid {
    "1790000000000000001".parse().unwrap()
}

fn lost() -> Exit {
    Exit::Lost { message: "worker gone".into() }
}

fn dead(state: State, tally: Tally) -> Next {
    Next::Done { state, dead: true, tally }
}

const FRESH: Tally = Tally { attempt: 1, failures: 0, losses: 0 };
const ALL: [Reserved; 3] = [Requeue, Keep, Clear];

#[test]
fn success_and_kill_are_final_under_every_policy() {
    for on_stop in ALL {
        for on_error in ALL {
            let spec = spec(5, on_stop, on_error);
            assert_eq!(settle(&spec, tid(), FRESH, &Exit::Code { code: 0 }), done(State::Completed, FRESH));
            assert_eq!(settle(&spec, tid(), FRESH, &Exit::Killed), done(State::Killed, FRESH));
        }
    }
}

#[test]
fn a_cancelled_task_goes_back_only_when_it_asked_to() {
    for on_error in ALL {
        let cancelled = |on_stop| settle(&spec(1, on_stop, on_error), tid(), FRESH, &Exit::Cancelled);
        assert_eq!(cancelled(Clear), done(State::Cancelled, FRESH));
        assert_eq!(cancelled(Keep), done(State::Cancelled, FRESH));
        assert_eq!(cancelled(Requeue), Next::Again { pause: Duration::ZERO, tally: FRESH }, "it spends no attempt");
    }
}

#[test]
fn a_failure_is_tried_again_until_the_attempts_are_used_up() {
    let spec = spec(3, Clear, Keep);
    let mut tally = FRESH;
    for (failures, secs) in [(1, 10), (2, 20)] {
        let expected = Tally { failures, ..FRESH };
        let next = settle(&spec, tid(), tally, &Exit::Code { code: 1 });
        assert_eq!(next, Next::Again { pause: Duration::from_secs(secs), tally: expected });
        tally = expected;
    }
    let last = Tally { failures: 3, ..FRESH };
    assert_eq!(
        settle(&spec, tid(), tally, &Exit::Code { code: 1 }),
        dead(State::Failed, last),
        "the last one counts too"
    );
    assert_eq!(settle(&spec, tid(), tally, &Exit::Timeout), dead(State::Timeout, last));
    assert_eq!(settle(&spec, tid(), tally, &Exit::OutOfMemory), dead(State::Failed, last));
}

#[test]
fn an_exhausted_task_is_kept_cleared_or_put_back() {
    let exhausted = |on_error, exit| settle(&spec(1, Clear, on_error), tid(), FRESH, &exit);
    let tally = Tally { failures: 1, ..FRESH };
    assert_eq!(exhausted(Keep, Exit::Timeout), dead(State::Timeout, tally));
    assert_eq!(exhausted(Clear, Exit::Timeout), done(State::Timeout, tally));
    assert_eq!(exhausted(Keep, Exit::Signal { signal: 11 }), dead(State::Failed, tally));
    assert_eq!(exhausted(Clear, Exit::Signal { signal: 11 }), done(State::Failed, tally));
    assert_eq!(exhausted(Requeue, Exit::Timeout), Next::Again { pause: Duration::from_secs(10), tally });
}

#[test]
fn a_task_survives_the_loss_of_its_worker_but_not_of_all_of_them() {
    let spec_of = |attempts| spec(attempts, Clear, Keep);
    let mut tally = FRESH;
    for losses in 1..LOSSES_ALLOWED {
        let expected = Tally { losses, ..FRESH };
        assert_eq!(
            settle(&spec_of(1), tid(), tally, &lost()),
            Next::Again { pause: Duration::ZERO, tally: expected },
            "a loss costs no failure and no pause"
        );
        tally = expected;
    }
    let last = Tally { losses: LOSSES_ALLOWED, ..FRESH };
    assert_eq!(settle(&spec_of(1), tid(), tally, &lost()), dead(State::Failed, last));
    assert!(matches!(settle(&spec_of(9), tid(), tally, &lost()), Next::Again { .. }), "more attempts, more losses");
}

#[test]
fn what_a_worker_could_not_begin_waits_and_is_charged_nothing() {
    let message = || "none left".to_owned();
    for exit in [Exit::Unfit { message: message() }, Exit::Starved { message: message() }] {
        let next = settle(&spec(1, Clear, Keep), tid(), FRESH, &exit);
        assert_eq!(next, Next::Again { pause: UNBEGUN_PAUSE, tally: FRESH });
        assert_eq!(event_before_another(&exit), EventKind::Released);
    }
}

#[test]
fn a_lease_that_ran_out_is_not_held_against_a_task_but_not_for_ever() {
    let tally = Tally { attempt: UNCHARGED_ATTEMPTS, ..FRESH };
    assert_eq!(
        settle(&spec(1, Clear, Keep), tid(), tally, &Exit::Lapsed),
        Next::Again { pause: Duration::ZERO, tally }
    );
    assert_eq!(event_before_another(&Exit::Lapsed), EventKind::Released);
    let tally = Tally { attempt: UNCHARGED_ATTEMPTS + 1, ..FRESH };
    let charged = Tally { losses: 1, ..tally };
    let next = settle(&spec(1, Clear, Keep), tid(), tally, &Exit::Lapsed);
    assert_eq!(next, Next::Again { pause: Duration::ZERO, tally: charged });
}

proptest! {
    #[test]
    fn what_follows_is_always_a_legal_step(
        mut spec in arbitrary::spec(), tid in arbitrary::tid(), exit in arbitrary::exit(),
        on_stop in arbitrary::reserved(), failures in 0..30u32, losses in 0..30u32, attempt: u32,
    ) {
        spec.on_stop = on_stop;
        let tally = Tally { attempt, failures, losses };
        match settle(&spec, tid, tally, &exit) {
            Next::Done { state, dead, .. } => {
                prop_assert!(State::Running.may_become(state) && state.is_terminal());
                prop_assert_eq!(state == State::Completed, exit.is_success());
                prop_assert!(!dead || spec.on_error == Keep && matches!(state, State::Failed | State::Timeout));
            }
            Next::Again { pause, tally: after } => {
                prop_assert_eq!(after.attempt, attempt, "the number of an attempt is given by the claim alone");
                let spent = after.failures - failures + after.losses - losses;
                prop_assert_eq!(spent, u32::from(exit != Exit::Cancelled));
                prop_assert!(pause <= spec.retry.max.0 + Duration::from_micros(1));
            }
        }
    }

    #[test]
    fn a_run_of_attempts_ends_unless_the_spec_asks_to_go_on(
        mut spec in arbitrary::spec(), tid in arbitrary::tid(),
        exits in proptest::collection::vec(arbitrary::exit(), 1..20),
        on_error in prop_oneof![Just(Keep), Just(Clear)],
    ) {
        // A stop that puts the task back is somebody's wish each time; only what happens by itself must come to an end.
        (spec.on_error, spec.on_stop) = (on_error, Clear);
        let most = spec.retry.attempts + spec.retry.attempts.max(LOSSES_ALLOWED);
        let mut tally = Tally::default();
        let mut ended = None;
        for exit in exits.iter().cycle().take(most as usize) {
            match settle(&spec, tid, tally, exit) {
                Next::Done { state, .. } => {
                    ended = Some(state);
                    break;
                }
                Next::Again { tally: after, .. } => tally = after,
            }
        }
        prop_assert!(ended.is_some_and(State::is_terminal), "{tally:?} after {most} attempts");
    }

    #[test]
    fn a_task_that_is_put_back_on_error_never_ends_by_failing(
        mut spec in arbitrary::spec(), tid in arbitrary::tid(), exits in proptest::collection::vec(arbitrary::failure(), 1..60),
    ) {
        spec.on_error = Requeue;
        let mut tally = Tally::default();
        for exit in exits {
            match settle(&spec, tid, tally, &exit) {
                Next::Again { tally: after, .. } => tally = after,
                over => prop_assert!(false, "{over:?}"),
            }
        }
    }
}
