//! The examples do what they say.

use std::process::Command;

#[test]
fn a_worker_that_looks_after_itself_is_there_again() {
    // Cargo builds examples with the tests, beside them.
    let program = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples/resilient");
    let output = Command::new(program).output().expect("`cargo test --examples` has built it");
    let said = String::from_utf8_lossy(&output.stdout);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{words}");
    assert_eq!(said.lines().next(), Some("the call is lost"), "{said}{words}");
    assert!(said.ends_with("the same worker is there again, in another process\n"), "{said}{words}");
}
