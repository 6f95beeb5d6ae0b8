//! The Python interpreter for hosts of the Python package.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::{
    args::Global,
    error::{Failure, Outcome},
};

/// The variable that names the interpreter if there is none beside the program.
const PYTHON: &str = "RADDLE_PYTHON";
/// The exit code if an import has killed the interpreter.
const CHECK_FAILED: u8 = 1;

/// The command of the host of an app, `MODULE:APP`.
pub(crate) fn host_command(app: &str, reload: bool) -> Vec<String> {
    let interpreter = interpreter().to_string_lossy().into_owned();
    // Unbuffered: what an app prints is in the log when it has printed it.
    [&interpreter, "-u", "-m", "raddle.host", app]
        .into_iter()
        .chain(reload.then_some("--reload"))
        .map(str::to_owned)
        .collect()
}

/// The groups that an app declares, as the text of a `raddle.toml`.
pub(crate) fn groups(app: &str) -> Result<String, String> {
    let interpreter = interpreter();
    let printed = Command::new(&interpreter)
        .args(["-m", "raddle.groups", app])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{} does not start: {error}", interpreter.display()))?;
    if !printed.status.success() {
        return Err(String::from_utf8_lossy(&printed.stderr).trim().to_owned());
    }
    String::from_utf8(printed.stdout).map_err(|error| error.to_string())
}

/// Checks an app. The interpreter prints what it finds.
pub(crate) fn check(global: &Global, app: &str) -> Outcome {
    let interpreter = interpreter();
    let ended = Command::new(&interpreter)
        .args(["-m", "raddle.check", app])
        .args(global.json.then_some("--json"))
        .stdin(Stdio::null())
        .status()
        .map_err(|error| {
            let named = interpreter.display();
            Failure::Usage(format!(
                "{named} does not start: {error}; name a Python with {PYTHON}"
            ))
        })?;
    Ok(ended.code().map_or(CHECK_FAILED, |code| code as u8))
}

/// The interpreter beside this program, which is how a virtual environment has both; otherwise the
/// one that the variable names, or `python3`.
pub(crate) fn interpreter() -> PathBuf {
    let beside = env::current_exe()
        .ok()
        .map(|program| program.with_file_name("python"))
        .filter(|python| python.is_file());
    let named = || env::var_os(PYTHON).filter(|python| !python.is_empty());
    beside
        .or_else(|| named().map(PathBuf::from))
        .unwrap_or_else(|| "python3".into())
}
