//! `exec-with-parent PARENT PROGRAM ARGS…`: requests `SIGKILL` for the death of the parent
//! (`PR_SET_PDEATHSIG`), then executes the program.
//!
//! It ends the processes of a campaign that is itself killed. The request comes after exec, because
//! a `pre_exec` hook would move `Command` from `posix_spawn` to fork and exec.

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
        eprintln!("usage: exec-with-parent PARENT PROGRAM ARGS…");
        return ExitCode::from(2);
    };
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if parent_id() != parent {
        // The parent died before the request took effect.
        return ExitCode::from(137);
    }
    let error = Command::new(&program).args(args).exec();
    eprintln!("cannot start {}: {error}", program.display());
    ExitCode::from(127)
}
