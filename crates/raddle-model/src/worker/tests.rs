//! The claim rule, and the stored form of a worker.

use proptest::prelude::*;

use super::*;
use crate::arbitrary;

fn worker(queues: &[&str], capabilities: CapSet) -> WorkerInfo {
    WorkerInfo {
        capabilities,
        queues: queues.iter().map(ToString::to_string).collect(),
        concurrency: 1,
        pid: 1,
        host: "here".into(),
        ..WorkerInfo::new("w", "resident")
    }
}

proptest! {
    #[test]
    fn claims_tasks_of_served_queues_with_offered_capabilities(spec in arbitrary::spec(), caps in arbitrary::caps(), serves: bool) {
        let queues = if serves { vec!["other", spec.queue.as_str()] } else { vec!["no queue of that name"] };
        let fits = spec.needs().iter().all(|tag| caps.iter().any(|cap| cap == tag));
        prop_assert_eq!(worker(&queues, caps).can_take(&spec), serves && fits);
        prop_assert_eq!(worker(&queues, spec.needs()).can_take(&spec), serves);
    }
}

#[test]
fn call_workers_take_no_tasks_and_launch_no_workers() {
    let spec = TaskSpec::command(["true"]);
    let resident = worker(&[&spec.queue], spec.needs());
    let spawner = WorkerInfo {
        concurrency: 0,
        ..resident.clone()
    };
    assert!(resident.can_take(&spec) && spawner.launches() && !spawner.takes_calls());
    let callee = WorkerInfo {
        callee: Some(Box::default()),
        ..spawner
    };
    assert!(callee.takes_calls() && !callee.can_take(&spec) && !callee.launches());
}

#[test]
fn omits_callee_if_absent() {
    let without_callee = worker(&[], CapSet::new());
    let text = serde_json::to_string(&without_callee).unwrap();
    assert!(!text.contains("callee"), "{text}");
    assert_eq!(
        serde_json::from_str::<WorkerInfo>(&text).unwrap(),
        without_callee
    );
    let callee = PoolWorkerInfo {
        namespace: "math".into(),
        routines: ["add".into()].into(),
        ..PoolWorkerInfo::default()
    };
    let with_callee = WorkerInfo {
        callee: Some(Box::new(callee)),
        ..without_callee
    };
    let text = serde_json::to_string(&with_callee).unwrap();
    assert_eq!(
        serde_json::from_str::<WorkerInfo>(&text).unwrap(),
        with_callee
    );
}

#[test]
fn status_names_match_json() {
    for status in [
        WorkerStatus::Active,
        WorkerStatus::Paused,
        WorkerStatus::Draining,
        WorkerStatus::BackingOff,
    ] {
        assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
    }
}

#[test]
fn status_numbers_round_trip() {
    for status in [
        WorkerStatus::Active,
        WorkerStatus::Paused,
        WorkerStatus::Draining,
        WorkerStatus::BackingOff,
    ] {
        assert_eq!(WorkerStatus::from_u8(status as u8), status);
    }
    assert_eq!(WorkerStatus::from_u8(u8::MAX), WorkerStatus::Active);
}

#[test]
fn pids_are_valid_only_on_their_host_and_place() {
    let info = |place: Option<&str>| WorkerInfo {
        place: place.map(Into::into),
        ..worker(&[], CapSet::new())
    };
    assert!(
        info(None).is_at("here", Some("a")) && info(Some("a")).is_at("here", None),
        "an unknown place matches any"
    );
    assert!(info(Some("a")).is_at("here", Some("a")));
    assert!(
        !info(Some("b")).is_at("here", Some("a")),
        "a container with the name of its host"
    );
    assert!(!info(Some("a")).is_at("there", Some("a")) && !info(None).is_at("there", None));
}
