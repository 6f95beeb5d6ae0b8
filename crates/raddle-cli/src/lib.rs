//! The command line of Raddle: arguments in, library calls, text or JSON out. It must not contain
//! policy: the libraries decide what a task is, where it is stored and how it runs.
//!
//! It is a library so that a user's program can be its own worker: `myapp worker start` is this,
//! with the routines of `myapp`.

mod args;
mod commands;
mod context;
mod error;
mod file_trust;
mod follow;
mod format;
mod interrupt;
mod logging;
mod metrics;
mod output;
mod panic;
mod progress;
mod project;
mod python;
mod result;
mod select;
mod spec;
mod systemd;
mod table;
mod tid;
mod worker;

/// Whether a program that starts with this argument must call [`run`], although no user typed it.
pub fn is_internal(argument: &std::ffi::OsStr) -> bool {
    argument == raddle_container::task::SUPERVISOR_ARGUMENT
}

/// The commands and options, for the generators of the reference and of manual pages.
#[doc(hidden)]
pub fn command() -> clap::Command {
    use clap::CommandFactory;
    args::Cli::command()
}

/// Runs the command line of this process, and returns its exit code. Call it while the process has
/// one thread.
pub fn run() -> u8 {
    raddle_runner::unblock_signals();
    raddle_runner::title::init();
    #[cfg(feature = "docker")]
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == raddle_container::task::SUPERVISOR_ARGUMENT)
    {
        return raddle_container::task::container_supervisor_main();
    }
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && asks_for_json() => {
            let (code, text) = (
                u8::try_from(error.exit_code()).unwrap_or(error::USAGE),
                error.to_string(),
            );
            error::print_json(
                text.trim_start_matches("error: ")
                    .split("\n\n")
                    .next()
                    .unwrap_or_default()
                    .trim(),
                code,
            );
            return code;
        }
        Err(error) => {
            // Help goes to stdout and may hit a closed pipe, which is not an error.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(error::USAGE);
        }
    };
    let json = cli.global.json;
    match commands::execute(cli) {
        Ok(code) => code,
        Err(failure) => {
            failure.print(json);
            failure.exit_code()
        }
    }
}

/// Whether `--json` is among the arguments of a command line that does not parse. Arguments behind
/// `--` belong to the task.
fn asks_for_json() -> bool {
    std::env::args_os()
        .skip(1)
        .take_while(|word| word != "--")
        .any(|word| word == "--json")
}
