//! Names survive being printed and read, and nothing else is a name.

use proptest::prelude::*;

use super::*;
use crate::arbitrary;

fn port() -> impl Strategy<Value = Port> {
    proptest::sample::select(Port::ALL.to_vec())
}

proptest! {
    #[test]
    fn queues_of_a_task_round_trip(tid in arbitrary::tid(), port in port()) {
        let name = QueueName::Task(tid, port);
        prop_assert_eq!(name.to_string().parse::<QueueName>(), Ok(name.clone()));
        let json = serde_json::to_string(&name).expect("a string");
        prop_assert_eq!(serde_json::from_str::<QueueName>(&json).expect("the same string"), name);
    }

    #[test]
    fn any_name_that_is_read_prints_as_it_was(text in "[a-zA-Z0-9._:@/-]{1,128}|T[0-9]{19}\\.[a-z_]{1,9}|raddle\\.[a-z.]{1,20}") {
        let name: QueueName = text.parse().expect("made of the letters of a name");
        prop_assert_eq!(name.to_string(), text);
    }

    #[test]
    fn any_other_character_is_refused(text in "[a-z]{0,5}[^a-zA-Z0-9._:@/-][a-z]{0,5}") {
        let error = text.parse::<QueueName>().expect_err("holds another character");
        prop_assert!(error.to_string().contains("is not a queue name"));
    }
}

#[test]
fn system_queues_have_the_names_of_the_contract() {
    let names: Vec<_> = System::ALL.into_iter().map(|s| QueueName::System(s).to_string()).collect();
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
    for (name, system) in names.iter().zip(System::ALL) {
        assert_eq!(name.parse(), Ok(QueueName::System(system)));
    }
}

#[test]
fn task_queues_have_the_names_of_the_contract() {
    let tid = "1790000000000000001".parse().unwrap();
    let names: Vec<_> = Port::ALL.into_iter().map(|p| QueueName::Task(tid, p).to_string()).collect();
    let contract = ["inbox", "reserved", "outbox", "ctrl_in", "ctrl_out"];
    assert_eq!(names, contract.map(|port| format!("T1790000000000000001.{port}")));
}

#[test]
fn a_queue_of_a_task_may_have_the_short_id() {
    let tid: Tid = "1790000000000000001".parse().unwrap();
    for port in Port::ALL {
        assert_eq!(format!("T0000000001.{port}").parse(), Ok(QueueArg::Short(tid.short(), port)));
        assert_eq!(format!("T{tid}.{port}").parse(), Ok(QueueArg::Full(QueueName::Task(tid, port))));
    }
    for text in ["T179.ctrl_in", "T0000000001.ctrl", "T1790000000000000001.inbox.x", "T9990000000000000001.ctrl_in"] {
        let error = text.parse::<QueueArg>().expect_err(text);
        assert!(error.to_string().contains(".ctrl_in or .ctrl_out"), "{error}");
    }
    for text in ["jobs", "T1.jobs", "Task.inbox", "T.inbox", "T1790000000000000001", "t0000000001.inbox"] {
        assert_eq!(text.parse(), Ok(QueueArg::Full(QueueName::Free(text.into()))));
    }
    assert!(matches!("a b".parse::<QueueArg>(), Err(ParseQueueArgError::Name(_))));
}

#[test]
fn near_misses_are_queues_of_their_own() {
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
