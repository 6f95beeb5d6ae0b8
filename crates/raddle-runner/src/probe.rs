//! Probes of what this machine can enforce, for `raddle doctor`. They change nothing.

use std::{path::Path, time::Duration};

use raddle_model::{ExitStatus, Tid};
use rustix::process::{Resource, getrlimit};

use crate::{
    ExecRequest, OutputChannel, Runner, RunnerEvent, RunnerOptions, SandboxConfig,
    cgroup::{self, CgroupDelegation, CgroupUnavailable, Controllers},
};

/// Task id of the probe attempt. No broker generates ids of that time.
const PROBE_TID: u64 = 1_000_000_000_000_000_000;
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

const LIMITS: &str = "kernel-enforced limits";
const SAMPLED: &str = "limits are sampled every 10 ms instead";
const OWN_GROUP: &str = "start the worker in its own cgroup, for example with \
                         'systemd-run --user --scope -p Delegate=yes raddle worker start --no-detach'";

/// Result of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapabilityProbe {
    /// Name of the capability.
    pub name: &'static str,
    /// Whether the capability is fully available. If not, Raddle falls back to something weaker.
    pub ok: bool,
    /// Details of the result.
    pub detail: String,
    /// How to make the capability available.
    pub fix: Option<String>,
}

/// Runs all probes except the sandbox.
pub fn all() -> Vec<CapabilityProbe> {
    let (open, most) = rlimit(Resource::Nofile);
    let me = std::process::id();
    let lists_children = Path::new(&format!("/proc/{me}/task/{me}/children")).exists();
    vec![
        limits(),
        open_files(open, most),
        processes(rlimit(Resource::Nproc).0),
        descendants(lists_children),
    ]
}

impl CapabilityProbe {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            name,
            ok: true,
            detail: detail.into(),
            fix: None,
        }
    }

    /// A failed probe always names a fix.
    fn failed(name: &'static str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            name,
            ok: false,
            detail: detail.into(),
            fix: Some(fix.into()),
        }
    }
}

/// Runs an attempt in a sandbox and reports whether all layers hold.
pub async fn sandbox(options: &RunnerOptions) -> CapabilityProbe {
    let name = "sandbox";
    let attempt = async {
        let mut runner = Runner::spawn(options)
            .await
            .map_err(|error| error.to_string())?;
        let tid = Tid::from_u64(PROBE_TID).expect("it has as many digits as an id");
        let request = ExecRequest {
            timeout: Some(PROBE_TIMEOUT),
            sandbox: Some(SandboxConfig {
                fallback: true,
                ..SandboxConfig::default()
            }),
            ..ExecRequest::command(tid, "probe", ["true"])
        };
        runner
            .start(&request)
            .await
            .map_err(|error| error.to_string())?;
        let mut stderr = Vec::new();
        let exit = loop {
            match runner.next().await.map_err(|error| error.to_string())? {
                RunnerEvent::Done(done) => {
                    stderr.extend(done.stderr);
                    break done.exit;
                }
                RunnerEvent::Output {
                    stream: OutputChannel::Stderr,
                    bytes,
                } => stderr.extend(bytes),
                _ => {}
            }
        };
        runner.close().await;
        match exit {
            ExitStatus::Code { code: 0 } if stderr.is_empty() => Ok(()),
            ExitStatus::Code { code: 0 } => Err(missing_layers(&String::from_utf8_lossy(&stderr))),
            ExitStatus::SpawnFailed { message } => Err(message),
            other => Err(format!("{other:?}")),
        }
    };
    match attempt.await {
        Ok(()) => CapabilityProbe::ok(name, "all layers hold"),
        Err(detail) => {
            let fix = "allow user namespaces (user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns), and use Linux 5.13 or newer";
            CapabilityProbe::failed(name, detail, fix)
        }
    }
}

/// Lists the refused layers, which the attempt's standard error names line by line.
fn missing_layers(stderr: &str) -> String {
    let refusal = |line: &'_ str| {
        line.strip_prefix("raddle: ")?
            .split(';')
            .next()
            .map(str::to_owned)
    };
    let refusals: Vec<String> = stderr.lines().filter_map(refusal).collect();
    format!("{}; the other layers hold", refusals.join("; "))
}

fn limits() -> CapabilityProbe {
    match cgroup::own_group() {
        Some(own) => limits_in(&own, std::process::id()),
        None => CapabilityProbe::failed(
            LIMITS,
            format!("no cgroup v2 hierarchy is mounted: {SAMPLED}"),
            "boot with cgroup v2",
        ),
    }
}

/// Probes what the kernel would enforce for a worker that is started like this process, in the
/// cgroup `own`. A worker prepares a delegated cgroup itself, so a cgroup that is delegated and not
/// prepared counts as good.
fn limits_in(own: &Path, pid: u32) -> CapabilityProbe {
    let available = match CgroupDelegation::locate(own) {
        Some(ready) => Ok(ready.controllers()),
        None => cgroup::survey(own, pid),
    };
    let shown = own.display();
    let (detail, fix) = match available {
        Ok(controllers) => return delegated(controllers),
        Err(CgroupUnavailable::NoControllers) => (
            format!("{shown} offers no memory, pids or cpu controller"),
            "boot with cgroup v2 only (systemd.unified_cgroup_hierarchy=1)",
        ),
        Err(CgroupUnavailable::NotDelegated) => {
            (format!("{shown} is not delegated to this user"), OWN_GROUP)
        }
        Err(CgroupUnavailable::Shared) => {
            (format!("{shown} is shared with other processes"), OWN_GROUP)
        }
    };
    CapabilityProbe::failed(LIMITS, format!("{detail}: {SAMPLED}"), fix)
}

/// Reports the delegated controllers. They may be fewer than the kernel has: systemd gives users
/// those that `user@.service` names.
fn delegated(Controllers { memory, pids, cpu }: Controllers) -> CapabilityProbe {
    let detail = format!(
        "cgroup v2 is delegated: memory {}, pids {}, cpu {}",
        yes_no(memory),
        yes_no(pids),
        yes_no(cpu)
    );
    if memory && pids && cpu {
        return CapabilityProbe::ok(LIMITS, detail);
    }
    let fix = "delegate all three: 'Delegate=cpu memory pids' in the unit of the worker, and for units of users in \
               user@.service too ('systemctl edit user@.service', then log in again)";
    CapabilityProbe::failed(LIMITS, detail, fix)
}

fn open_files(soft: u64, hard: u64) -> CapabilityProbe {
    let (name, detail) = (
        "open files",
        format!(
            "{} open files per process, at most {}",
            show(soft),
            show(hard)
        ),
    );
    if soft < 1024 {
        CapabilityProbe::failed(name, detail, "raise it with 'ulimit -n 4096'")
    } else {
        CapabilityProbe::ok(name, detail)
    }
}

fn processes(soft: u64) -> CapabilityProbe {
    let (name, detail) = ("processes", format!("{} processes per user", show(soft)));
    if soft < 256 {
        CapabilityProbe::failed(name, detail, "raise it with 'ulimit -u 4096'")
    } else {
        CapabilityProbe::ok(name, detail)
    }
}

fn descendants(lists_children: bool) -> CapabilityProbe {
    let name = "process trees";
    if lists_children {
        return CapabilityProbe::ok(name, "the kernel lists the children of a process");
    }
    let detail = "the kernel does not list the children of a process: limits are sampled by walking all of /proc";
    CapabilityProbe::failed(
        name,
        detail,
        "use a kernel that is built with CONFIG_PROC_CHILDREN, as those of distributions are",
    )
}

fn rlimit(resource: Resource) -> (u64, u64) {
    let limit = getrlimit(resource);
    (
        limit.current.unwrap_or(u64::MAX),
        limit.maximum.unwrap_or(u64::MAX),
    )
}

fn show(limit: u64) -> String {
    if limit == u64::MAX {
        "unlimited".into()
    } else {
        limit.to_string()
    }
}

fn yes_no(there: bool) -> &'static str {
    if there { "yes" } else { "no" }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Probes a cgroup with these files, as process 42.
    fn in_group(files: &[(&str, &str)]) -> CapabilityProbe {
        let group = tempfile::tempdir().unwrap();
        for (file, content) in files {
            fs::write(group.path().join(file), content).unwrap();
        }
        let probe = limits_in(group.path(), 42);
        CapabilityProbe {
            detail: probe.detail.replace(group.path().to_str().unwrap(), "G"),
            ..probe
        }
    }

    #[test]
    fn accepts_a_delegated_group_that_is_not_prepared() {
        let (switch, procs) = (("cgroup.subtree_control", ""), ("cgroup.procs", "42\n"));
        let offered = ("cgroup.controllers", "cpu io memory pids");
        let delegated = in_group(&[offered, switch, procs]);
        assert!(delegated.ok && delegated.fix.is_none(), "{delegated:?}");
        assert_eq!(
            delegated.detail,
            "cgroup v2 is delegated: memory yes, pids yes, cpu yes"
        );
        let ready = in_group(&[
            ("cgroup.subtree_control", "cpu memory pids"),
            ("cgroup.procs", ""),
        ]);
        assert_eq!(ready, delegated);
        let begins = |files: &[(&str, &str)], detail: &str| {
            let probe = in_group(files);
            assert!(!probe.ok && probe.detail.starts_with(detail), "{probe:?}");
        };
        begins(
            &[offered, switch, ("cgroup.procs", "42\n50\n")],
            "G is shared with other processes: limits are sampled",
        );
        begins(
            &[offered, switch],
            "G is not delegated to this user: limits are sampled",
        );
        begins(
            &[("cgroup.controllers", ""), switch, procs],
            "G offers no memory, pids or cpu controller: limits",
        );
    }

    #[test]
    fn names_a_fix_for_every_failed_probe() {
        let (switch, procs, all) = (
            ("cgroup.subtree_control", ""),
            ("cgroup.procs", "42\n"),
            ("cgroup.controllers", "cpu memory pids"),
        );
        let wanting = [
            in_group(&[]),
            in_group(&[all, switch]),
            in_group(&[all, switch, ("cgroup.procs", "50\n")]),
            in_group(&[("cgroup.controllers", "memory pids"), switch, procs]),
            in_group(&[("cgroup.subtree_control", "pids"), procs]),
            open_files(256, 4096),
            processes(100),
            descendants(false),
        ];
        for probe in wanting {
            assert!(
                !probe.ok && probe.fix.is_some_and(|fix| !fix.is_empty()),
                "{}: {}",
                probe.name,
                probe.detail
            );
        }
        let ok = [
            in_group(&[all, switch, procs]),
            open_files(1024, 1024),
            processes(256),
            descendants(true),
        ];
        assert!(
            ok.iter().all(|probe| probe.ok && probe.fix.is_none()),
            "{ok:?}"
        );
    }

    #[test]
    fn every_probe_has_a_detail() {
        for probe in super::all() {
            assert!(!probe.detail.is_empty(), "{}", probe.name);
        }
    }

    #[test]
    fn names_each_missing_layer() {
        let stderr = "raddle: this system refuses the sandbox landlock (ruleset): no; it runs without\nraddle: and more: no; so";
        let shown = "this system refuses the sandbox landlock (ruleset): no; and more: no; the other layers hold";
        assert_eq!(super::missing_layers(stderr), shown);
    }

    #[test]
    fn lists_all_probes() {
        let names: Vec<_> = super::all().into_iter().map(|probe| probe.name).collect();
        assert_eq!(
            names,
            [
                "kernel-enforced limits",
                "open files",
                "processes",
                "process trees"
            ]
        );
    }
}
