//! Workers and managers in the background.
//!
//! The background process is this program again, in the foreground mode. It says its id on its stdout, which is a pipe to us, and then
//! turns to its log; only when we have heard the id has it started.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions, Permissions},
    io::{BufRead, BufReader, Read},
    os::unix::{
        fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
        process::CommandExt,
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use raddle_broker::Url;
use raddle_core::Tid;
use serde_json::json;

use crate::{
    context::Context,
    error::{Failure, Outcome, USAGE},
    output,
};

/// How this program is told to be a worker or manager in the foreground.
pub(super) struct Invocation {
    pub(super) args: Vec<OsString>,
    pub(super) env: Vec<(OsString, OsString)>,
}

/// This very program.
pub(super) const PROGRAM: &str = "/proc/self/exe";
/// Tells the background process that it is one. Commands never see variables that begin like this.
const DETACHED: &str = "RADDLE_INTERNAL_DETACHED";
/// How long the background process may take to say its id.
const START_WITHIN: Duration = Duration::from_secs(10);
/// The log is for its owner alone: commands may be named there.
const LOG_MODE: u32 = 0o600;

/// Says that a background process has started.
pub(super) fn tell_of(context: &Context, tid: Tid, pid: u32, serve: &Option<PathBuf>) -> Outcome {
    if context.json {
        output::json(&started(tid, pid, log_of(context, tid), serve))?;
    } else {
        output::line(tid.to_string())?;
    }
    Ok(0)
}

/// Starts this program in the background, as a worker or manager that says its id.
pub(super) fn detach(invocation: Invocation, what: &str) -> Outcome<(Tid, u32)> {
    let mut child = spawn(invocation, what)?;
    let pid = child.id();
    let heard = first_line(&mut child);
    match heard.recv_timeout(START_WITHIN) {
        Ok(Some(tid)) => Ok((tid, pid)),
        Ok(None) => Err(last_words(child, what)),
        Err(_) => {
            // It holds nothing that is not taken back from a worker that dies.
            let _ = child.kill();
            let _ = child.wait();
            let secs = START_WITHIN.as_secs();
            Err(Failure::Raddle(format!("the {what} did not start within {secs} s: see 'raddle doctor'")))
        }
    }
}

fn spawn(Invocation { args, env }: Invocation, what: &str) -> Outcome<Child> {
    // By its link in /proc: that is this very program, also when another has taken its place on the disk.
    let mut command = Command::new(PROGRAM);
    command.arg0("raddle").args(args).envs(env);
    // It outlives whoever has opened what this process has inherited, and would keep their locks and pipes.
    raddle_exec::close_on_exec();
    command
        .env(DETACHED, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::Raddle(format!("cannot start a process for the {what}: {e}")))
}

/// The id on the first line, or nothing if the process ended without one.
fn first_line(child: &mut Child) -> mpsc::Receiver<Option<Tid>> {
    let (tell, heard) = mpsc::sync_channel(1);
    let stdout = child.stdout.take();
    // Left behind when time runs out: this process ends soon after.
    thread::spawn(move || {
        let mut line = String::new();
        if let Some(stdout) = stdout {
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let _ = tell.send(line.trim().parse().ok());
    });
    heard
}

/// What a background process that could not start had to say.
fn last_words(mut child: Child, what: &str) -> Failure {
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut text);
    }
    let code = child.wait().ok().and_then(|status| status.code());
    let text = text.trim();
    let message = text.strip_prefix("raddle: ").unwrap_or(text);
    let silence = format!("the {what} ended before it had started");
    let message = if message.is_empty() { silence } else { message.to_owned() };
    if code == Some(USAGE.into()) { Failure::Usage(message) } else { Failure::Raddle(message) }
}

/// Whether this process was started in the background. Then it is in a session of its own from now on.
pub(super) fn leave_session() -> bool {
    let is_detached = std::env::var_os(DETACHED).is_some();
    if is_detached {
        // Already the leader of a session: then there is nothing to leave.
        let _ = raddle_exec::setsid_self();
    }
    is_detached
}

/// Says the id, and turns to the log where nobody will be reading.
pub(super) fn announce(
    context: &Context,
    tid: Tid,
    is_detached: bool,
    serve: &Option<PathBuf>,
    metrics: Option<&str>,
) -> Outcome<()> {
    let note = || {
        if let Some(url) = metrics {
            context.note(format!("metrics are at {url}"));
        }
    };
    if !is_detached {
        if context.json {
            let mut started = started(tid, std::process::id(), None, serve);
            if let Some(url) = metrics {
                started["metrics"] = url.into();
            }
            return output::json(&started);
        }
        note();
        return output::line(tid.to_string());
    }
    let path = log_of(context, tid).unwrap_or_else(|| "/dev/null".into());
    let cannot = |e: std::io::Error| Failure::Raddle(format!("cannot write the log {}: {e}", path.display()));
    // Opened before the id is said: a worker whose log cannot be written has not started.
    let log: File = OpenOptions::new().append(true).create(true).mode(LOG_MODE).open(&path).map_err(cannot)?;
    if log.metadata().is_ok_and(|found| found.is_file() && found.mode() & 0o777 != LOG_MODE) {
        // The umask has a say in what it is made with.
        log.set_permissions(Permissions::from_mode(LOG_MODE)).map_err(cannot)?;
    }
    output::line(tid.to_string())?;
    rustix::stdio::dup2_stdout(&log).map_err(|e| cannot(e.into()))?;
    rustix::stdio::dup2_stderr(&log).map_err(|e| cannot(e.into()))?;
    note();
    Ok(())
}

/// What JSON says of a worker that has started.
fn started(tid: Tid, pid: u32, log: Option<PathBuf>, serve: &Option<PathBuf>) -> serde_json::Value {
    let mut started = json!({ "tid": tid, "pid": pid, "log": log });
    if let Some(path) = serve {
        started["serves"] = Url::Unix(path.clone()).to_string().into();
    }
    started
}

/// Where a background worker logs to, if the project has a folder for it.
fn log_of(context: &Context, tid: Tid) -> Option<PathBuf> {
    Some(context.project.folder()?.join(format!("worker-{tid}.log")))
}
