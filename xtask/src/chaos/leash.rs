//! `leash PARENT PROGRAM ARGS…`: becomes the program, which dies when its parent does.
//!
//! If the campaign itself is killed, nobody is left to end what it started. Its children ask the kernel for that. They do so here, after
//! exec, because asking before it would put spawning on the slow path.

use std::{
    ffi::OsString,
    os::unix::process::{CommandExt, parent_id},
    process::{Command, ExitCode},
};

pub(crate) fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = args
        .next()
        .and_then(|parent| parent.to_str()?.parse::<u32>().ok());
    let (Some(parent), Some(program)) = (parent, args.next()) else {
        eprintln!("usage: leash PARENT PROGRAM ARGS…");
        return ExitCode::from(2);
    };
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if parent_id() != parent {
        // It died before we could ask.
        return ExitCode::from(137);
    }
    let error = Command::new(&program).args(args).exec();
    eprintln!("cannot start {}: {error}", program.display());
    ExitCode::from(127)
}
