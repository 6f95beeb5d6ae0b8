//! A step of a command: a child process under a heading, with its duration.

use std::{
    env,
    io::{self, BufRead, BufReader, IsTerminal, Read, Write},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::install;

/// The result of a step.
pub(crate) struct StepResult {
    /// Whether the command succeeded.
    pub(crate) ok: bool,
    /// The output of both of its streams.
    pub(crate) output: String,
    /// The duration.
    pub(crate) took: Duration,
}

/// A command of the same cargo that runs this program.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    // CI builds everything once: incremental data and debug information would cost time for no use.
    // Panics report their location all the same.
    if install::is_ci() {
        command
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "0");
    }
    // The output goes through a pipe; if the reader is a terminal, colours are wanted all the same.
    if io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    command
}

/// Runs a command under a heading. The output is passed on as it arrives, and kept.
pub(crate) fn run(name: &str, mut command: Command) -> StepResult {
    println!("\n==> {name}");
    let begun = Instant::now();
    let (ok, output) = match forward_output(&mut command) {
        Ok(ended) => ended,
        Err(error) => {
            eprintln!(
                "xtask: cannot run {}: {error}",
                command.get_program().display()
            );
            (false, String::new())
        }
    };
    let took = begun.elapsed();
    println!(
        "==> {name}: {} in {:.1} s",
        if ok { "ok" } else { "FAILED" },
        took.as_secs_f64()
    );
    StepResult { ok, output, took }
}

fn forward_output(command: &mut Command) -> io::Result<(bool, String)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let stderr = child.stderr.take().expect("stderr is piped");
    let (out, err) = thread::scope(|scope| {
        let out = scope.spawn(|| tee(stdout, io::stdout()));
        let err = tee(stderr, io::stderr());
        (out.join().expect("tee does not panic"), err)
    });
    Ok((child.wait()?.success(), out + &err))
}

/// Copies lines and returns them all. Invalid UTF-8 is passed on unchanged.
fn tee(from: impl Read, mut to: impl Write) -> String {
    let mut from = BufReader::new(from);
    let mut all = String::new();
    let mut line = Vec::new();
    while matches!(from.read_until(b'\n', &mut line), Ok(1..)) {
        // A closed pipe must not stop the tests, because they would be counted as failed.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        all.push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
    all
}
