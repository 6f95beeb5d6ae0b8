//! Seccomp profiles that people name for containers: whether one is a filter at all.

use std::path::Path;

use serde_json::Value;

use super::one_shot::read_short;
use crate::error::{OrFail, Outcome};

/// What keeps a system call from being made.
const DENIES: [&str; 5] =
    ["SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_KILL_THREAD", "SCMP_ACT_TRAP"];

/// The profile in a file, as the engine takes it.
pub(super) fn profile(path: &Path) -> Outcome<String> {
    let at = format!("at 'spawner.container.seccomp': {}", path.display());
    let text = read_short(path, "a seccomp profile").or_usage_at(&at)?;
    let profile: Value = serde_json::from_str(&text).or_usage_at(&at)?;
    check(&profile).or_usage_at(&at)?;
    Ok(profile.to_string())
}

/// Whether it denies anything. That it denies the right things is for whoever wrote it.
fn check(profile: &Value) -> Result<(), String> {
    let action = |of: &Value, key| of.get(key).and_then(Value::as_str).map(str::to_owned);
    let Some(default) = action(profile, "defaultAction") else {
        return Err("it has no \"defaultAction\", and so is no seccomp profile".into());
    };
    if DENIES.contains(&default.as_str()) {
        return Ok(());
    }
    if default != "SCMP_ACT_ALLOW" {
        return Err(format!("its \"defaultAction\" is {default}, which keeps nobody from anything: deny by default"));
    }
    let rules = profile.get("syscalls").and_then(Value::as_array).into_iter().flatten();
    let denies = |rule: &Value| {
        let names = rule.get("names").and_then(Value::as_array).is_some_and(|names| !names.is_empty());
        let is_for_some = names || rule.get("name").is_some_and(Value::is_string);
        is_for_some && action(rule, "action").is_some_and(|action| DENIES.contains(&action.as_str()))
    };
    if rules.into_iter().any(denies) { Ok(()) } else { Err("it allows everything".into()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_denies_nothing_is_no_filter() {
        let allow = |rules: Value| json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules });
        let rule = |names: &[&str], action: &str| json!([{ "names": names, "action": action }]);
        let open = [
            json!({ "defaultAction": "SCMP_ACT_ALLOW" }),
            allow(Value::Null),
            allow(json!([])),
            allow(json!([{}])),
            allow(rule(&["mount"], "SCMP_ACT_ALLOW")),
            allow(rule(&["mount"], "SCMP_ACT_LOG")),
            allow(rule(&[], "SCMP_ACT_ERRNO")),
            json!({ "defaultAction": "SCMP_ACT_LOG", "syscalls": rule(&["mount"], "SCMP_ACT_ERRNO") }),
            json!({ "defaultAction": "SCMP_ACT_TRACE" }),
            json!({ "defaultAction": 1 }),
            json!([]),
        ];
        for profile in open {
            assert!(check(&profile).is_err(), "{profile}");
        }
        let filters = [
            json!({ "defaultAction": "SCMP_ACT_ERRNO" }),
            json!({ "defaultAction": "SCMP_ACT_KILL_PROCESS", "syscalls": rule(&["read"], "SCMP_ACT_ALLOW") }),
            allow(rule(&["mount"], "SCMP_ACT_ERRNO")),
            allow(json!([{ "name": "mount", "action": "SCMP_ACT_KILL" }])),
        ];
        for profile in filters {
            assert_eq!(check(&profile), Ok(()), "{profile}");
        }
    }
}
