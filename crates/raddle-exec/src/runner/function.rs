//! Running a function of this very program instead of a command, in a process that was forked for it (see `cradle.rs`). In a sandbox it
//! is the program anew: a fork would have the runner's memory, and with it the worker's environment.

use std::{
    ffi::c_char,
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, FromRawFd, OwnedFd},
};

use super::{FAULT, child::Plan};
use crate::{frame::MAX_STDIN, sys, title};

/// Calls the function of this name with an input. What it answers goes to the file, what it prints to standard output and error as always.
/// Returns the exit code of its process.
pub type Call = fn(name: &str, input: Vec<u8>, reply: File) -> i32;

/// The descriptor of the answer, in the function's process.
const REPLY: i32 = 3;

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// Calls a function in a process that was started for it, in a sandbox: with its input on standard input, and nothing in its memory of
/// whoever has started it. Returns the exit code.
pub(super) fn main(call: Option<Call>, name: &str) -> i32 {
    match (call, prepare()) {
        (Some(call), Ok((input, reply))) => call(name, input, reply),
        (None, _) => {
            super::complain(format_args!("this program has no functions that tasks could run"));
            FAULT
        }
        (_, Err(error)) => {
            super::complain(format_args!("cannot run a function, which only a sandbox can start: {error}"));
            FAULT
        }
    }
}

/// The input and the answer. Standard input is empty after that.
fn prepare() -> io::Result<(Vec<u8>, File)> {
    // SAFETY: asks whether it is open.
    sys::check(unsafe { libc::fcntl(REPLY, libc::F_GETFD) })?;
    let mut input = Vec::new();
    io::stdin().lock().take(MAX_STDIN as u64 + 1).read_to_end(&mut input)?;
    let null = File::open("/dev/null")?;
    sys::dup_onto(null.as_fd(), 0)?;
    // SAFETY: it was put there for this, and nobody else in this process knows of it.
    let reply = unsafe { OwnedFd::from_raw_fd(REPLY) };
    // What the function starts shall not be able to answer for it.
    Ok((input, File::from(sys::dup_above(reply.as_fd(), REPLY)?)))
}

/// Calls the function in a process that was made what the plan says. Returns the exit code.
pub(super) fn call(plan: &Plan<'_>, call: Call, name: &str, input: Vec<u8>) -> i32 {
    // SAFETY: one thread. The plan and its variables live as long as this process, which never returns from here. What is closed
    // belongs to the runner's part of the program, of which nothing runs any more; the answer's descriptor was put in place by `set_up` and
    // is owned by nobody else.
    let reply = unsafe {
        environ = plan.envp.as_ptr();
        libc::syscall(libc::SYS_close_range, REPLY + 1, u32::MAX, 0);
        // As every Rust program has it: to write to a closed pipe is an error, and not the end.
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        File::from_raw_fd(REPLY)
    };
    title::set(name);
    call(name, input, reply)
}
