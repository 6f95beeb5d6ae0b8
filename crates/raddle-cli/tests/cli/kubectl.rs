//! `kubectl` validates the manifests.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use serde_json::Value;

/// The program reads an object into what it has for it, changes something, and writes it down
/// again: what it does not know is lost on the way. `what` and `args` are what it is to set.
#[track_caller]
pub(crate) fn is_kept(what: &str, args: &[&str], object: &Value) {
    let mut kubectl = Command::new("kubectl");
    kubectl
        .args(["set", what, "--local", "--filename=-", "--output=json"])
        .args(args);
    let mut kubectl = kubectl
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    kubectl
        .stdin
        .take()
        .unwrap()
        .write_all(object.to_string().as_bytes())
        .unwrap();
    let found = kubectl.wait_with_output().unwrap();
    assert!(
        found.status.success(),
        "{}\n{object}",
        String::from_utf8_lossy(&found.stderr)
    );
    let kept: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_is_in(object, &kept, "");
}

const AMOUNTS: [(&str, &str); 2] = [("1000m", "1"), ("1024Mi", "1Gi")];

#[track_caller]
fn assert_is_in(part: &Value, whole: &Value, path: &str) {
    match (part, whole) {
        (Value::Object(part), Value::Object(_)) => {
            for (key, value) in part {
                assert_is_in(value, &whole[key], &format!("{path}.{key}"));
            }
        }
        (Value::Array(part), Value::Array(all)) => {
            for (number, value) in part.iter().enumerate() {
                assert_is_in(
                    value,
                    all.get(number).unwrap_or(&Value::Null),
                    &format!("{path}[{number}]"),
                );
            }
        }
        // It writes amounts as short as they can be.
        (Value::String(part), Value::String(whole)) if AMOUNTS.contains(&(part, whole)) => {}
        (part, whole) => assert_eq!(part, whole, "at {path}"),
    }
}
