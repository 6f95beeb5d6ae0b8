//! One step of a chore: a command under a heading, with its time.

use std::{
    env,
    io::{self, BufRead, BufReader, IsTerminal, Read, Write},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::install;

/// How a step went.
pub(crate) struct Outcome {
    /// Whether the command succeeded.
    pub(crate) ok: bool,
    /// What it wrote to both of its streams.
    pub(crate) output: String,
    /// How long it took.
    pub(crate) took: Duration,
}

/// A cargo command, by the cargo that runs this.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    // What is built once for a run, and not again after a change, need not be built for that; nor does anybody look at it with a debugger. A panic says
    // where it is all the same.
    if install::is_ci() {
        command
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "0");
    }
    // Its output goes through a pipe; where a person reads the far end, it may still have colours.
    if io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    command
}

/// Runs a command under a heading. Its output is passed on as it comes, and kept.
pub(crate) fn run(name: &str, mut command: Command) -> Outcome {
    println!("\n==> {name}");
    let begun = Instant::now();
    let (ok, output) = match pass_on(&mut command) {
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
    Outcome { ok, output, took }
}

fn pass_on(command: &mut Command) -> io::Result<(bool, String)> {
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

/// Copies lines from one to the other and returns them all. Bytes that are no text are shown as they are.
fn tee(from: impl Read, mut to: impl Write) -> String {
    let mut from = BufReader::new(from);
    let mut all = String::new();
    let mut line = Vec::new();
    while matches!(from.read_until(b'\n', &mut line), Ok(1..)) {
        // A closed pipe at the far end must not stop the tests: they would be counted as failed.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        all.push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
    all
}
