//! Turns a request into the arguments of `execve`: the program's file, its arguments and its
//! environment, as C strings.
//!
//! The search for a program and the difference between "not found" and "not executable" follow the
//! shell. This module starts nothing.

use std::{
    collections::BTreeSet,
    ffi::{CStr, CString, OsStr, c_char},
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use raddle_model::ExitStatus;
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::{child::ChildStep, sandbox, settings};
use crate::{
    message::{ExecRequest, ExecTarget},
    sys,
};

/// Prefix of variables that a worker sets for its own processes. Commands do not see them.
const PRIVATE_PREFIX: &[u8] = b"RADDLE_INTERNAL_";
/// The running program, even if its file was replaced on disk.
const PROGRAM: &str = "/proc/self/exe";
/// argv[0] of a container supervisor, until it sets its title.
const CONTAINER_SUPERVISOR_NAME: &str = "raddle";
/// Search path of a shell without `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// An attempt that is ready to start.
pub(crate) struct PreparedAttempt {
    /// The executable of a command. `None` for a function, unless it runs in a sandbox.
    pub(crate) executable: Option<Executable>,
    pub(crate) cwd: Option<CString>,
    env: Vec<CString>,
}

/// File and arguments of a command.
pub(crate) struct Executable {
    pub(crate) path: CString,
    argv: Vec<CString>,
    /// The open file, if no path leads to it: this program, in a sandbox where it is not visible.
    opened: Option<OwnedFd>,
}

/// The environment that every command of this runner inherits.
pub(crate) fn inherited_environment() -> Vec<CString> {
    std::env::vars_os()
        .filter(|(key, _)| !key.as_bytes().starts_with(PRIVATE_PREFIX))
        .filter_map(|(key, value)| {
            CString::new([key.as_bytes(), b"=", value.as_bytes()].concat()).ok()
        })
        .collect()
}

impl Executable {
    /// Finds the program.
    fn find(
        argv: &[String],
        env: &[CString],
        cwd: Option<&str>,
        sandboxed: bool,
    ) -> Result<Self, ExitStatus> {
        let Some(name) = argv.first() else {
            return Err(failed("the command is empty: give a program to run"));
        };
        let argv = argv.iter().enumerate();
        let argv = argv
            .map(|(n, arg)| c_string(arg, || format!("argument {n}")))
            .collect::<Result<Vec<_>, _>>()?;
        let path = if name.contains('/') {
            argv[0].clone()
        } else {
            search(name, env, cwd, sandboxed).map_err(|exit| match cwd {
                // A shell enters the directory before it looks for the program, so report that
                // failure first.
                Some(cwd) => unusable_directory(cwd).unwrap_or(exit),
                None => exit,
            })?
        };
        Ok(Self {
            path,
            argv,
            opened: None,
        })
    }

    /// This program, started to call one function.
    fn function(name: &str) -> Result<Self, ExitStatus> {
        Self::reexec_self(&[name, settings::FUNCTION_ARGUMENT, name])
    }

    /// This program with these arguments. The first is argv[0].
    fn reexec_self(args: &[&str]) -> Result<Self, ExitStatus> {
        let unusable =
            |error: io::Error| failed(format!("cannot open this program to run it again: {error}"));
        let file = fs::File::open(PROGRAM).map_err(unusable)?;
        // Above the descriptors that a process is given.
        let opened = Some(sys::dup_above(file.as_fd(), 10).map_err(unusable)?);
        let argv = args
            .iter()
            .map(|word| c_string(word, || "its name".into()))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            path: c"".into(),
            argv,
            opened,
        })
    }

    /// The file, if it is open.
    pub(crate) fn opened(&self) -> Option<BorrowedFd<'_>> {
        self.opened.as_ref().map(AsFd::as_fd)
    }

    /// The arguments, with a null pointer at the end.
    pub(crate) fn argv(&self) -> Vec<*const c_char> {
        pointers(&self.argv)
    }
}

impl PreparedAttempt {
    /// Prepares a request. An error is the end of an attempt that did not start.
    pub(crate) fn new(start: &ExecRequest, inherited: &[CString]) -> Result<Self, ExitStatus> {
        let cwd = start
            .cwd
            .as_deref()
            .map(|cwd| c_string(cwd, || "the directory's name".into()))
            .transpose()?;
        if start.sandbox.is_some() && start.cwd.is_some() {
            return Err(failed(
                "a sandbox has its own working directory and sees no other: remove cwd",
            ));
        }
        let env = match &start.sandbox {
            Some(sandbox) => environment(start, &sandbox::environment(sandbox))?,
            None => environment(start, inherited)?,
        };
        let executable = match &start.program {
            ExecTarget::Command(argv) => Some(Executable::find(
                argv,
                &env,
                start.cwd.as_deref(),
                start.sandbox.is_some(),
            )?),
            ExecTarget::ContainerSupervisor(args) => {
                let args: Vec<&str> = [CONTAINER_SUPERVISOR_NAME]
                    .into_iter()
                    .chain(args.iter().map(String::as_str))
                    .collect();
                Some(Executable::reexec_self(&args)?)
            }
            ExecTarget::Host { argv, argument } if argv.is_empty() => {
                Some(Executable::reexec_self(&[&start.name, argument])?)
            }
            ExecTarget::Host { argv, .. } => {
                Some(Executable::find(argv, &env, start.cwd.as_deref(), false)?)
            }
            ExecTarget::Function(name) if start.sandbox.is_some() => {
                Some(Executable::function(name)?)
            }
            // Checked here, because an error in the forked process would look like an error of the
            // function.
            ExecTarget::Function(_) => match start.cwd.as_deref().and_then(unusable_directory) {
                Some(exit) => return Err(exit),
                None => None,
            },
        };
        Ok(Self {
            executable,
            cwd,
            env,
        })
    }

    /// The environment, with a null pointer at the end.
    pub(crate) fn envp(&self) -> Vec<*const c_char> {
        pointers(&self.env)
    }

    /// The exit status of an attempt whose command could not be started.
    pub(crate) fn failure(
        &self,
        start: &ExecRequest,
        step: ChildStep,
        error: &io::Error,
    ) -> ExitStatus {
        let name = match &start.program {
            ExecTarget::Command(argv) => argv.first().map_or("", String::as_str),
            ExecTarget::Function(name) => name,
            ExecTarget::ContainerSupervisor(_) => CONTAINER_SUPERVISOR_NAME,
            ExecTarget::Host { argv, .. } => argv.first().map_or("the host", String::as_str),
        };
        match step {
            ChildStep::Clone => ExitStatus::ResourceExhausted {
                message: format!("the kernel refused a process: {error}"),
            },
            ChildStep::Setup | ChildStep::Exec
                if is_shortage(error) && start.limits.memory_mb.is_none() =>
            {
                ExitStatus::ResourceExhausted {
                    message: format!("the kernel refused a process: {error}"),
                }
            }
            ChildStep::Setup => failed(format!("the process could not be set up: {error}")),
            ChildStep::Chdir => {
                let of_handler = start
                    .sandbox
                    .as_ref()
                    .and_then(|sandbox| sandbox.directory.as_deref());
                let directory = start.cwd.as_deref().or(of_handler).unwrap_or_default();
                failed(format!("cannot enter the directory '{directory}': {error}"))
            }
            ChildStep::Exec if error.raw_os_error() == Some(libc::ENOMEM) => failed(format!(
                "memory_mb is too small to start a process: {error}"
            )),
            ChildStep::Exec
                if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) =>
            {
                // If the file exists, the interpreter in its first line is missing.
                let path = self
                    .executable
                    .as_ref()
                    .map(|executable| in_directory(start.cwd.as_deref(), &executable.path));
                if start.sandbox.is_none() && path.is_some_and(|path| path.exists()) {
                    ExitStatus::NotExecutable {
                        message: format!("cannot execute {name}: its interpreter is missing"),
                    }
                } else {
                    ExitStatus::NotFound {
                        message: format!("command not found: {name}"),
                    }
                }
            }
            ChildStep::Exec => ExitStatus::NotExecutable {
                message: format!("cannot execute {name}: {error}"),
            },
        }
    }
}

/// Whether the kernel is out of a resource. The task is not to blame for that, unless it has its
/// own limit.
fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOMEM | libc::EAGAIN | libc::ENFILE | libc::EMFILE)
    )
}

fn failed(message: impl Into<String>) -> ExitStatus {
    ExitStatus::SpawnFailed {
        message: message.into(),
    }
}

fn c_string(text: &str, what: impl Fn() -> String) -> Result<CString, ExitStatus> {
    CString::new(text).map_err(|_| failed(format!("{} contains a NUL byte", what())))
}

/// The variables of the request, then the inherited ones that the request does not set. Of several
/// settings the last wins.
fn environment(start: &ExecRequest, inherited: &[CString]) -> Result<Vec<CString>, ExitStatus> {
    let mut variables: Vec<CString> = Vec::with_capacity(inherited.len() + start.env.len());
    // A BTreeSet needs no random seed, which would cost a system call for each attempt.
    let mut set = BTreeSet::new();
    for (key, value) in start.env.iter().rev() {
        if key.is_empty() || key.contains('=') {
            return Err(failed(format!(
                "'{key}' cannot be the name of an environment variable"
            )));
        }
        if set.insert(key.as_bytes()) {
            variables.push(c_string(&format!("{key}={value}"), || {
                format!("the environment variable '{key}'")
            })?);
        }
    }
    variables.reverse();
    variables.extend(
        inherited
            .iter()
            .filter(|entry| !set.contains(key_of(entry)))
            .cloned(),
    );
    Ok(variables)
}

fn key_of(entry: &CStr) -> &[u8] {
    let bytes = entry.to_bytes();
    &bytes[..bytes.iter().position(|b| *b == b'=').unwrap_or(bytes.len())]
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings
        .iter()
        .map(|s| s.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

/// Searches `PATH` for an executable file.
fn search(
    name: &str,
    env: &[CString],
    cwd: Option<&str>,
    sandboxed: bool,
) -> Result<CString, ExitStatus> {
    let path = env
        .iter()
        .find_map(|entry| entry.to_bytes().strip_prefix(b"PATH="));
    let mut refused = None;
    if !name.is_empty() {
        for directory in path
            .unwrap_or(DEFAULT_PATH.as_bytes())
            .split(|b| *b == b':')
        {
            // An empty entry means the current directory. Relative entries count from the directory
            // that the command will run in.
            let directory = if directory.is_empty() {
                b"."
            } else {
                directory
            };
            let candidate = CString::new([directory, b"/", name.as_bytes()].concat());
            let Ok(candidate) = candidate else { continue };
            if sandboxed && !sandbox::is_visible(candidate.to_bytes()) {
                continue;
            }
            match usable(&in_directory(cwd, &candidate)) {
                Some(true) => return Ok(candidate),
                Some(false) => refused = Some(candidate),
                None => {}
            }
        }
    }
    Err(match refused {
        Some(file) => ExitStatus::NotExecutable {
            message: format!(
                "cannot execute {name}: no permission to run {}",
                file.to_string_lossy()
            ),
        },
        None => ExitStatus::NotFound {
            message: format!("command not found: {name}"),
        },
    })
}

/// Whether a file can be executed. `None` if there is no file, or if it is a directory.
fn usable(path: &Path) -> Option<bool> {
    let found = fs::metadata(path).ok()?;
    (!found.is_dir()).then(|| accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok())
}

fn in_directory(cwd: Option<&str>, path: &CStr) -> PathBuf {
    Path::new(cwd.unwrap_or("")).join(OsStr::from_bytes(path.to_bytes()))
}

fn unusable_directory(cwd: &str) -> Option<ExitStatus> {
    let why = match fs::metadata(cwd) {
        Ok(found) if found.is_dir() => return None,
        Ok(_) => io::Error::from_raw_os_error(libc::ENOTDIR),
        Err(error) => error,
    };
    Some(failed(format!("cannot enter the directory '{cwd}': {why}")))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, time::Duration};

    use raddle_model::Tid;

    use super::*;

    fn start(argv: &[&str], env: &[(&str, &str)]) -> ExecRequest {
        let env = env
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect();
        ExecRequest {
            env,
            ..ExecRequest::command(
                Tid::from_u64(1_700_000_000_000_000_000).unwrap(),
                "",
                argv.iter().copied(),
            )
        }
    }

    fn prepare(start: &ExecRequest) -> Result<PreparedAttempt, ExitStatus> {
        PreparedAttempt::new(start, &[c"PATH=/usr/bin:/bin".into(), c"KEEP=1".into()])
    }

    #[test]
    fn searches_the_path_of_the_task() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let tool = directory.path().join("tool");
        fs::write(&tool, "").unwrap();
        fs::create_dir(directory.path().join("sub")).unwrap();
        let found = |name: &str| {
            prepare(&start(&[name], &[("PATH", path)]))
                .map(|found| found.executable.unwrap().path.into_string().unwrap())
        };
        assert!(
            matches!(found("tool"), Err(ExitStatus::NotExecutable { message }) if message.contains("tool"))
        );
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(found("tool"), Ok(format!("{path}/tool")));
        for absent in ["sub", "", "other"] {
            let message = format!("command not found: {absent}");
            assert_eq!(found(absent), Err(ExitStatus::NotFound { message }));
        }
    }

    #[test]
    fn request_variables_override_inherited_ones() {
        let program = prepare(&start(&["true"], &[("A", "1"), ("KEEP", "2"), ("A", "3")]))
            .map_err(drop)
            .unwrap();
        let env: Vec<_> = program.env.iter().map(|e| e.to_str().unwrap()).collect();
        assert_eq!(env, ["KEEP=2", "A=3", "PATH=/usr/bin:/bin"]);
        assert_eq!(program.executable.as_ref().unwrap().argv().len(), 2);
        assert!(program.envp().last().unwrap().is_null());
    }

    /// The runner does nothing else meanwhile: it handles neither commands nor the timeout.
    #[test]
    fn prepares_many_variables_quickly() {
        let mut many = start(&["true"], &[("KEEP", "2")]);
        many.env
            .extend((0..150_000).map(|n| (format!("K{n}"), String::new())));
        many.env.push(("KEEP".into(), "3".into()));
        let began = std::time::Instant::now();
        let prepared = prepare(&many).map_err(drop).unwrap();
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(prepared.env.len(), 150_002);
        assert!(
            prepared.env.contains(&c"KEEP=3".into()) && !prepared.env.contains(&c"KEEP=1".into())
        );
    }

    #[test]
    fn reports_the_invalid_part_of_a_request() {
        let message = |s: &ExecRequest| match prepare(s) {
            Err(ExitStatus::SpawnFailed { message }) => message,
            _ => panic!("was not refused"),
        };
        assert!(message(&start(&[], &[])).contains("empty"));
        assert!(message(&start(&["true", "a\0b"], &[])).contains("argument 1"));
        assert!(message(&start(&["true"], &[("K", "\0")])).contains("'K'"));
        assert!(message(&start(&["true"], &[("K=", "")])).contains("'K='"));
        let mut absent_directory = start(&["no-such-program"], &[]);
        absent_directory.cwd = Some("/no/such/directory".into());
        assert!(message(&absent_directory).contains("/no/such/directory"));
    }
}
