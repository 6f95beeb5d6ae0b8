//! The program `raddle`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // A runner is this program under another name; it must not pay for anything below.
    raddle_runner::runner_main_if_requested(None);
    // So is a pool worker. It has no routines, and answers health checks and stop requests.
    #[cfg(feature = "pool")]
    raddle_rpc::serve::main_if_asked(env!("CARGO_PKG_VERSION"));
    raddle_cli::run().into()
}
