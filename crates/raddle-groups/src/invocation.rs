//! The command line of a group process. Pure.

use std::{collections::BTreeSet, ffi::OsString};

use raddle_broker_connect::BrokerUrl;
use raddle_model::{HumanDuration, Tid};

use super::{
    Options, Process, ReconnectPolicy,
    group_process::{GroupProcessParams, VARIABLE},
};
use raddle_spawner::{ProcessTemplate, WARM_VARIABLE, worker_args};

const QUEUE_URL: &str = "QUEUE_URL";
/// Heartbeats per hang timeout.
const HEARTBEATS_PER_TIMEOUT: u32 = 5;
/// Shortest heartbeat interval: more heartbeats gain nothing, and hundreds of processes would cost
/// CPU.
const MAX_HEARTBEAT_INTERVAL: HumanDuration = HumanDuration::secs(1);

/// The template of a process of manager `parent`. It serves the slugs that are not `off`, and may
/// start paused.
pub(super) fn build_template(
    options: &Options,
    parent: Tid,
    process: &Process,
    off: &BTreeSet<String>,
    paused: bool,
) -> ProcessTemplate {
    let ProcessTemplate {
        program,
        mut args,
        mut env,
    } = options.program.clone();
    let on = process
        .workers
        .iter()
        .filter(|worker| !off.contains(&worker.slug));
    let slugs: Vec<&str> = on.clone().map(|worker| worker.slug.as_str()).collect();
    args.extend(worker_args(&process.name, &slugs).map(OsString::from));
    let mut push = |extra_args: &[&str]| args.extend(extra_args.iter().map(OsString::from));
    if !options.extra_args.iter().any(|arg| arg == "--verbose") {
        // Routine messages about starts and stops are not worth logging.
        push(&["--quiet"]);
    }
    push(&[
        "--once=false",
        "--concurrency",
        &process.concurrency.to_string(),
    ]);
    if !process.caps.is_empty() {
        push(&["--caps", &process.caps.join(",")]);
    }
    match options.url.secret() {
        // A password must not be in the arguments, which every user can read.
        Some(url) => env.push((
            QUEUE_URL.into(),
            with_reconnect_policy(url, process.reconnect).into(),
        )),
        None => push(&["--queue-url", &options.url.to_string()]),
    }
    args.extend(options.extra_args.iter().cloned());
    args.extend(host_args(process).into_iter().map(OsString::from));
    let params = GroupProcessParams {
        manager: std::process::id(),
        parent,
        paused,
        heartbeat_interval: heartbeat_interval(process),
        execution_timeout: on
            .map(|worker| (worker.slug.clone(), worker.execution_timeout))
            .collect(),
        shutdown_timeout: process.shutdown_timeout,
        max_tasks: process.max_tasks,
        startup: process.startup.clone(),
        shutdown: process.shutdown.clone(),
    };
    let params = serde_json::to_string(&params).expect("a params has only string keys");
    env.extend([
        (WARM_VARIABLE.into(), "1".into()),
        (VARIABLE.into(), params.into()),
    ]);
    ProcessTemplate { program, args, env }
}

/// The arguments about hosts. They come last, because the program of a host takes the rest.
fn host_args(process: &Process) -> Vec<String> {
    let hosts = process.host_count();
    if hosts == 0 {
        return Vec::new();
    }
    let shutdown = format!("{}ms", process.shutdown_timeout.0.as_millis());
    let mut args: Vec<String> = vec![
        "--hosts".into(),
        hosts.to_string(),
        "--host-shutdown-timeout".into(),
        shutdown,
    ];
    if !process.host.is_empty() {
        args.push("--host".into());
        args.extend(process.host.iter().cloned());
    }
    args
}

/// The heartbeat interval of a process.
pub(super) fn heartbeat_interval(process: &Process) -> HumanDuration {
    HumanDuration(process.hang_timeout.0 / HEARTBEATS_PER_TIMEOUT).min(MAX_HEARTBEAT_INTERVAL)
}

/// The URL of a Redis server with a reconnect policy.
fn with_reconnect_policy(url: &str, reconnect: Option<ReconnectPolicy>) -> String {
    let ReconnectPolicy {
        initial,
        max,
        give_up_after,
    } = reconnect.unwrap_or_default();
    let settings = [
        ("initial", initial),
        ("max", max),
        ("give_up_after", give_up_after),
    ];
    let mut url = url.to_owned();
    for (key, span) in settings
        .into_iter()
        .filter_map(|(key, span)| Some((key, span?)))
    {
        let mark = if url.contains('?') { '&' } else { '?' };
        url.push_str(&format!("{mark}{key}={}ms", span.0.as_millis()));
    }
    url
}

/// Whether processes can share a broker.
pub(super) fn is_shared(url: &BrokerUrl) -> bool {
    *url != BrokerUrl::Memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_the_reconnect_policy_to_the_url() {
        let reconnect = ReconnectPolicy {
            initial: Some(HumanDuration::millis(50)),
            max: None,
            give_up_after: Some(HumanDuration::secs(9)),
        };
        let url = with_reconnect_policy("redis://h:1", Some(reconnect));
        assert_eq!(url, "redis://h:1?initial=50ms&give_up_after=9000ms");
        assert_eq!(
            with_reconnect_policy("redis://h:1?db=2", Some(reconnect))
                .matches('?')
                .count(),
            1
        );
        assert_eq!(with_reconnect_policy("redis://h:1", None), "redis://h:1");
    }
}
