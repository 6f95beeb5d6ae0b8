//! Arguments and environment of a group process. Pure.

use std::{collections::BTreeSet, ffi::OsString};

use raddle_broker_connect::BrokerUrl;
use raddle_model::{HumanDuration, Tid};

use super::{
    Options, Process, ReconnectPolicy,
    group_process::{GroupProcessParams, VARIABLE},
};
use raddle_spawner::{ProcessTemplate, WARM_VARIABLE, worker_args};

const QUEUE_URL: &str = "QUEUE_URL";
/// How many heartbeats fit into the time after which a process counts as hung.
const HEARTBEATS_PER_TIMEOUT: u32 = 5;
/// Longest heartbeat interval, used unless `hang_timeout` needs a shorter one. More frequent
/// heartbeats gain nothing, and those of five hundred processes would be a noticeable load.
const MAX_HEARTBEAT_INTERVAL: HumanDuration = HumanDuration::secs(1);

/// Builds the template of a process of the manager `parent`. The process serves the slugs that are
/// not in `off`, and starts `paused` or not.
pub(super) fn template(
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
    let mut push_args = |words: &[&str]| args.extend(words.iter().map(OsString::from));
    if !options.words.iter().any(|word| word == "--verbose") {
        // The worker's own messages about its stop are noise: the manager logs it.
        push_args(&["--quiet"]);
    }
    push_args(&[
        "--once=false",
        "--concurrency",
        &process.concurrency.to_string(),
    ]);
    if !process.caps.is_empty() {
        push_args(&["--caps", &process.caps.join(",")]);
    }
    match options.url.secret() {
        // A URL with a password goes into the environment: every user of the machine can read
        // arguments.
        Some(url) => env.push((
            QUEUE_URL.into(),
            with_reconnect_params(url, process.reconnect).into(),
        )),
        None => push_args(&["--queue-url", &options.url.to_string()]),
    }
    args.extend(options.words.iter().cloned());
    args.extend(host_args(process).into_iter().map(OsString::from));
    let params = GroupProcessParams {
        manager: std::process::id(),
        parent,
        paused,
        every: heartbeat_interval(process),
        execution_timeout: on
            .map(|worker| (worker.slug.clone(), worker.execution_timeout))
            .collect(),
        shutdown_timeout: process.shutdown_timeout,
        max_tasks: process.max_tasks,
        startup: process.startup.clone(),
        shutdown: process.shutdown.clone(),
    };
    let params = serde_json::to_string(&params).expect("all map keys are strings");
    env.extend([
        (WARM_VARIABLE.into(), "1".into()),
        (VARIABLE.into(), params.into()),
    ]);
    ProcessTemplate { program, args, env }
}

/// The arguments about the hosts of a process. They come last, because the program of a host takes
/// all further arguments.
fn host_args(process: &Process) -> Vec<String> {
    if process.hosts.is_none() && process.host.is_empty() {
        return Vec::new();
    }
    let shutdown = format!("{}ms", process.shutdown_timeout.0.as_millis());
    let mut words: Vec<String> = vec![
        "--hosts".into(),
        process.hosts.unwrap_or(1).to_string(),
        "--host-shutdown-timeout".into(),
        shutdown,
    ];
    if !process.host.is_empty() {
        words.push("--host".into());
        words.extend(process.host.iter().cloned());
    }
    words
}

/// The heartbeat interval of a process.
pub(super) fn heartbeat_interval(process: &Process) -> HumanDuration {
    HumanDuration(process.hang_timeout.0 / HEARTBEATS_PER_TIMEOUT).min(MAX_HEARTBEAT_INTERVAL)
}

/// Adds the reconnect policy of a process to the URL of a Redis server.
fn with_reconnect_params(url: &str, reconnect: Option<ReconnectPolicy>) -> String {
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
        let separator = if url.contains('?') { '&' } else { '?' };
        url.push_str(&format!("{separator}{key}={}ms", span.0.as_millis()));
    }
    url
}

/// Whether several processes can share a broker.
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
        let url = with_reconnect_params("redis://h:1", Some(reconnect));
        assert_eq!(url, "redis://h:1?initial=50ms&give_up_after=9000ms");
        assert_eq!(
            with_reconnect_params("redis://h:1?db=2", Some(reconnect))
                .matches('?')
                .count(),
            1
        );
        assert_eq!(with_reconnect_params("redis://h:1", None), "redis://h:1");
    }
}
