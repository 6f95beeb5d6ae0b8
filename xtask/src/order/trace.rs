//! A program and all that it forks, stopped at the first call of each function.

use std::{
    collections::HashSet,
    env,
    fs::File,
    io,
    os::unix::{
        fs::FileExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Command, ExitStatus, Stdio},
    ptr,
};

/// What a processor stops at.
const BREAK: u8 = 0xcc;

/// The addresses of `entries` that were called, in that order, until the program and its processes are over. Programs that they start in turn are let go.
/// The program has to end well: else what it called tells of its failure.
pub(crate) fn called(program: &Path, args: &[&str], folder: &Path, entries: &[u64]) -> io::Result<Vec<u64>> {
    let mut command = Command::new(program);
    // With its user's settings it might do this elsewhere, and otherwise.
    command.args(args).current_dir(folder).env_clear().envs(env::var_os("PATH").map(|path| ("PATH", path)));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // SAFETY: what runs between fork and exec is one system call.
    #[expect(clippy::disallowed_methods, reason = "nothing is measured, and who is traced has to say so")]
    unsafe {
        command.pre_exec(|| ptrace(libc::PTRACE_TRACEME, 0, 0, 0).map(drop));
    }
    let mut traced = Traced { started: command.spawn()?.id() as libc::pid_t, all: HashSet::new() };
    traced.all.insert(traced.started);
    traced.follow(entries)
}

/// What is being traced. Nobody of it is left when this is dropped.
struct Traced {
    started: libc::pid_t,
    all: HashSet<libc::pid_t>,
}

impl Traced {
    fn follow(&mut self, entries: &[u64]) -> io::Result<Vec<u64>> {
        // It stands at its exec.
        wait(self.started)?;
        let options = libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEEXEC
            | libc::PTRACE_O_EXITKILL;
        ptrace(libc::PTRACE_SETOPTIONS, self.started, 0, options as u64)?;
        let traps = Traps::lay(self.started, entries)?;
        ptrace(libc::PTRACE_CONT, self.started, 0, 0)?;
        let (mut called, mut end) = (Vec::new(), None);
        while !self.all.is_empty() {
            let (process, status) = wait(-1)?;
            if libc::WIFSTOPPED(status) {
                self.all.insert(process);
                gone_meanwhile(self.stopped(process, status, &traps, &mut called))?;
            } else {
                self.all.remove(&process);
                end = end.or((process == self.started).then(|| ExitStatus::from_raw(status)));
            }
        }
        match end {
            Some(end) if end.success() => Ok(called),
            Some(end) => Err(io::Error::other(format!("what was traced ended with {end}"))),
            None => Err(io::Error::other("what was traced has become another program")),
        }
    }

    fn stopped(
        &mut self,
        process: libc::pid_t,
        status: i32,
        traps: &Traps<'_>,
        called: &mut Vec<u64>,
    ) -> io::Result<()> {
        let pass_on = match libc::WSTOPSIG(status) {
            libc::SIGTRAP if status >> 16 == libc::PTRACE_EVENT_EXEC => {
                self.all.remove(&process);
                return ptrace(libc::PTRACE_DETACH, process, 0, 0).map(drop);
            }
            libc::SIGTRAP => {
                if status >> 16 == 0 {
                    called.extend(traps.spring(process)?);
                }
                0
            }
            // A process that was just forked.
            libc::SIGSTOP => 0,
            other => other,
        };
        ptrace(libc::PTRACE_CONT, process, 0, pass_on as u64).map(drop)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        for process in self.all.drain() {
            // SAFETY: kill has no memory effects, and the number is that of a process that nobody has waited for.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
        // In whatever order they end: a process is not told of before its threads are.
        while wait(-1).is_ok() {}
    }
}

/// Where a program stops, and what stood there.
struct Traps<'a> {
    entries: &'a [u64],
    instructions: Vec<u8>,
}

impl<'a> Traps<'a> {
    /// Whoever is forked has them too.
    fn lay(process: libc::pid_t, entries: &'a [u64]) -> io::Result<Self> {
        let memory = memory(process)?;
        let mut instructions = vec![0; entries.len()];
        for (entry, instruction) in entries.iter().zip(&mut instructions) {
            memory.read_exact_at(std::slice::from_mut(instruction), *entry)?;
            memory.write_all_at(&[BREAK], *entry)?;
        }
        Ok(Self { entries, instructions })
    }

    /// Puts back what stood where a process has stopped, if that was at a trap, and has it go on from there.
    fn spring(&self, process: libc::pid_t) -> io::Result<Option<u64>> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETREGS, process, 0, ptr::from_mut(&mut registers).expose_provenance() as u64)?;
        let Ok(at) = self.entries.binary_search(&(registers.rip - 1)) else { return Ok(None) };
        registers.rip -= 1;
        memory(process)?.write_all_at(&self.instructions[at..=at], registers.rip)?;
        ptrace(libc::PTRACE_SETREGS, process, 0, ptr::from_ref(&registers).expose_provenance() as u64)?;
        Ok(Some(registers.rip))
    }
}

fn memory(process: libc::pid_t) -> io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/{process}/mem"))
}

fn wait(process: libc::pid_t) -> io::Result<(libc::pid_t, i32)> {
    let mut status = 0;
    // SAFETY: the status is this function's own.
    match unsafe { libc::waitpid(process, &raw mut status, libc::__WALL) } {
        -1 => Err(io::Error::last_os_error()),
        process => Ok((process, status)),
    }
}

fn ptrace(request: libc::c_uint, process: libc::pid_t, address: u64, data: u64) -> io::Result<i64> {
    // SAFETY: addresses that are given are of what the caller holds.
    match unsafe { libc::ptrace(request, process, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

/// A process may be killed while it stands. Its end is told like any other.
fn gone_meanwhile(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WriteZero => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn marked() -> usize {
        std::hint::black_box(1)
    }

    #[inline(never)]
    fn unmarked() -> usize {
        std::hint::black_box(2)
    }

    /// What the test below traces.
    #[test]
    fn helper() {
        assert_eq!(marked() + marked(), 2);
    }

    /// Tests are linked for one place, as the program is.
    #[test]
    fn what_is_called_is_told_once_and_a_failure_is_one() {
        let mut entries = [marked, unmarked].map(|function| function as *const () as u64);
        entries.sort_unstable();
        let program = env::current_exe().unwrap();
        let trace = |test: &str| called(&program, &["--exact", test], Path::new("/"), &entries);
        assert_eq!(trace("trace::tests::helper").unwrap(), [marked as *const () as u64], "is it linked for one place?");
        assert_eq!(trace("trace::tests::none").unwrap(), [0; 0]);
        let failed = called(&program, &["--no-such-option"], Path::new("/"), &entries).unwrap_err();
        assert!(failed.to_string().contains("exit status"), "{failed}");
        assert_eq!(wait(-1).unwrap_err().raw_os_error(), Some(libc::ECHILD), "nobody is left");
    }
}
