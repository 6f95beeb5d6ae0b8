//! Calls a function of this program, in a process that was forked for it (see `fork_server.rs`). In
//! a sandbox the process is this program started again instead: a fork would hold the runner's
//! memory, and with it the worker's environment.

use std::{
    ffi::c_char,
    fs::File,
    io::{self, Read},
    os::fd::FromRawFd,
};

use super::{FAULT, open_null, take_descriptor};
use crate::{sys, title};

/// Calls the function with this name. The reply goes to the file; what the function prints goes to
/// standard output and error. Returns the exit code of the process.
pub type FunctionCall = fn(name: &str, input: Vec<u8>, reply: File) -> i32;

/// Descriptor of the reply channel in the function's process.
const REPLY: i32 = 3;

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// Main function of a process that calls a function in a sandbox. The input comes on standard
/// input; the memory holds nothing of the parent. Returns the exit code.
pub(super) fn main(call: Option<FunctionCall>, name: &str) -> i32 {
    match (call, prepare()) {
        (Some(call), Ok((input, reply))) => call(name, input, reply),
        (None, _) => {
            super::print_error(format_args!(
                "this program has no functions that tasks can run"
            ));
            FAULT
        }
        (_, Err(error)) => {
            super::print_error(format_args!(
                "cannot run a function, which only a sandbox can start: {error}"
            ));
            FAULT
        }
    }
}

/// Returns the input and the reply channel. Standard input is `/dev/null` afterwards.
fn prepare() -> io::Result<(Vec<u8>, File)> {
    let null = open_null()?;
    // Child processes of the function must not inherit the reply channel.
    let reply = take_descriptor(REPLY, &null)?;
    let mut input = Vec::new();
    File::from(take_descriptor(0, &null)?).read_to_end(&mut input)?;
    Ok((input, reply.into()))
}

/// Calls the function in a process that was forked and set up for it. Returns the exit code.
pub(super) fn call(
    envp: &'static [*const c_char],
    call: FunctionCall,
    name: &str,
    input: Vec<u8>,
) -> i32 {
    sys::close_from(REPLY + 1);
    // As in every Rust program: a write to a closed pipe is an error and does not end the process.
    sys::ignore(libc::SIGPIPE);
    // SAFETY: there is one thread, and the variables live as long as the process. `set_up` put the
    // reply channel at this descriptor, and nothing else owns it.
    let reply = unsafe {
        environ = envp.as_ptr();
        File::from_raw_fd(REPLY)
    };
    title::set(name);
    call(name, input, reply)
}
