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
const MARKS: u32 = 5;
/// Shortest heartbeat interval: more heartbeats gain nothing, and hundreds of processes would cost
/// CPU.
const MARK_EVERY: HumanDuration = HumanDuration::secs(1);

/// The template of a process of manager `parent`. It serves the slugs that are not `off`, and may
/// start paused.
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
    let mut say = |words: &[&str]| args.extend(words.iter().map(OsString::from));
    if !options.words.iter().any(|word| word == "--verbose") {
        // Routine messages about starts and stops are not worth logging.
        say(&["--quiet"]);
    }
    say(&[
        "--once=false",
        "--concurrency",
        &process.concurrency.to_string(),
    ]);
    if !process.caps.is_empty() {
        say(&["--caps", &process.caps.join(",")]);
    }
    match options.url.secret() {
        // A password must not be in the arguments, which every user can read.
        Some(url) => env.push((
            QUEUE_URL.into(),
            reconnecting(url, process.reconnect).into(),
        )),
        None => say(&["--queue-url", &options.url.to_string()]),
    }
    args.extend(options.words.iter().cloned());
    args.extend(host_words(process).into_iter().map(OsString::from));
    let charge = GroupProcessParams {
        manager: std::process::id(),
        parent,
        paused,
        every: mark_every(process),
        execution_timeout: on
            .map(|worker| (worker.slug.clone(), worker.execution_timeout))
            .collect(),
        shutdown_timeout: process.shutdown_timeout,
        max_tasks: process.max_tasks,
        startup: process.startup.clone(),
        shutdown: process.shutdown.clone(),
    };
    let charge = serde_json::to_string(&charge).expect("a charge has only string keys");
    env.extend([
        (WARM_VARIABLE.into(), "1".into()),
        (VARIABLE.into(), charge.into()),
    ]);
    ProcessTemplate { program, args, env }
}

/// The arguments about hosts. They come last, because the program of a host takes the rest.
fn host_words(process: &Process) -> Vec<String> {
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
pub(super) fn mark_every(process: &Process) -> HumanDuration {
    HumanDuration(process.hang_timeout.0 / MARKS).min(MARK_EVERY)
}

/// The URL of a Redis server with a reconnect policy.
fn reconnecting(url: &str, reconnect: Option<ReconnectPolicy>) -> String {
    let ReconnectPolicy {
        initial,
        max,
        give_up_after,
    } = reconnect.unwrap_or_default();
    let said = [
        ("initial", initial),
        ("max", max),
        ("give_up_after", give_up_after),
    ];
    let mut url = url.to_owned();
    for (key, span) in said
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
        let url = reconnecting("redis://h:1", Some(reconnect));
        assert_eq!(url, "redis://h:1?initial=50ms&give_up_after=9000ms");
        assert_eq!(
            reconnecting("redis://h:1?db=2", Some(reconnect))
                .matches('?')
                .count(),
            1
        );
        assert_eq!(reconnecting("redis://h:1", None), "redis://h:1");
    }
}
