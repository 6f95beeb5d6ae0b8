//! The claim rule.

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
    fn a_worker_takes_what_it_serves_and_can_do(spec in arbitrary::spec(), caps in arbitrary::caps(), serves: bool) {
        let queues = if serves { vec!["other", spec.queue.as_str()] } else { vec!["no queue of that name"] };
        let fits = spec.needs().iter().all(|tag| caps.iter().any(|cap| cap == tag));
        prop_assert_eq!(worker(&queues, caps).can_take(&spec), serves && fits);
        prop_assert_eq!(worker(&queues, spec.needs()).can_take(&spec), serves);
    }
}

#[test]
fn who_takes_calls_takes_no_tasks_and_launches_nobody() {
    let spec = Spec::command(["true"]);
    let resident = worker(&[&spec.queue], spec.needs());
    let spawner = WorkerInfo { concurrency: 0, ..resident.clone() };
    assert!(resident.can_take(&spec) && spawner.launches() && !spawner.takes_calls());
    let callee = WorkerInfo { callee: Some(Box::default()), ..spawner };
    assert!(callee.takes_calls() && !callee.can_take(&spec) && !callee.launches());
}

#[test]
fn what_is_said_to_callers_is_left_out_where_nothing_is() {
    let silent = worker(&[], CapSet::new());
    let text = serde_json::to_string(&silent).unwrap();
    assert!(!text.contains("callee"), "{text}");
    assert_eq!(serde_json::from_str::<WorkerInfo>(&text).unwrap(), silent);
    let callee = Callee { namespace: "math".into(), routines: ["add".into()].into(), ..Callee::default() };
    let speaks = WorkerInfo { callee: Some(Box::new(callee)), ..silent };
    let text = serde_json::to_string(&speaks).unwrap();
    assert_eq!(serde_json::from_str::<WorkerInfo>(&text).unwrap(), speaks);
}

#[test]
fn statuses_have_the_same_name_everywhere() {
    for status in [WorkerStatus::Active, WorkerStatus::Paused, WorkerStatus::Draining, WorkerStatus::Braking] {
        assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
    }
}

#[test]
fn a_status_is_found_by_its_number() {
    for status in [WorkerStatus::Active, WorkerStatus::Paused, WorkerStatus::Draining, WorkerStatus::Braking] {
        assert_eq!(WorkerStatus::from_u8(status as u8), status);
    }
    assert_eq!(WorkerStatus::from_u8(u8::MAX), WorkerStatus::Active);
}

#[test]
fn a_process_is_looked_at_only_where_its_number_means_it() {
    let info = |place: Option<&str>| WorkerInfo { place: place.map(Into::into), ..worker(&[], CapSet::new()) };
    assert!(info(None).is_at("here", Some("a")) && info(Some("a")).is_at("here", None), "as far as anybody knows");
    assert!(info(Some("a")).is_at("here", Some("a")));
    assert!(!info(Some("b")).is_at("here", Some("a")), "a container with the name of its host");
    assert!(!info(Some("a")).is_at("there", Some("a")) && !info(None).is_at("there", None));
}
