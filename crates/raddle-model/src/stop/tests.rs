//! The staged stop never goes back and keeps its deadlines.

use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(5);
const DRAIN: Duration = Duration::from_secs(60);

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Request,
    Kill,
    Terminate,
    Tick,
}

fn policy() -> impl Strategy<Value = StopPolicy> {
    let drain = prop_oneof![
        Just(None),
        Just(Some(Duration::ZERO)),
        Just(Some(Duration::MAX)),
        (0..100u64).prop_map(|s| Some(secs(s))),
    ];
    let grace = prop_oneof![Just(Duration::MAX), (0..100u64).prop_map(secs)];
    (drain, grace).prop_map(|(drain, grace)| StopPolicy { drain, grace })
}

fn actions() -> impl Strategy<Value = Vec<(Action, u64)>> {
    let action = prop_oneof![
        2 => Just(Action::Request),
        1 => Just(Action::Kill),
        1 => Just(Action::Terminate),
        6 => Just(Action::Tick),
    ];
    proptest::collection::vec((action, 0..40u64), 0..30)
}

proptest! {
    #[test]
    fn stages_never_go_back_and_requests_always_move_on(policy in policy(), actions in actions()) {
        let mut stop = StagedStop::new(policy);
        let mut now = Duration::ZERO;
        for (action, wait) in actions {
            now += secs(wait);
            let (before, due) = (stop.stage(), stop.deadline());
            match action {
                Action::Request => {
                    let stage = stop.request(now);
                    prop_assert!(stage > before || before == StopStage::Killing);
                }
                Action::Kill => prop_assert_eq!(stop.kill(now), StopStage::Killing),
                Action::Terminate => prop_assert_eq!(stop.reach(StopStage::Terminating, now), before.max(StopStage::Terminating)),
                Action::Tick => {
                    let moved = stop.tick(now);
                    prop_assert_eq!(moved.is_some(), due.is_some_and(|due| due <= now));
                    prop_assert_eq!(moved.unwrap_or(before), stop.stage());
                }
            }
            prop_assert!(stop.stage() >= before);
            if stop.stage() == before {
                prop_assert_eq!(stop.deadline(), due, "a stage's end is set once");
            }
            if stop.stage() == StopStage::Killing {
                prop_assert_eq!(stop.deadline(), None);
            }
        }
    }

    #[test]
    fn a_bounded_stop_reaches_killing(drain in 0..100u64, grace in 0..100u64) {
        let mut stop = StagedStop::new(StopPolicy { drain: Some(secs(drain)), grace: secs(grace) });
        stop.request(secs(7));
        while let Some(due) = stop.deadline() {
            stop.tick(due);
            prop_assert!(due <= secs(7 + drain + grace));
        }
        prop_assert_eq!(stop.stage(), StopStage::Killing);
    }
}

#[test]
fn ticks_wait_for_drain_and_grace() {
    let mut stop = StagedStop::new(StopPolicy {
        drain: Some(DRAIN),
        grace: GRACE,
    });
    assert_eq!(stop.tick(secs(1_000)), None, "no stop was requested");
    assert_eq!(stop.request(secs(10)), StopStage::Draining);
    assert_eq!(stop.deadline(), Some(secs(70)));
    assert_eq!(stop.tick(secs(69)), None);
    assert_eq!(stop.tick(secs(70)), Some(StopStage::Terminating));
    assert_eq!(stop.tick(secs(74)), None);
    assert_eq!(stop.tick(secs(80)), Some(StopStage::Killing));
    assert_eq!(stop.tick(secs(1_000)), None);
}

#[test]
fn each_further_request_escalates() {
    let mut stop = StagedStop::new(StopPolicy::drain(GRACE));
    assert_eq!(stop.request(secs(0)), StopStage::Draining);
    assert_eq!(stop.deadline(), None, "an unbounded drain waits for ever");
    assert_eq!(stop.request(secs(1)), StopStage::Terminating);
    assert_eq!(stop.deadline(), Some(secs(6)));
    assert_eq!(stop.request(secs(2)), StopStage::Killing);
    assert_eq!(stop.request(secs(3)), StopStage::Killing);
}

#[test]
fn cancel_skips_the_drain() {
    let mut stop = StagedStop::new(StopPolicy::cancel(GRACE));
    assert_eq!(stop.request(secs(1)), StopStage::Terminating);
    assert_eq!(stop.tick(secs(6)), Some(StopStage::Killing));
}

#[test]
fn terminating_twice_does_not_lengthen_the_grace() {
    let mut stop = StagedStop::new(StopPolicy::drain(GRACE));
    stop.reach(StopStage::Terminating, secs(1));
    stop.reach(StopStage::Terminating, secs(4));
    assert_eq!(stop.deadline(), Some(secs(6)));
}
