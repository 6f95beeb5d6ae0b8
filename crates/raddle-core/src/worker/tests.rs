//! The claim rule.

use proptest::prelude::*;

use super::*;
use crate::arbitrary;

fn worker(queues: &[&str], capabilities: CapSet) -> WorkerInfo {
    WorkerInfo {
        name: "w".into(),
        kind: "resident".into(),
        capabilities,
        queues: queues.iter().map(ToString::to_string).collect(),
        concurrency: 1,
        pid: 1,
        host: "here".into(),
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
