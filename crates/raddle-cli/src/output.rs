//! Writes data to stdout, and everything else to stderr.
//!
//! `println!` panics on a closed pipe; these functions end the command quietly.

use std::io::{self, IsTerminal, Write};

use raddle_broker::OutputStream;
use serde::Serialize;

use crate::error::{Failure, Outcome};

/// The width of stdout, if it is a terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok()?;
    Some(size.ws_col.into()).filter(|columns| *columns > 0)
}

/// Whether stdout shows colours: a terminal that supports them, unless `NO_COLOR` is set
/// (<https://no-color.org>).
pub(crate) fn shows_colours() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !is_dumb && !is_set("NO_COLOR")
}

/// Writes one line of data.
pub(crate) fn print_line(text: impl AsRef<str>) -> Outcome<()> {
    let mut line = text.as_ref().to_owned();
    line.push('\n');
    print_raw(line.as_bytes())
}

/// Writes a value as one line of JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Outcome<()> {
    let text =
        serde_json::to_string(value).expect("printed values have string keys and finite numbers");
    print_line(text)
}

/// Writes data as it is.
pub(crate) fn print_raw(bytes: &[u8]) -> Outcome<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(|e| Failure::from_write_error(&e))
}

/// Forwards a task's output to stdout or stderr.
pub(crate) fn forward(stream: OutputStream, bytes: &[u8]) -> Outcome<()> {
    match stream {
        OutputStream::Stdout => print_raw(bytes),
        OutputStream::Stderr => {
            // A closed stderr is not an error: the task goes on for its stdout.
            let _ = io::stderr().lock().write_all(bytes);
            Ok(())
        }
    }
}

/// Writes a value as one line of JSON to stderr.
pub(crate) fn eprint_json(value: &impl Serialize) {
    let text =
        serde_json::to_string(value).expect("printed values have string keys and finite numbers");
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Prints an error to stderr.
pub(crate) fn eprint(message: &str) {
    // Names come from specs and command lines. Control characters in them could move the cursor.
    if let Some(line) = crate::logging::json_line(message) {
        let _ = writeln!(io::stderr().lock(), "{line}");
        return;
    }
    let replace_control = |c: char| {
        if c.is_control() && c != '\n' {
            '\u{fffd}'
        } else {
            c
        }
    };
    let _ = writeln!(
        io::stderr().lock(),
        "raddle: {}",
        message.chars().map(replace_control).collect::<String>()
    );
}
