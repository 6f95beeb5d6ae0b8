//! What can be enforced on this machine, for `raddle doctor`. Looks only; changes nothing.

use std::{fs, path::Path, time::Duration};

use raddle_core::{Exit, Tid};

use crate::{
    Notice, Request, Runner, RunnerOptions, Sandbox, Stream,
    cgroup::{self, Controllers, Delegation},
};

/// The id of a task that is none.
const PROBE_TID: u64 = 1_000_000_000_000_000_000;
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What was looked at.
    pub name: &'static str,
    /// Whether it is as good as it can be. What is not is degraded, never off.
    pub ok: bool,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    pub fix: Option<String>,
}

/// Looks at everything.
pub fn all() -> Vec<Probe> {
    vec![limits(), open_files(), processes(), descendants()]
}

/// Makes a sandbox, and looks whether it holds.
pub async fn sandbox(options: &RunnerOptions) -> Probe {
    let name = "sandbox";
    let attempt = async {
        let mut runner = Runner::spawn(options).await.map_err(|error| error.to_string())?;
        let tid = Tid::from_u64(PROBE_TID).expect("it has as many digits as an id");
        let request = Request {
            timeout: Some(PROBE_TIMEOUT),
            sandbox: Some(Sandbox { fallback: true, ..Sandbox::default() }),
            ..Request::command(tid, "probe", ["true"])
        };
        runner.start(&request).await.map_err(|error| error.to_string())?;
        let mut said = Vec::new();
        let exit = loop {
            match runner.next().await.map_err(|error| error.to_string())? {
                Notice::Done(done) => {
                    said.extend(done.stderr);
                    break done.exit;
                }
                Notice::Output { stream: Stream::Stderr, bytes } => said.extend(bytes),
                _ => {}
            }
        };
        runner.close().await;
        match exit {
            Exit::Code { code: 0 } if said.is_empty() => Ok(()),
            Exit::Code { code: 0 } => Err(lacking(&String::from_utf8_lossy(&said))),
            Exit::SpawnFailed { message } => Err(message),
            other => Err(format!("{other:?}")),
        }
    };
    match attempt.await {
        Ok(()) => Probe { name, ok: true, detail: "all layers hold".into(), fix: None },
        Err(detail) => {
            let fix = "allow user namespaces (user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns), and use Linux 5.13 or newer";
            bad(name, detail, Some(fix))
        }
    }
}

/// Which layers are lacking, as the attempt has said: a line for each.
fn lacking(said: &str) -> String {
    let refusal = |line: &'_ str| line.strip_prefix("raddle: ")?.split(';').next().map(str::to_owned);
    let refusals: Vec<String> = said.lines().filter_map(refusal).collect();
    format!("{}; the other layers hold", refusals.join("; "))
}

fn limits() -> Probe {
    let name = "kernel-enforced limits";
    let fix = "run the worker in a cgroup of its own, for example with 'systemd-run --user --scope -p Delegate=yes'";
    let sampled = "limits are sampled every 10 ms instead";
    let Some(own) = cgroup::own_group() else {
        return bad(name, format!("no cgroup v2 hierarchy is mounted: {sampled}"), Some("boot with cgroup v2"));
    };
    if let Some(delegation) = Delegation::find() {
        let Controllers { memory, pids, cpu } = delegation.controllers();
        let detail = format!("cgroup v2 is delegated: memory {}, pids {}, cpu {}", yes(memory), yes(pids), yes(cpu));
        return Probe { name, ok: memory && pids && cpu, detail, fix: None };
    }
    let offered = fs::read_to_string(own.join("cgroup.controllers")).unwrap_or_default();
    if !["memory", "pids", "cpu"].iter().any(|c| offered.split_ascii_whitespace().any(|o| o == *c)) {
        let detail = format!("{} offers no memory, pids or cpu controller: {sampled}", own.display());
        return bad(name, detail, Some("boot with cgroup v2 only (systemd.unified_cgroup_hierarchy=1)"));
    }
    bad(name, format!("{} is not delegated to this user: {sampled}", own.display()), Some(fix))
}

fn open_files() -> Probe {
    let (soft, hard) = rlimit(libc::RLIMIT_NOFILE);
    let detail = format!("{} open files per process, at most {}", show(soft), show(hard));
    let fix = (soft < 1024).then(|| "raise it with 'ulimit -n 4096'".into());
    Probe { name: "open files", ok: fix.is_none(), detail, fix }
}

fn processes() -> Probe {
    let (soft, _) = rlimit(libc::RLIMIT_NPROC);
    let detail = format!("{} processes per user", show(soft));
    let fix = (soft < 256).then(|| "raise it with 'ulimit -u 4096'".into());
    Probe { name: "processes", ok: fix.is_none(), detail, fix }
}

fn descendants() -> Probe {
    let me = std::process::id();
    if Path::new(&format!("/proc/{me}/task/{me}/children")).exists() {
        let detail = "the kernel lists the children of a process".into();
        Probe { name: "process trees", ok: true, detail, fix: None }
    } else {
        let detail =
            "the kernel does not list the children of a process: limits are sampled by walking all of /proc".into();
        bad("process trees", detail, None)
    }
}

fn bad(name: &'static str, detail: String, fix: Option<&str>) -> Probe {
    Probe { name, ok: false, detail, fix: fix.map(Into::into) }
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

fn rlimit(resource: Resource) -> (u64, u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the result.
    unsafe { libc::getrlimit(resource, &raw mut limit) };
    (limit.rlim_cur, limit.rlim_max)
}

fn show(limit: u64) -> String {
    if limit == libc::RLIM_INFINITY { "unlimited".into() } else { limit.to_string() }
}

fn yes(there: bool) -> &'static str {
    if there { "yes" } else { "no" }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_probe_says_what_it_found() {
        for probe in super::all() {
            assert!(!probe.detail.is_empty(), "{}", probe.name);
        }
    }

    #[test]
    fn each_lacking_layer_is_named() {
        let said = "raddle: this system refuses the sandbox landlock (its rules): no; it runs without\nraddle: and more: no; so";
        let shown = "this system refuses the sandbox landlock (its rules): no; and more: no; the other layers hold";
        assert_eq!(super::lacking(said), shown);
    }

    #[test]
    fn nothing_is_probed_that_nothing_uses() {
        let names: Vec<_> = super::all().into_iter().map(|probe| probe.name).collect();
        assert_eq!(names, ["kernel-enforced limits", "open files", "processes", "process trees"]);
    }
}
