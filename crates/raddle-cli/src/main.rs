//! The command line of Raddle: arguments in, library calls, text or JSON out. What a task is, where it is kept and how it is run is
//! decided in the libraries; here it is asked for and shown.

mod args;
mod commands;
mod context;
mod error;
mod follow;
mod format;
mod logging;
mod output;
mod progress;
mod project;
mod result;
mod spec;
mod table;
mod tid;
mod worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    // A runner is this same program under another name; it must not pay for anything below.
    raddle_exec::runner_main_if_asked();
    raddle_exec::title::init();
    let cli = match args::Cli::read() {
        Ok(cli) => cli,
        Err(error) => {
            // Help goes to stdout and may meet a closed pipe, which is not an error.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(error::USAGE));
        }
    };
    match commands::execute(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.code())
        }
    }
}
