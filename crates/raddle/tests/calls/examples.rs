//! The examples do what they say.

use std::process::Command;

/// What an example says, if it comes to a good end.
fn said_by(example: &str) -> String {
    // Cargo builds examples with the tests, beside them.
    let program = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples").join(example);
    let output = Command::new(program).output().expect("`cargo test --examples` has built it");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{words}");
    said
}

#[test]
fn a_worker_that_looks_after_itself_is_there_again() {
    let said = said_by("resilient");
    assert_eq!(said.lines().next(), Some("the call is lost"), "{said}");
    assert!(said.ends_with("the same worker is there again, in another process\n"), "{said}");
}

#[test]
fn a_worker_that_is_made_by_hand_joins_a_pool() {
    assert_eq!(said_by("by_hand"), "9 bytes\ntwo\nwords\n-42\n'many' is no number\n");
}
