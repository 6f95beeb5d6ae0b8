//! Starts workers and managers in the background.
//!
//! The background process is this program again, with the same arguments in the same directory. It
//! writes its id to stdout, a pipe to the parent, and then switches to its log. The parent succeeds
//! only after it has read the id.

use std::{
    env,
    ffi::OsString,
    fs::{File, OpenOptions, Permissions},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use raddle_broker_connect::BrokerUrl;
use raddle_model::Tid;
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use super::start::QUEUE_URL;
use crate::{
    context::Context,
    error::{Failure, OrFail, Outcome, USAGE},
    output,
};

/// This program.
pub(super) const PROGRAM: &str = "/proc/self/exe";
/// Marks the background process. Workers remove variables with this prefix from the environment of
/// tasks.
const DETACHED: &str = "RADDLE_INTERNAL_DETACHED";
/// How long the background process may take to write its id.
const START_WITHIN: Duration = Duration::from_secs(10);
/// Readable only by its owner: the log may contain commands.
const LOG_MODE: u32 = 0o600;

/// Whether this process was started in the background.
pub(crate) fn is_background() -> bool {
    env::var_os(DETACHED).is_some()
}

/// Starts this program in the background, as a worker or manager, and prints its id.
pub(super) async fn detach(context: &Context, what: &str, serve: Option<&Path>) -> Outcome {
    let (line, pid) = start_background(context, what).await?;
    let Ok(tid) = line.parse() else {
        return Err(Failure::Raddle(format!(
            "the {what} wrote '{line}' instead of its id: see 'raddle doctor'"
        )));
    };
    context.show(
        &start_record(tid, pid, log_path(context, tid), serve),
        || format!("{tid}\n"),
    )
}

/// Starts this program in the background. Returns the line that it wrote once it had started, and
/// its process id.
pub(super) async fn start_background(
    context: &Context,
    what: &str,
) -> Outcome<(String, Option<u32>)> {
    // Inherited descriptors would keep locks and pipes of other processes open.
    raddle_runner::close_on_exec();
    // Every user can read the arguments until the process sets its title, so a password goes into
    // the environment.
    let secret = context.project.url.secret();
    let args = env::args_os().skip(1);
    let args = if secret.is_some() {
        without_queue_url(args)
    } else {
        args.collect()
    };
    // The link in /proc is valid even after the file of the program was replaced.
    let mut child = Command::new(PROGRAM)
        .arg0("raddle")
        .args(args)
        .envs(secret.map(|url| (QUEUE_URL, url)))
        .env(DETACHED, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .or_raddle_at(format_args!("cannot start a process for the {what}"))?;
    let pid = child.id();
    let mut line = String::new();
    let stdout = child.stdout.take().expect("stdout is piped");
    if timeout(START_WITHIN, BufReader::new(stdout).read_line(&mut line))
        .await
        .is_err()
    {
        // If it holds tasks, they are reclaimed.
        let _ = child.start_kill();
        let (secs, stderr) = (START_WITHIN.as_secs(), exit_and_stderr(child).await.1);
        let why = if stderr.is_empty() {
            "see 'raddle doctor'"
        } else {
            &stderr
        };
        return Err(Failure::Raddle(format!(
            "the {what} did not start within {secs} s: {why}"
        )));
    }
    match line.trim() {
        "" => Err(start_failure(child, what).await),
        line => Ok((line.to_owned(), pid)),
    }
}

/// The arguments without `--queue-url`.
fn without_queue_url(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut is_value = false;
    let keeps = |arg: &OsString| {
        let is_flag = arg == "--queue-url";
        let drops = is_flag || is_value || arg.as_encoded_bytes().starts_with(b"--queue-url=");
        is_value = is_flag;
        !drops
    };
    args.filter(keeps).collect()
}

/// The exit code of a background process, and its stderr.
async fn exit_and_stderr(child: Child) -> (Option<i32>, String) {
    match child.wait_with_output().await {
        Ok(ended) => (
            ended.status.code(),
            String::from_utf8_lossy(&ended.stderr).trim().to_owned(),
        ),
        Err(_) => (None, String::new()),
    }
}

/// The error of a background process that did not start.
async fn start_failure(child: Child, what: &str) -> Failure {
    let (code, text) = exit_and_stderr(child).await;
    let message = match text.strip_prefix("raddle: ").unwrap_or(&text) {
        "" => format!("the {what} exited before it had started"),
        message => message.to_owned(),
    };
    if code == Some(USAGE.into()) {
        Failure::Usage(message)
    } else {
        Failure::Raddle(message)
    }
}

/// Writes the id, and in the background switches to the log.
pub(super) fn announce(
    context: &Context,
    tid: Tid,
    serve: Option<&Path>,
    metrics: Option<&str>,
) -> Outcome<()> {
    let note = || {
        if let Some(url) = metrics {
            context.note(format!("metrics are at {url}"));
        }
    };
    if !is_background() {
        if context.json {
            let mut started = start_record(tid, Some(std::process::id()), None, serve);
            if let Some(url) = metrics {
                started["metrics"] = url.into();
            }
            return output::print_json(&started);
        }
        note();
        return output::print_line(tid.to_string());
    }
    let path = log_path(context, tid).unwrap_or_else(|| "/dev/null".into());
    redirect_to_log(&path, &tid.to_string())?;
    note();
    Ok(())
}

/// Writes the line that the parent waits for, and switches to the log.
pub(super) fn redirect_to_log(path: &Path, line: &str) -> Outcome<()> {
    let cannot = format!("cannot write the log {}", path.display());
    // Opened before the line is written: a process that cannot write its log has not started.
    let log: File = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(LOG_MODE)
        .open(path)
        .or_raddle_at(&cannot)?;
    if log
        .metadata()
        .is_ok_and(|found| found.is_file() && found.mode() & 0o777 != LOG_MODE)
    {
        // The umask affects the mode at creation.
        log.set_permissions(Permissions::from_mode(LOG_MODE))
            .or_raddle_at(&cannot)?;
    }
    output::print_line(line)?;
    rustix::stdio::dup2_stdout(&log).or_raddle_at(&cannot)?;
    rustix::stdio::dup2_stderr(&log).or_raddle_at(&cannot)?;
    Ok(())
}

/// The JSON output for a started worker.
fn start_record(
    tid: Tid,
    pid: Option<u32>,
    log: Option<PathBuf>,
    serve: Option<&Path>,
) -> serde_json::Value {
    let mut started = json!({ "tid": tid, "pid": pid, "log": log });
    if let Some(path) = serve {
        started["serves"] = BrokerUrl::Unix(path.into()).to_string().into();
    }
    started
}

/// The log of a background worker, if the project has a directory for it.
fn log_path(context: &Context, tid: Tid) -> Option<PathBuf> {
    Some(
        context
            .project
            .raddle_dir()?
            .join(format!("worker-{tid}.log")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_the_queue_url_in_both_spellings() {
        let args = [
            "worker",
            "--queue-url",
            "redis://:s@h",
            "start",
            "--queue-url=redis://:s@h",
            "--name",
            "a",
        ];
        let left = without_queue_url(args.into_iter().map(OsString::from));
        assert_eq!(left, ["worker", "start", "--name", "a"]);
    }
}
