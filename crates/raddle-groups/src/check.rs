//! Validation of groups beyond their types. Pure.

use std::{collections::BTreeMap, fmt, time::Duration};

use raddle_broker_connect::BrokerUrl;
use raddle_model::{CapSet, HumanDuration, QueueName, schedule::is_slug, spec::DEFAULT_QUEUE};

use super::{GroupWorker, Process, source_consumer::stream_of};

/// An invalid setting of a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at '{path}': {reason}")]
pub struct GroupConfigError {
    /// The key, such as `process.mail.worker[0].slug`.
    pub path: String,
    /// The problem and the fix.
    pub reason: String,
}

/// Shortest useful duration.
const MIN_DURATION: Duration = Duration::from_millis(10);
const MAX_DURATION: Duration = Duration::from_secs(7 * 86_400);
const MAX_REPLICAS: u32 = 1000;

type Result<T = ()> = std::result::Result<T, GroupConfigError>;

/// Checks that the groups can run, and that all settings have a meaning.
pub(super) fn check(processes: &[Process]) -> Result {
    if processes.is_empty() {
        return Err(invalid(
            "process",
            "there is none: write a table [process.NAME]",
        ));
    }
    let mut slugs = BTreeMap::new();
    for process in processes {
        let path = format!("process.{}", process.name);
        check_process(process, &path, processes)?;
        for (number, worker) in process.workers.iter().enumerate() {
            let path = format!("{path}.worker[{number}]");
            check_worker(worker, &path)?;
            if let Some(other) = slugs.insert(&worker.slug, path.clone()) {
                let slug = &worker.slug;
                return Err(invalid(
                    format!("{path}.slug"),
                    format_args!("'{slug}' is that of {other}: give each its own"),
                ));
            }
        }
    }
    check_order(processes)
}

fn check_process(process: &Process, path: &str, all: &[Process]) -> Result {
    let key = |name: &str| format!("{path}.{name}");
    if !is_slug(&process.name) {
        return Err(invalid(
            path,
            "the name must be 1 to 64 letters, digits, or . _ -",
        ));
    }
    if process.workers.is_empty() {
        return Err(invalid(
            path,
            format_args!("it hosts no worker: write a table [[{path}.worker]]"),
        ));
    }
    check_range(&key("replicas"), process.replicas, 1, MAX_REPLICAS)?;
    check_range(&key("concurrency"), process.concurrency, 1, 256)?;
    if process.replicas > 1 {
        if process.workers.len() > 1 {
            let reason =
                "more than one replica is for a process with one worker: write a process for each";
            return Err(invalid(key("replicas"), reason));
        }
        if process.workers[0].trigger.is_some() {
            let reason =
                "more than one replica is for workers without a trigger: leave out one of the two";
            return Err(invalid(key("replicas"), reason));
        }
    }
    check_duration(
        &key("shutdown_timeout"),
        process.shutdown_timeout,
        MIN_DURATION,
    )?;
    check_duration(&key("start_timeout"), process.start_timeout, MIN_DURATION)?;
    check_duration(
        &key("hang_timeout"),
        process.hang_timeout,
        Duration::from_millis(200),
    )?;
    if let Some(age) = process.max_age {
        check_duration(&key("max_age"), age, Duration::from_secs(1))?;
    }
    if let Some(tasks) = process.max_tasks {
        check_range(&key("max_tasks"), tasks, 1, u64::MAX)?;
    }
    if let Some(mb) = process.max_rss_mb {
        check_range(&key("max_rss_mb"), mb, 8, 1 << 30)?;
    }
    if !(0.0..=0.9).contains(&process.jitter) {
        return Err(invalid(
            key("jitter"),
            format_args!("{} is not between 0 and 0.9", process.jitter),
        ));
    }
    for (number, name) in process.after.iter().enumerate() {
        if !all.iter().any(|other| other.name == *name) {
            let names: Vec<&str> = all.iter().map(|other| other.name.as_str()).collect();
            let reason = format!(
                "there is no process '{name}': there are {}",
                names.join(", ")
            );
            return Err(invalid(format!("{path}.after[{number}]"), reason));
        }
    }
    for tag in &process.caps {
        if tag.contains(',') || tag.trim().is_empty() {
            let reason = format!("'{tag}' is no capability: write each one as its own string");
            return Err(invalid(key("caps"), reason));
        }
        CapSet::from_people(tag).map_err(|error| invalid(key("caps"), error))?;
    }
    Ok(())
}

fn check_worker(worker: &GroupWorker, path: &str) -> Result {
    let key = |name: &str| format!("{path}.{name}");
    if !is_slug(&worker.slug) || worker.slug == DEFAULT_QUEUE {
        let reason = "must be 1 to 64 letters, digits, or . _ -, and not 'default', the queue of all other workers";
        return Err(invalid(key("slug"), reason));
    }
    check_queue_name(&key("slug"), &worker.slug)?;
    for (number, source) in worker.sources.iter().enumerate() {
        let path = format!("{path}.sources[{number}]");
        check_queue_name(&path, source)?;
        if stream_of(source) == Some("") {
            return Err(invalid(
                path,
                "it names no stream: write its key, as in 'stream:orders'",
            ));
        }
        if worker.sources[..number].contains(source) {
            return Err(invalid(
                path,
                format_args!("'{source}' is named twice: once is enough"),
            ));
        }
    }
    check_duration(
        &key("execution_timeout"),
        worker.execution_timeout,
        MIN_DURATION,
    )?;
    let targets = [
        worker.command.is_some(),
        worker.routine.is_some(),
        worker.handler.is_some(),
    ];
    match targets.iter().filter(|target| **target).count() {
        0 if !worker.sources.is_empty() || worker.trigger.is_some() => {
            let reason = "it has events, and nothing to run for them: give it a command, a routine or a handler";
            return Err(invalid(path, reason));
        }
        0 | 1 => {}
        _ => {
            return Err(invalid(
                path,
                "command, routine and handler exclude each other: give one",
            ));
        }
    }
    if worker.retry.is_some() && worker.on_error != super::OnError::Retry {
        return Err(invalid(
            key("retry"),
            "means nothing without on_error = \"retry\"",
        ));
    }
    if let Some(schedule) = worker.schedule() {
        schedule
            .validate()
            .map_err(|error| invalid(format!("{path}.trigger.{}", error.path), error.reason))?;
    }
    if let Some(event) = worker.event() {
        let field = |path: &str| path.strip_prefix("target.").unwrap_or(path).to_owned();
        event
            .validate()
            .map_err(|error| invalid(format!("{path}.{}", field(&error.path)), error.reason))?;
    }
    Ok(())
}

/// Refuses streams as sources for brokers that have none.
pub(super) fn check_streams(processes: &[Process], url: &BrokerUrl) -> Result {
    if url.has_streams() {
        return Ok(());
    }
    for process in processes {
        for (worker, work) in process.workers.iter().enumerate() {
            if let Some(source) = work
                .sources
                .iter()
                .position(|source| stream_of(source).is_some())
            {
                let path = format!(
                    "process.{}.worker[{worker}].sources[{source}]",
                    process.name
                );
                let reason = format!(
                    "streams need Redis, and the broker is {url}: use redis://HOST:PORT, or the name of a queue"
                );
                return Err(invalid(path, reason));
            }
        }
    }
    Ok(())
}

/// Refuses processes that wait for each other.
fn check_order(processes: &[Process]) -> Result {
    let mut started: Vec<&str> = Vec::new();
    loop {
        let can_start = |process: &&Process| {
            !started.contains(&process.name.as_str())
                && process
                    .after
                    .iter()
                    .all(|name| started.contains(&name.as_str()))
        };
        match processes.iter().find(can_start) {
            Some(process) => started.push(&process.name),
            None => break,
        }
    }
    match processes
        .iter()
        .find(|process| !started.contains(&process.name.as_str()))
    {
        None => Ok(()),
        Some(process) => {
            let path = format!("process.{}.after", process.name);
            Err(invalid(
                path,
                format_args!(
                    "it waits for itself through {}: remove one of them",
                    process.after.join(", ")
                ),
            ))
        }
    }
}

/// Refuses invalid queue names, and the queues that Raddle reserves.
fn check_queue_name(path: &str, queue: &str) -> Result {
    match queue
        .parse::<QueueName>()
        .map_err(|error| invalid(path, error))?
    {
        name @ QueueName::Free(_) if name.desk().is_none() && !queue.starts_with("raddle.") => {
            Ok(())
        }
        _ => Err(invalid(
            path,
            format_args!("'{queue}' is one of Raddle's own queues: use another"),
        )),
    }
}

fn invalid(path: impl Into<String>, reason: impl fmt::Display) -> GroupConfigError {
    GroupConfigError {
        path: path.into(),
        reason: reason.to_string(),
    }
}

fn check_range<T: PartialOrd + fmt::Display>(path: &str, value: T, least: T, most: T) -> Result {
    if value < least || value > most {
        return Err(invalid(
            path,
            format_args!("{value} is not between {least} and {most}"),
        ));
    }
    Ok(())
}

fn check_duration(path: &str, span: HumanDuration, least: Duration) -> Result {
    if span.0 < least || span.0 > MAX_DURATION {
        return Err(invalid(
            path,
            format_args!("{span} is not between {least:?} and 7 days"),
        ));
    }
    Ok(())
}
