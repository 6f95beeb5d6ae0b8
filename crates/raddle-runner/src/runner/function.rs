//! Running a function of this very program instead of a command, in a process that was forked for it (see `cradle.rs`). In a sandbox it
//! is the program anew: a fork would have the runner's memory, and with it the worker's environment.

use std::{
    ffi::c_char,
    fs::File,
    io::{self, Read},
    os::fd::FromRawFd,
};

use super::{FAULT, open_null, take};
use crate::{sys, title};

/// Calls the function of this name with an input. What it answers goes to the file, what it prints to standard output and error as always.
/// Returns the exit code of its process.
pub type FunctionCall = fn(name: &str, input: Vec<u8>, reply: File) -> i32;

/// The descriptor of the answer, in the function's process.
const REPLY: i32 = 3;

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// Calls a function in a process that was started for it, in a sandbox: with its input on standard input, and nothing in its memory of
/// whoever has started it. Returns the exit code.
pub(super) fn main(call: Option<FunctionCall>, name: &str) -> i32 {
    match (call, prepare()) {
        (Some(call), Ok((input, reply))) => call(name, input, reply),
        (None, _) => {
            super::complain(format_args!(
                "this program has no functions that tasks could run"
            ));
            FAULT
        }
        (_, Err(error)) => {
            super::complain(format_args!(
                "cannot run a function, which only a sandbox can start: {error}"
            ));
            FAULT
        }
    }
}

/// The input and the answer. Standard input is empty after that.
fn prepare() -> io::Result<(Vec<u8>, File)> {
    let null = open_null()?;
    // What the function starts must not be able to answer for it.
    let reply = take(REPLY, &null)?;
    let mut input = Vec::new();
    File::from(take(0, &null)?).read_to_end(&mut input)?;
    Ok((input, reply.into()))
}

/// Calls the function in a process that was forked for it and set up. Returns the exit code.
pub(super) fn call(
    envp: &'static [*const c_char],
    call: FunctionCall,
    name: &str,
    input: Vec<u8>,
) -> i32 {
    sys::close_from(REPLY + 1);
    // As every Rust program has it: to write to a closed pipe is an error, and not the end.
    sys::ignore(libc::SIGPIPE);
    // SAFETY: there is one thread, and the variables live as long as the process. The answer's descriptor was put in place by `set_up`, and nothing else
    // owns it.
    let reply = unsafe {
        environ = envp.as_ptr();
        File::from_raw_fd(REPLY)
    };
    title::set(name);
    call(name, input, reply)
}
