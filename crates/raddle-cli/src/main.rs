//! The program `raddle`.

// Before it calls `main`, the standard library makes ready to tell a stack that has overflowed from other faults: it reads the map of the process's memory, and
// maps more. That takes as long as a tenth of a process's life, and a runner and a `raddle run` live for no longer than that of another process. All
// else that it does there, `enter` does.
#![cfg_attr(target_env = "gnu", no_main)]

use std::process;

/// The C library calls it, as it would that of the standard library. Nothing may unwind into it: a panic aborts.
// SAFETY: there is no other function of this name, which the C library looks for.
#[cfg(target_env = "gnu")]
#[unsafe(no_mangle)]
extern "C" fn main() -> std::ffi::c_int {
    raddle_exec::enter();
    begin()
}

/// Other C libraries do not tell the standard library what the arguments are.
#[cfg(not(target_env = "gnu"))]
fn main() {
    begin()
}

fn begin() -> ! {
    // A runner is this same program under another name; it must not pay for anything below.
    raddle_exec::runner_main_if_asked(None);
    // A worker of a pool, too. It has no routines of its own, and answers about its health and the order to stop as any other does.
    #[cfg(feature = "pool")]
    raddle_pool::serve::main_if_asked();
    let code = raddle_cli::run(None);
    // Unlike a return to the C library, this writes what is left of a line on standard output.
    process::exit(code.into())
}
