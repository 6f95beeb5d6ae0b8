//! Queue names round-trip through text, and invalid names are refused.

use proptest::prelude::*;

use super::*;
use crate::arbitrary;

fn queue() -> impl Strategy<Value = TaskQueue> {
    proptest::sample::select(TaskQueue::ALL.to_vec())
}

proptest! {
    #[test]
    fn queues_of_a_task_round_trip(tid in arbitrary::tid(), queue in queue()) {
        let name = QueueName::Task(tid, queue);
        prop_assert_eq!(name.to_string().parse::<QueueName>(), Ok(name.clone()));
        let json = serde_json::to_string(&name).expect("a string");
        prop_assert_eq!(serde_json::from_str::<QueueName>(&json).expect("the same string"), name);
    }

    #[test]
    fn display_returns_the_parsed_text(text in "[a-zA-Z0-9._:@/-]{1,128}|T[0-9]{19}\\.[a-z_]{1,9}|raddle\\.[a-z.]{1,20}") {
        let name: QueueName = text.parse().expect("made of the letters of a name");
        prop_assert_eq!(name.to_string(), text);
    }

    #[test]
    fn refuses_other_characters(text in "[a-z]{0,5}[^a-zA-Z0-9._:@/-][a-z]{0,5}") {
        let error = text.parse::<QueueName>().expect_err("holds another character");
        prop_assert!(error.to_string().contains("is not a queue name"));
    }
}

#[test]
fn system_queues_have_the_names_of_the_contract() {
    let names: Vec<_> = SystemQueue::ALL
        .into_iter()
        .map(|s| QueueName::System(s).to_string())
        .collect();
    let contract = [
        "raddle.tasks.log",
        "raddle.tid.mappings",
        "raddle.workers.registry",
        "raddle.workers.control",
        "raddle.workers.status",
        "raddle.spawn.requests",
        "raddle.spawn.results",
        "raddle.dead",
    ];
    assert_eq!(names, contract);
    for (name, system) in names.iter().zip(SystemQueue::ALL) {
        assert_eq!(name.parse(), Ok(QueueName::System(system)));
    }
}

#[test]
fn task_queues_have_the_names_of_the_contract() {
    let tid = "1790000000000000001".parse().unwrap();
    let names: Vec<_> = TaskQueue::ALL
        .into_iter()
        .map(|p| QueueName::Task(tid, p).to_string())
        .collect();
    let contract = ["inbox", "reserved", "outbox", "ctrl_in", "ctrl_out"];
    assert_eq!(
        names,
        contract.map(|queue| format!("T1790000000000000001.{queue}"))
    );
}

#[test]
fn accepts_short_ids_in_task_queues() {
    let tid: Tid = "1790000000000000001".parse().unwrap();
    for queue in TaskQueue::ALL {
        assert_eq!(
            format!("T0000000001.{queue}").parse(),
            Ok(QueueArg::Short(tid.short(), queue))
        );
        assert_eq!(
            format!("T{tid}.{queue}").parse(),
            Ok(QueueArg::Full(QueueName::Task(tid, queue)))
        );
    }
    for text in [
        "T179.ctrl_in",
        "T0000000001.ctrl",
        "T1790000000000000001.inbox.x",
        "T9990000000000000001.ctrl_in",
    ] {
        let error = text.parse::<QueueArg>().expect_err(text);
        assert!(
            error.to_string().contains(".ctrl_in or .ctrl_out"),
            "{error}"
        );
    }
    for text in [
        "jobs",
        "T1.jobs",
        "Task.inbox",
        "T.inbox",
        "T1790000000000000001",
        "t0000000001.inbox",
    ] {
        assert_eq!(
            text.parse(),
            Ok(QueueArg::Full(QueueName::Free(text.into())))
        );
    }
    assert!(matches!(
        "a b".parse::<QueueArg>(),
        Err(ParseQueueArgError::Name(_))
    ));
}

#[test]
fn near_misses_are_free_queues() {
    for text in [
        "T1790000000000000001",
        "T1790000000000000001.",
        "T1790000000000000001.inbox.x",
        "T179.inbox",
        "t1790000000000000001.inbox",
        "raddle.dead.",
        "worker.gpu.requests",
    ] {
        assert_eq!(text.parse(), Ok(QueueName::Free(text.into())));
    }
    for text in ["", "a b", "a\0b", "ä", "a\n"] {
        assert!(text.parse::<QueueName>().is_err(), "{text:?}");
    }
    assert!("q".repeat(128).parse::<QueueName>().is_ok());
    assert!("q".repeat(129).parse::<QueueName>().is_err());
}
