//! Routines of all shapes, called in a pool of workers that are the same program again: what the attributes write is what a function looks like.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::{Command, Output};

fn call(name: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_raddle-test-shapes"))
        .arg(name)
        .output()
        .unwrap()
}

fn says(name: &str) -> Vec<String> {
    let output = call(name);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

fn fails(name: &str) -> String {
    let output = call(name);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_call_looks_like_the_function_and_runs_elsewhere() {
    assert_eq!(says("values"), ["3", r#"["a", "b"]"#, "false", "7"]);
}

#[test]
fn items_come_one_after_the_other() {
    assert_eq!(says("items"), ["3", "2", "1"]);
}

#[test]
fn errors_come_back_as_they_were() {
    assert_eq!(says("errors"), ["Ok(3)", "true true"]);
}

#[test]
fn a_main_that_fails_says_why_in_all_words() {
    let said = fails("causes");
    assert!(
        said.contains("Error: /nowhere is unreadable\n  because: No such file or directory"),
        "{said}"
    );
    let said = fails("panic");
    assert!(
        said.contains("the routine panicked at")
            && said.contains("shapes.rs:")
            && said.contains("bang"),
        "{said}"
    );
}

#[test]
fn what_is_called_can_call() {
    assert_eq!(says("nested"), ["6"]);
}

#[test]
fn context_goes_with_a_call() {
    assert_eq!(says("context"), [r#"Some("acme")"#]);
}

#[test]
fn methods_are_called_with_a_copy_of_what_they_belong_to() {
    let first = "Point { x: 6.0, y: 8.0 } 10 Point { x: 0.0, y: 0.0 }";
    assert_eq!(says("methods"), [first, "Some(Ok(6))"]);
}

#[test]
fn outside_of_a_pool_there_is_nobody_to_call() {
    assert_eq!(says("outside"), ["Err(NoPool)"]);
}
