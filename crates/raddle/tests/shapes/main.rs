//! Routines of all shapes, called in a pool of the same program.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::{Command, Output};

fn call(name: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_raddle-test-shapes"))
        .arg(name)
        .output()
        .unwrap()
}

fn run(name: &str) -> Vec<String> {
    let output = call(name);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

fn run_failing(name: &str) -> String {
    let output = call(name);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn calls_look_like_functions_and_run_in_a_worker() {
    assert_eq!(run("values"), ["3", r#"["a", "b"]"#, "false", "7"]);
}

#[test]
fn streams_yield_items_in_order() {
    assert_eq!(run("items"), ["3", "2", "1"]);
}

#[test]
fn errors_keep_their_type() {
    assert_eq!(run("errors"), ["Ok(3)", "true true"]);
}

#[test]
fn main_prints_errors_with_their_causes() {
    let stderr = run_failing("causes");
    assert!(
        stderr.contains("Error: /nowhere is unreadable\n  because: No such file or directory"),
        "{stderr}"
    );
    let stderr = run_failing("panic");
    assert!(
        stderr.contains("the routine panicked at")
            && stderr.contains("shapes.rs:")
            && stderr.contains("bang"),
        "{stderr}"
    );
}

#[test]
fn routines_call_routines() {
    assert_eq!(run("nested"), ["6"]);
}

#[test]
fn context_reaches_the_worker() {
    assert_eq!(run("context"), [r#"Some("acme")"#]);
}

#[test]
fn methods_run_on_a_copy_of_self() {
    let first = "Point { x: 6.0, y: 8.0 } 10 Point { x: 0.0, y: 0.0 }";
    assert_eq!(run("methods"), [first, "Some(Ok(6))"]);
}

#[test]
fn a_call_outside_of_a_pool_fails() {
    assert_eq!(run("outside"), ["Err(NoPool)"]);
}
