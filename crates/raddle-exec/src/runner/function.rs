//! Running a function of this very program instead of a command: a plain fork of the runner, which has one thread and little memory.
//!
//! The child is as pristine as a new process, because the runner has done nothing before but wait, and it costs a fraction of one: nothing
//! is loaded, linked or initialised again.

use std::{
    ffi::c_char,
    fs::File,
    io::{self, Write},
    os::fd::FromRawFd,
    process,
};

use super::child::{Plan, Step, set_up};
use crate::{sys, title};

/// Calls the function of this name with an input. What it answers goes to the file, what it prints to standard output and error as always.
/// Returns the exit code of its process.
pub type Call = fn(name: &str, input: Vec<u8>, reply: File) -> i32;

/// The descriptor of the answer, in the function's process.
const REPLY: i32 = 3;
/// The exit code of a process that could not become what it was forked for.
const NOT_SET_UP: i32 = 125;

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// Forks a process that calls the function and exits; returns its pid.
pub(super) fn fork(plan: &Plan<'_>, call: Call, name: &str, input: Vec<u8>) -> Result<u32, (Step, io::Error)> {
    // SAFETY: getpid cannot fail.
    let parent = unsafe { libc::getpid() };
    // SAFETY: a runner has one thread, so the child is a whole process, heap and locks included. It never returns from here.
    match sys::check(unsafe { libc::fork() }) {
        Ok(0) => {
            // SAFETY: this is the child.
            let code = match unsafe { set_up(plan, parent) } {
                Ok(()) => become_function(plan, call, name, input),
                Err(step) => {
                    let error = io::Error::last_os_error();
                    let _ = writeln!(io::stderr(), "raddle: the process could not be set up ({step:?}): {error}");
                    NOT_SET_UP
                }
            };
            process::exit(code)
        }
        Ok(pid) => Ok(pid as u32),
        Err(error) => Err((Step::Clone, error)),
    }
}

fn become_function(plan: &Plan<'_>, call: Call, name: &str, input: Vec<u8>) -> i32 {
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
