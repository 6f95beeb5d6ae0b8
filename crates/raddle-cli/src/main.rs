//! The program `raddle`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // A runner is this same program under another name; it must not pay for anything below.
    raddle_exec::runner_main_if_asked(None);
    ExitCode::from(raddle_cli::run(None))
}
