//! The codes of the contract, and the form in which an end is stored.

use proptest::prelude::*;

use super::*;
use crate::arbitrary;

fn message() -> String {
    "what the system said".into()
}

#[test]
fn each_end_has_the_code_a_shell_would_show() {
    for (exit, code) in [
        (Exit::Code { code: 0 }, 0),
        (Exit::Code { code: 42 }, 42),
        (Exit::Signal { signal: 11 }, 139),
        (Exit::Timeout, 124),
        (Exit::Expired, 124),
        (Exit::SpawnFailed { message: message() }, 125),
        (Exit::Lost { message: message() }, 125),
        (Exit::Lapsed, 125),
        (Exit::NotExecutable { message: message() }, 126),
        (Exit::NotFound { message: message() }, 127),
        (Exit::Cancelled, 130),
        (Exit::Killed, 137),
        (Exit::OutOfMemory, 137),
        (Exit::Limit { limit: LimitKind::MaxProcs }, 137),
    ] {
        assert_eq!(exit.shell_code(), code, "{exit}");
    }
}

#[test]
fn ends_are_stored_under_names_that_may_not_change() {
    for (exit, json) in [
        (Exit::Code { code: 3 }, r#"{"kind":"code","code":3}"#),
        (Exit::OutOfMemory, r#"{"kind":"out_of_memory"}"#),
        (Exit::Limit { limit: LimitKind::MemoryMb }, r#"{"kind":"limit","limit":"memory_mb"}"#),
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
    fn ends_round_trip(exit in arbitrary::exit()) {
        let json = serde_json::to_string(&exit).expect("an object");
        prop_assert_eq!(serde_json::from_str::<Exit>(&json).expect("the same object"), exit);
    }
}
