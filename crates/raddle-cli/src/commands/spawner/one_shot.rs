//! Arguments and environment of a one-shot worker in a container or pod.

use std::{fs, io, path::Path};

use raddle_spawner::{Config, WARM_VARIABLE, worker_args};

use crate::args::{Global, StartArgs};

/// The value of `WARM_VARIABLE` that means that the spawner reads standard output.
#[cfg(feature = "docker")]
pub(super) const TO_STDOUT: &str = "1";
const LOG: &str = "RADDLE_LOG";
/// The largest file to pass to an engine or cluster.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The arguments of the program in the image. None is secret: every user of the machine can read
/// them.
pub(super) fn program_args(global: &Global, start: &StartArgs) -> Vec<String> {
    let mut words = worker_args(&start.name, &start.queues).to_vec();
    let mut push = |more: &[&str]| words.extend(more.iter().map(ToString::to_string));
    push(&["--log-format", start.log.log_format.as_str()]);
    if let Some(directory) = &start.handlers {
        push(&["--handlers", &directory.to_string_lossy()]);
    }
    // The spawner reports the end of its workers.
    match global.verbose {
        0 => push(&["--quiet"]),
        times => (0..times).for_each(|_| push(&["--verbose"])),
    }
    words
}

/// The environment of the worker, without the queue URL. `receiver` is where its spawner reads.
pub(super) fn worker_env(
    start: &StartArgs,
    config: &Config,
    receiver: &str,
) -> Vec<(String, String)> {
    let mut env = vec![
        ("WORKER_CONCURRENCY".to_owned(), "1".to_owned()),
        ("WORKER_ONCE".to_owned(), "true".to_owned()),
        (
            "WORKER_IDLE_EXIT".to_owned(),
            config.idle_timeout.0.as_secs_f64().to_string(),
        ),
        (WARM_VARIABLE.to_owned(), receiver.to_owned()),
    ];
    if let Some(uptime) = config.max_uptime {
        env.push((
            "WORKER_MAX_UPTIME".to_owned(),
            uptime.0.as_secs_f64().to_string(),
        ));
    }
    if !config.caps.is_empty() {
        env.push(("WORKER_CAPS".to_owned(), config.caps.to_string()));
    }
    if let Some(plugins) = &start.plugins {
        env.push(("WORKER_PLUGINS".to_owned(), plugins.join(",")));
    }
    if let Some(isolation) = start.min_isolation {
        env.push((
            "WORKER_MIN_ISOLATION".to_owned(),
            isolation.as_str().to_owned(),
        ));
    }
    env.extend(
        std::env::var(LOG)
            .ok()
            .map(|filter| (LOG.to_owned(), filter)),
    );
    env
}

/// Reads a small file. `what` describes it in errors.
pub(super) fn read_short(path: &Path, what: &str) -> io::Result<String> {
    let found = fs::metadata(path)?;
    if !found.is_file() || found.len() > MAX_FILE_BYTES {
        return Err(io::Error::other(format!(
            "it is not a file, or too large for {what}"
        )));
    }
    fs::read_to_string(path)
}
