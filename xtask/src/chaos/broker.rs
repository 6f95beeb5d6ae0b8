//! Queries of the broker through the command line, as a user would make them.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    process::Stdio,
    time::{Duration, Instant},
};

use raddle_model::{TaskEvent, Tid};
use serde_json::Value;

use crate::{
    campaign::{CampaignError, is_interrupted},
    campaign_dir::CampaignDir,
    check::{FollowUp, MessageTask, TriggerTask},
    managers::{MANAGER, MESSAGE_GROUP, MESSAGE_QUEUE, REGISTRY_TASK, TRIGGER_GROUP},
    task::CHAINED,
};

/// Reading the log of 200,000 tasks takes some seconds.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(300);

/// Tasks per state, as the broker counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskCounts {
    /// Tasks that are not in a final state.
    pub(crate) unfinished: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) killed: u64,
    /// `timeout` and `cancelled`, which no task of the campaign should reach.
    pub(crate) others: u64,
    pub(crate) stale_writes: u64,
}

impl TaskCounts {
    pub(crate) fn total(&self) -> u64 {
        self.unfinished + self.completed + self.failed + self.killed + self.others
    }
}

/// Runs `raddle` to its end and returns its standard output.
pub(crate) fn run_raddle(dir: &CampaignDir, args: &[&str]) -> Result<String, CampaignError> {
    let shown = args.join(" ");
    let run = || -> io::Result<(bool, String, String)> {
        let (out, err) = (dir.file("answer.out"), dir.file("answer.err"));
        let mut command = dir.raddle(args);
        command
            .stdin(Stdio::null())
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?);
        let mut child = command.spawn()?;
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline || is_interrupted() {
                child.kill()?;
                break child.wait()?;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let stderr = fs::read(err)?;
        Ok((
            status.success(),
            fs::read_to_string(out)?,
            String::from_utf8_lossy(&stderr).trim().to_owned(),
        ))
    };
    match run() {
        _ if is_interrupted() => Err(CampaignError::Interrupted),
        Ok((true, answer, _)) => Ok(answer),
        Ok((false, _, stderr)) => Err(format!("'raddle {shown}' failed: {stderr}").into()),
        Err(error) => Err(format!("cannot run 'raddle {shown}': {error}").into()),
    }
}

/// Counts the tasks of the campaign, without the tasks of managers.
pub(crate) fn task_counts(dir: &CampaignDir) -> Result<TaskCounts, CampaignError> {
    // Before `status`, so that a manager that ends in between is not counted as a finished task of
    // the campaign.
    let managers = tasks(dir, ["--name", MANAGER])?;
    let answer = run_raddle(dir, &["status", "--json"])?;
    let status: Value = serde_json::from_str(&answer)
        .map_err(|error| format!("'raddle status' printed invalid JSON: {error}"))?;
    let in_state = |state: &str| {
        let counted = status["tasks"][state]
            .as_u64()
            .ok_or(format!("status does not count '{state}'"))?;
        let managers = managers
            .iter()
            .filter(|task| task["state"] == state)
            .count() as u64;
        Ok::<u64, String>(counted.saturating_sub(managers))
    };
    Ok(TaskCounts {
        unfinished: in_state("created")? + in_state("spawning")? + in_state("running")?,
        completed: in_state("completed")?,
        failed: in_state("failed")?,
        killed: in_state("killed")?,
        others: in_state("timeout")? + in_state("cancelled")?,
        stale_writes: status["stale_writes"]
            .as_u64()
            .ok_or_else(|| "status does not count refused writes".to_owned())?,
    })
}

/// The number of unfinished tasks, and of messages that have not become tasks.
pub(crate) fn count_unsettled(dir: &CampaignDir) -> Result<u64, CampaignError> {
    let messages = run_raddle(dir, &["queue", "peek", MESSAGE_QUEUE, "--all"])?
        .lines()
        .count() as u64;
    Ok(messages + task_counts(dir)?.unfinished)
}

/// Pauses the trigger of the groups.
pub(crate) fn pause_trigger(dir: &CampaignDir) -> Result<(), CampaignError> {
    run_raddle(dir, &["schedule", "pause", TRIGGER_GROUP]).map(drop)
}

/// All tasks that match the filter.
fn tasks(dir: &CampaignDir, filter: [&str; 2]) -> Result<Vec<Value>, CampaignError> {
    let args = ["task", "list", "--json", "--limit", "100000000"];
    let answer = run_raddle(dir, &[&args[..], &filter].concat())?;
    serde_json::from_str(&answer)
        .map_err(|error| format!("'raddle task list' printed invalid JSON: {error}").into())
}

/// All tasks that match the filter, as `parse` reads them.
fn parse_tasks<T>(
    dir: &CampaignDir,
    filter: [&str; 2],
    parse: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<T>, CampaignError> {
    let unexpected =
        |task: &Value| CampaignError::from(format!("unexpected task in the list: {task}"));
    tasks(dir, filter)?
        .iter()
        .map(|task| parse(task).ok_or_else(|| unexpected(task)))
        .collect()
}

fn tid_of(task: &Value) -> Option<Tid> {
    task["tid"].as_str()?.parse().ok()
}

/// The tasks that messages became.
pub(crate) fn messages(dir: &CampaignDir) -> Result<Vec<MessageTask>, CampaignError> {
    parse_tasks(dir, ["--queue", MESSAGE_GROUP], |task| {
        let message = task["spec"]["metadata"]["message"].as_str()?.parse().ok()?;
        Some(MessageTask {
            tid: tid_of(task)?,
            message,
        })
    })
}

/// The tasks that the trigger submitted.
pub(crate) fn trigger_tasks(dir: &CampaignDir) -> Result<Vec<TriggerTask>, CampaignError> {
    parse_tasks(dir, ["--queue", TRIGGER_GROUP], |task| {
        let due: jiff::Timestamp = task["spec"]["metadata"]["due"].as_str()?.parse().ok()?;
        Some(TriggerTask {
            tid: tid_of(task)?,
            due: due.as_nanosecond() as u64,
        })
    })
}

/// The tasks that were requested by their name in a registry.
pub(crate) fn registry_tasks(dir: &CampaignDir) -> Result<Vec<Tid>, CampaignError> {
    parse_tasks(dir, ["--name", REGISTRY_TASK], tid_of)
}

/// The whole event log, in its order.
pub(crate) fn events(dir: &CampaignDir) -> Result<Vec<TaskEvent>, CampaignError> {
    let log = run_raddle(dir, &["queue", "peek", "raddle.tasks.log", "--all"])?;
    log.lines()
        .map(|line| {
            serde_json::from_str(line)
                .map_err(|error| format!("invalid event '{line}': {error}").into())
        })
        .collect()
}

/// The tasks whose names have this prefix, by the number of their batch.
pub(crate) fn stored(
    dir: &CampaignDir,
    name: &str,
) -> Result<HashMap<usize, Vec<Tid>>, CampaignError> {
    let found = parse_tasks(dir, ["--name", &format!("{name}*")], |task| {
        let batch: usize = task["name"].as_str()?[1..]
            .split_once('-')?
            .0
            .parse()
            .ok()?;
        Some((batch, tid_of(task)?))
    })?;
    let mut stored: HashMap<usize, Vec<Tid>> = HashMap::new();
    found
        .into_iter()
        .for_each(|(batch, tid)| stored.entry(batch).or_default().push(tid));
    Ok(stored)
}

/// The chained tasks, with the attempts that chained them.
pub(crate) fn follow_ups(dir: &CampaignDir) -> Result<Vec<FollowUp>, CampaignError> {
    parse_tasks(dir, ["--name", &format!("{CHAINED}*")], |task| {
        let (parent, attempt) = task["name"]
            .as_str()?
            .strip_prefix(CHAINED)?
            .split_once('-')?;
        let is_below = task["parent"].as_str() == Some(parent);
        let (tid, parent) = (tid_of(task)?, parent.parse().ok()?);
        is_below.then_some(FollowUp {
            tid,
            parent,
            attempt: attempt.parse().ok()?,
        })
    })
}

/// The standard output of an attempt.
pub(crate) fn output(dir: &CampaignDir, tid: Tid, attempt: u32) -> Result<String, CampaignError> {
    run_raddle(
        dir,
        &[
            "logs",
            &tid.to_string(),
            "--attempt",
            &attempt.to_string(),
            "--stdout",
        ],
    )
}
