//! Seccomp profiles of containers: that of the user, which must deny something, and one that lets a
//! worker create sandboxes.

use std::path::Path;

use serde_json::{Value, json};

use super::one_shot::read_short;
use crate::error::{OrFail, Outcome};

/// The actions that deny a system call.
const DENIES: [&str; 5] = [
    "SCMP_ACT_ERRNO",
    "SCMP_ACT_KILL",
    "SCMP_ACT_KILL_PROCESS",
    "SCMP_ACT_KILL_THREAD",
    "SCMP_ACT_TRAP",
];

/// System calls that affect the machine or other processes, and that no sandbox needs: the kernel
/// itself, keys, clock, devices, swap and quota.
const DENIED_SYSCALLS: &[&str] = &[
    "acct",
    "add_key",
    "bpf",
    "clock_adjtime",
    "clock_settime",
    "create_module",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "get_kernel_syms",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "mbind",
    "migrate_pages",
    "move_pages",
    "name_to_handle_at",
    "nfsservctl",
    "open_by_handle_at",
    "perf_event_open",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "query_module",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "set_mempolicy",
    "settimeofday",
    "swapoff",
    "swapon",
    "sysfs",
    "syslog",
    "uselib",
    "userfaultfd",
    "ustat",
    "vhangup",
];

/// A profile under which a worker can create a sandbox: the default profile of the engine denies
/// namespaces and mounts.
pub(super) fn nesting_profile() -> String {
    let denied = json!({ "names": DENIED_SYSCALLS, "action": "SCMP_ACT_ERRNO" });
    // Without a list of architectures, system calls of other architectures kill the process.
    json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [denied] }).to_string()
}

/// Reads a profile from a file, in the form that the engine takes.
pub(super) fn read_profile(path: &Path) -> Outcome<String> {
    let at = format!("at 'spawner.container.seccomp': {}", path.display());
    let text = read_short(path, "a seccomp profile").or_usage_at(&at)?;
    let profile: Value = serde_json::from_str(&text).or_usage_at(&at)?;
    check(&profile).or_usage_at(&at)?;
    Ok(profile.to_string())
}

/// Checks that the profile denies something.
fn check(profile: &Value) -> Result<(), String> {
    let action = |of: &Value, key| of.get(key).and_then(Value::as_str).map(str::to_owned);
    let Some(default) = action(profile, "defaultAction") else {
        return Err("it is not a seccomp profile: it has no \"defaultAction\"".into());
    };
    if DENIES.contains(&default.as_str()) {
        return Ok(());
    }
    if default != "SCMP_ACT_ALLOW" {
        return Err(format!(
            "its \"defaultAction\" is {default}, which denies nothing: deny by default"
        ));
    }
    let rules = profile
        .get("syscalls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let denies = |rule: &Value| {
        let names = rule
            .get("names")
            .and_then(Value::as_array)
            .is_some_and(|names| !names.is_empty());
        let is_for_some = names || rule.get("name").is_some_and(Value::is_string);
        is_for_some
            && action(rule, "action").is_some_and(|action| DENIES.contains(&action.as_str()))
    };
    if rules.into_iter().any(denies) {
        Ok(())
    } else {
        Err("it allows everything".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_a_profile_that_denies_nothing() {
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
