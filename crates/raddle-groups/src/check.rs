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
    /// What is wrong, and what to do.
    pub reason: String,
}

/// Shortest useful duration.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(7 * 86_400);
const MOST: u32 = 1000;

type Result<T = ()> = std::result::Result<T, GroupConfigError>;

/// Checks that the groups can run, and that all settings have a meaning.
pub(super) fn check(processes: &[Process]) -> Result {
    if processes.is_empty() {
        return Err(mistake(
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
                return Err(mistake(
                    format!("{path}.slug"),
                    format_args!("'{slug}' is that of {other}: give each its own"),
                ));
            }
        }
    }
    check_order(processes)
}

fn check_process(process: &Process, path: &str, all: &[Process]) -> Result {
    let at = |key: &str| format!("{path}.{key}");
    if !is_slug(&process.name) {
        return Err(mistake(
            path,
            "the name must be 1 to 64 letters, digits, or . _ -",
        ));
    }
    if process.workers.is_empty() {
        return Err(mistake(
            path,
            format_args!("it hosts no worker: write a table [[{path}.worker]]"),
        ));
    }
    within(&at("replicas"), process.replicas, 1, MOST)?;
    within(&at("concurrency"), process.concurrency, 1, 256)?;
    if process.replicas > 1 {
        if process.workers.len() > 1 {
            let reason =
                "more than one replica is for a process with one worker: write a process for each";
            return Err(mistake(at("replicas"), reason));
        }
        if process.workers[0].trigger.is_some() {
            let reason =
                "more than one replica is for workers without a trigger: leave out one of the two";
            return Err(mistake(at("replicas"), reason));
        }
    }
    lasts(&at("shutdown_timeout"), process.shutdown_timeout, SHORTEST)?;
    lasts(&at("start_timeout"), process.start_timeout, SHORTEST)?;
    lasts(
        &at("hang_timeout"),
        process.hang_timeout,
        Duration::from_millis(200),
    )?;
    if let Some(age) = process.max_age {
        lasts(&at("max_age"), age, Duration::from_secs(1))?;
    }
    if let Some(tasks) = process.max_tasks {
        within(&at("max_tasks"), tasks, 1, u64::MAX)?;
    }
    if let Some(mb) = process.max_rss_mb {
        within(&at("max_rss_mb"), mb, 8, 1 << 30)?;
    }
    if !(0.0..=0.9).contains(&process.jitter) {
        return Err(mistake(
            at("jitter"),
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
            return Err(mistake(format!("{path}.after[{number}]"), reason));
        }
    }
    for tag in &process.caps {
        if tag.contains(',') || tag.trim().is_empty() {
            let reason = format!("'{tag}' is no capability: write each one as its own string");
            return Err(mistake(at("caps"), reason));
        }
        CapSet::from_people(tag).map_err(|error| mistake(at("caps"), error))?;
    }
    Ok(())
}

fn check_worker(worker: &GroupWorker, path: &str) -> Result {
    let at = |key: &str| format!("{path}.{key}");
    if !is_slug(&worker.slug) || worker.slug == DEFAULT_QUEUE {
        let reason = "must be 1 to 64 letters, digits, or . _ -, and not 'default', the queue of all other workers";
        return Err(mistake(at("slug"), reason));
    }
    free(&at("slug"), &worker.slug)?;
    for (number, source) in worker.sources.iter().enumerate() {
        let path = format!("{path}.sources[{number}]");
        free(&path, source)?;
        if stream_of(source) == Some("") {
            return Err(mistake(
                path,
                "it names no stream: write its key, as in 'stream:orders'",
            ));
        }
        if worker.sources[..number].contains(source) {
            return Err(mistake(
                path,
                format_args!("'{source}' is named twice: once is enough"),
            ));
        }
    }
    lasts(&at("execution_timeout"), worker.execution_timeout, SHORTEST)?;
    let targets = [
        worker.command.is_some(),
        worker.routine.is_some(),
        worker.handler.is_some(),
    ];
    match targets.iter().filter(|target| **target).count() {
        0 if !worker.sources.is_empty() || worker.trigger.is_some() => {
            let reason = "it has events, and nothing to run for them: give it a command, a routine or a handler";
            return Err(mistake(path, reason));
        }
        0 | 1 => {}
        _ => {
            return Err(mistake(
                path,
                "command, routine and handler exclude each other: give one",
            ));
        }
    }
    if worker.retry.is_some() && worker.on_error != super::OnError::Retry {
        return Err(mistake(
            at("retry"),
            "means nothing without on_error = \"retry\"",
        ));
    }
    if let Some(schedule) = worker.schedule() {
        schedule
            .validate()
            .map_err(|error| mistake(format!("{path}.trigger.{}", error.path), error.reason))?;
    }
    if let Some(event) = worker.event() {
        let key = |path: &str| path.strip_prefix("target.").unwrap_or(path).to_owned();
        event
            .validate()
            .map_err(|error| mistake(format!("{path}.{}", key(&error.path)), error.reason))?;
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
                return Err(mistake(path, reason));
            }
        }
    }
    Ok(())
}

/// Refuses processes that wait for each other.
fn check_order(processes: &[Process]) -> Result {
    let mut started: Vec<&str> = Vec::new();
    loop {
        let is_free = |process: &&Process| {
            !started.contains(&process.name.as_str())
                && process
                    .after
                    .iter()
                    .all(|name| started.contains(&name.as_str()))
        };
        match processes.iter().find(is_free) {
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
            Err(mistake(
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
fn free(path: &str, queue: &str) -> Result {
    match queue
        .parse::<QueueName>()
        .map_err(|error| mistake(path, error))?
    {
        name @ QueueName::Free(_) if name.desk().is_none() && !queue.starts_with("raddle.") => {
            Ok(())
        }
        _ => Err(mistake(
            path,
            format_args!("'{queue}' is one of Raddle's own queues: use another"),
        )),
    }
}

fn mistake(path: impl Into<String>, reason: impl fmt::Display) -> GroupConfigError {
    GroupConfigError {
        path: path.into(),
        reason: reason.to_string(),
    }
}

fn within<T: PartialOrd + fmt::Display>(path: &str, value: T, least: T, most: T) -> Result {
    if value < least || value > most {
        return Err(mistake(
            path,
            format_args!("{value} is not between {least} and {most}"),
        ));
    }
    Ok(())
}

fn lasts(path: &str, span: HumanDuration, least: Duration) -> Result {
    if span.0 < least || span.0 > LONGEST {
        return Err(mistake(
            path,
            format_args!("{span} is not between {least:?} and 7 days"),
        ));
    }
    Ok(())
}
