//! JSON and text with what changes from run to run taken out.

use serde_json::Value;

use crate::world::World;

/// The value with ids, times, numbers of processes and the like replaced.
pub(crate) fn shape(world: &World, value: &Value) -> String {
    let mut value = value.clone();
    redact(world, "", &mut value);
    serde_json::to_string_pretty(&value).unwrap()
}

fn redact(world: &World, key: &str, value: &mut Value) {
    const VARYING: [&str; 13] = [
        "pid",
        "born",
        "duration_seconds",
        "uptime_seconds",
        "peak_rss_bytes",
        "user_us",
        "system_us",
        "concurrency",
        "load",
        "spawned_count",
        "age_seconds",
        "cpu_seconds",
        "rss_bytes",
    ];
    match value {
        Value::Object(fields) => fields
            .iter_mut()
            .for_each(|(key, value)| redact(world, key, value)),
        Value::Array(items) => items.iter_mut().for_each(|item| redact(world, key, item)),
        Value::Number(_) if VARYING.contains(&key) => *value = Value::from(format!("[{key}]")),
        Value::String(text) => {
            *text = text.replace(world.path().to_str().unwrap(), "[world]");
            if matches!(
                key,
                "host" | "place" | "short" | "request_id" | "uid" | "address"
            ) || text.parse::<jiff::Timestamp>().is_ok()
            {
                *text = format!("[{key}]");
            }
            *text = without_ids(text);
        }
        _ => {}
    }
}

/// The text with every run of 19 digits replaced.
pub(crate) fn without_ids(text: &str) -> String {
    let mut shown = String::new();
    let mut digits = String::new();
    for c in text.chars().chain(['\0']) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        shown.push_str(if digits.len() == 19 { "[tid]" } else { &digits });
        digits.clear();
        shown.push(c);
    }
    shown.pop();
    shown
}

/// Compares with the stored snapshot of this name.
macro_rules! snapshot {
    ($name:expr, $text:expr) => {
        insta::with_settings!({ snapshot_path => concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots"), prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!($name, $text);
        })
    };
}
pub(crate) use snapshot;
