//! Exit codes, and the stored form of an exit.

use proptest::prelude::*;

use super::*;
use crate::arbitrary;

fn message() -> String {
    "an error of the system".into()
}

#[test]
fn maps_each_exit_to_a_shell_code() {
    for (exit, code) in [
        (ExitStatus::Code { code: 0 }, 0),
        (ExitStatus::Code { code: 42 }, 42),
        (ExitStatus::Signal { signal: 11 }, 139),
        (ExitStatus::Timeout, 124),
        (ExitStatus::Expired, 124),
        (ExitStatus::SpawnFailed { message: message() }, 125),
        (ExitStatus::WorkerLost { message: message() }, 125),
        (ExitStatus::LeaseExpired, 125),
        (ExitStatus::NotExecutable { message: message() }, 126),
        (ExitStatus::NotFound { message: message() }, 127),
        (ExitStatus::Cancelled, 130),
        (ExitStatus::Killed, 137),
        (ExitStatus::OutOfMemory, 137),
        (
            ExitStatus::Limit {
                limit: LimitKind::MaxProcs,
            },
            137,
        ),
    ] {
        assert_eq!(exit.shell_code(), code, "{exit}");
    }
}

#[test]
fn serialized_exits_are_stable() {
    for (exit, json) in [
        (ExitStatus::Code { code: 3 }, r#"{"kind":"code","code":3}"#),
        (ExitStatus::OutOfMemory, r#"{"kind":"out_of_memory"}"#),
        (
            ExitStatus::Limit {
                limit: LimitKind::MemoryMb,
            },
            r#"{"kind":"limit","limit":"memory_mb"}"#,
        ),
    ] {
        assert_eq!(serde_json::to_string(&exit).unwrap(), json);
    }
}

proptest! {
    #[test]
    fn only_success_has_code_zero(exit in arbitrary::exit()) {
        prop_assert_eq!(exit.is_success(), exit.shell_code() == 0);
        prop_assert!(!exit.to_string().is_empty());
    }

    #[test]
    fn exits_round_trip(exit in arbitrary::exit()) {
        let json = serde_json::to_string(&exit).expect("an object");
        prop_assert_eq!(serde_json::from_str::<ExitStatus>(&json).expect("the same object"), exit);
    }
}

proptest! {
    #[test]
    fn the_kind_is_the_tag_in_json(exit in arbitrary::exit()) {
        let json = serde_json::to_value(&exit).unwrap();
        prop_assert_eq!(&json["kind"], exit.kind());
        prop_assert!(ExitStatus::KINDS.contains(&exit.kind()));
    }
}
