//! The program `raddle`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // A runner is this same program under another name; it must not pay for anything below.
    raddle_exec::runner_main_if_asked(None);
    // A worker of a pool, too. It has no routines of its own, and answers about its health and the order to stop as any other does.
    #[cfg(feature = "pool")]
    raddle_pool::serve::main_if_asked(env!("CARGO_PKG_VERSION"));
    raddle_cli::run().into()
}
