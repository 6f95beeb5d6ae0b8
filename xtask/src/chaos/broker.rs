//! What the broker says, asked for with the command line as any user would.

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
    campaign::{Broken, is_interrupted},
    check::{FollowUp, Letter, Tick},
    hierarchy::{CHORE, CLOCK, LETTERS, MANAGER, POST},
    site::Site,
    task::CHAINED,
};

/// Reading the log of 200,000 tasks takes some seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// The broker's own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    /// Tasks that are not over.
    pub(crate) unfinished: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) killed: u64,
    /// `timeout` and `cancelled`, which no task of ours should be.
    pub(crate) others: u64,
    pub(crate) stale_writes: u64,
}

impl Census {
    pub(crate) fn total(&self) -> u64 {
        self.unfinished + self.completed + self.failed + self.killed + self.others
    }
}

/// Runs `raddle` to its end and returns what it printed.
pub(crate) fn ask(site: &Site, args: &[&str]) -> Result<String, Broken> {
    let shown = args.join(" ");
    let run = || -> io::Result<(bool, String, String)> {
        let (out, err) = (site.file("answer.out"), site.file("answer.err"));
        let mut command = site.raddle(args);
        command
            .stdin(Stdio::null())
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?);
        let mut child = command.spawn()?;
        let deadline = Instant::now() + PATIENCE;
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
        let said = fs::read(err)?;
        Ok((
            status.success(),
            fs::read_to_string(out)?,
            String::from_utf8_lossy(&said).trim().to_owned(),
        ))
    };
    match run() {
        _ if is_interrupted() => Err(Broken::Interrupted),
        Ok((true, answer, _)) => Ok(answer),
        Ok((false, _, said)) => Err(format!("'raddle {shown}' failed: {said}").into()),
        Err(error) => Err(format!("cannot run 'raddle {shown}': {error}").into()),
    }
}

/// The tasks of the campaign. Those that managers are, are not among them.
pub(crate) fn census(site: &Site) -> Result<Census, Broken> {
    // First, so that one that ends meanwhile is not taken for a task of ours that has.
    let managers = tasks(site, ["--name", MANAGER])?;
    let answer = ask(site, &["status", "--json"])?;
    let status: Value =
        serde_json::from_str(&answer).map_err(|error| format!("status is no JSON: {error}"))?;
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
    Ok(Census {
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

/// How much is still to be done: tasks, and messages that are to become some.
pub(crate) fn unsettled(site: &Site) -> Result<u64, Broken> {
    let letters = ask(site, &["queue", "peek", LETTERS, "--all"])?
        .lines()
        .count() as u64;
    Ok(letters + census(site)?.unfinished)
}

/// Has the clock of the groups stand still.
pub(crate) fn stop_clock(site: &Site) -> Result<(), Broken> {
    ask(site, &["schedule", "pause", CLOCK]).map(drop)
}

/// All tasks that fit.
fn tasks(site: &Site, filter: [&str; 2]) -> Result<Vec<Value>, Broken> {
    let args = ["task", "list", "--json", "--limit", "100000000"];
    let answer = ask(site, &[&args[..], &filter].concat())?;
    serde_json::from_str(&answer).map_err(|error| format!("the list is no JSON: {error}").into())
}

/// The same, as what is made of each.
fn made<T>(
    site: &Site,
    filter: [&str; 2],
    of: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<T>, Broken> {
    let odd = |task: &Value| Broken::from(format!("the list has {task}"));
    tasks(site, filter)?
        .iter()
        .map(|task| of(task).ok_or_else(|| odd(task)))
        .collect()
}

fn tid_of(task: &Value) -> Option<Tid> {
    task["tid"].as_str()?.parse().ok()
}

/// The tasks that messages have become.
pub(crate) fn letters(site: &Site) -> Result<Vec<Letter>, Broken> {
    made(site, ["--queue", POST], |task| {
        let message = task["spec"]["metadata"]["message"].as_str()?.parse().ok()?;
        Some(Letter {
            tid: tid_of(task)?,
            message,
        })
    })
}

/// The tasks that a trigger has fired.
pub(crate) fn ticks(site: &Site) -> Result<Vec<Tick>, Broken> {
    made(site, ["--queue", CLOCK], |task| {
        let due: jiff::Timestamp = task["spec"]["metadata"]["due"].as_str()?.parse().ok()?;
        Some(Tick {
            tid: tid_of(task)?,
            due: due.as_nanosecond() as u64,
        })
    })
}

/// The tasks that were asked for by the name that a registry lists.
pub(crate) fn chores(site: &Site) -> Result<Vec<Tid>, Broken> {
    made(site, ["--name", CHORE], tid_of)
}

/// The whole log, in its order.
pub(crate) fn events(site: &Site) -> Result<Vec<TaskEvent>, Broken> {
    let log = ask(site, &["queue", "peek", "raddle.tasks.log", "--all"])?;
    log.lines()
        .map(|line| {
            serde_json::from_str(line)
                .map_err(|error| format!("the log has '{line}': {error}").into())
        })
        .collect()
}

/// The tasks that are stored under names that begin so, by the number of their batch.
pub(crate) fn stored(site: &Site, name: &str) -> Result<HashMap<usize, Vec<Tid>>, Broken> {
    let found = made(site, ["--name", &format!("{name}*")], |task| {
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

/// The tasks that were chained, with the attempts that did.
pub(crate) fn follow_ups(site: &Site) -> Result<Vec<FollowUp>, Broken> {
    made(site, ["--name", &format!("{CHAINED}*")], |task| {
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

/// What an attempt wrote to its standard output.
pub(crate) fn output(site: &Site, tid: Tid, attempt: u32) -> Result<String, Broken> {
    ask(
        site,
        &[
            "logs",
            &tid.to_string(),
            "--attempt",
            &attempt.to_string(),
            "--stdout",
        ],
    )
}
