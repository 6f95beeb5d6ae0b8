//! The runner's side of a sandbox: starts the shim, reads its report, and retries without a refused
//! layer if the task allows that.

use std::{
    ffi::{CStr, CString, c_char},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

use raddle_model::{frame::Decoder, spec::NetworkPolicy};
use rustix::process::Signal;

use super::{
    super::{
        child::{ChildPlan, ChildStep, Resource},
        program::Executable,
    },
    DIRECTORY_VARIABLES, Layer, MemoryFiles, MissingLayers, SandboxRefused, StartError, ids,
    proxy::EgressProxy,
    scratch::ScratchDir,
    shim::{self, GO, ShimConfig, ShimEnds, ShimExit, ShimReport},
};
use crate::{message::SandboxConfig, sys};

/// Maximum wait for the shim's report. No working kernel takes that long.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// A command that has started in a sandbox.
pub(in super::super) struct SandboxedChild {
    /// The shim, in whose process group the command is.
    pub(in super::super) pid: u32,
    pub(in super::super) status_reader: ShimExit,
    /// The process of the egress proxy, if there is one.
    pub(in super::super) proxy: Option<u32>,
    /// The refusals of the layers that are omitted.
    pub(in super::super) missing: Vec<SandboxRefused>,
    /// The command's files in memory.
    pub(in super::super) files: MemoryFiles,
    /// The writable directory, if it is on the host. Removed on drop.
    _scratch: Option<ScratchDir>,
}

/// Starts a command in a sandbox.
pub(in super::super) fn spawn(
    plan: &ChildPlan<'_>,
    executable: &Executable,
    sandbox: &SandboxConfig,
) -> Result<SandboxedChild, StartError> {
    let (mut missing, mut refusals) = (MissingLayers::default(), Vec::new());
    loop {
        match spawn_without(missing, plan, executable, sandbox) {
            Err(StartError::Refused(refused)) if sandbox.fallback && missing.add(refused.layer) => {
                refusals.push(refused)
            }
            Err(error) => return Err(error),
            Ok(spawned) => {
                return Ok(SandboxedChild {
                    missing: refusals,
                    ..spawned
                });
            }
        }
    }
}

fn spawn_without(
    missing: MissingLayers,
    plan: &ChildPlan<'_>,
    executable: &Executable,
    sandbox: &SandboxConfig,
) -> Result<SandboxedChild, StartError> {
    let shortage = |error| StartError::Step(ChildStep::Clone, error);
    let scratch = missing
        .namespaces
        .then(ScratchDir::new)
        .transpose()
        .map_err(|error| StartError::Step(ChildStep::Setup, error))?;
    // Without a network namespace there is neither a place for the listener nor a way to limit the
    // endpoints: then there is no network at all.
    let proxied = matches!(sandbox.network, NetworkPolicy::Only(_)) && !missing.namespaces;
    let proxy = proxied
        .then(|| EgressProxy::fork(&sandbox.network))
        .transpose()
        .map_err(shortage)?;
    let redirected = scratch
        .as_ref()
        .map(|scratch| redirect_directories(plan.envp, scratch));
    // Without a user namespace, all processes of the worker's user would count.
    let counted = |limit: &&(Resource, u64)| !missing.namespaces || limit.0 != Resource::Nproc;
    let rlimits: Vec<_> = plan.rlimits.iter().filter(counted).copied().collect();
    let envp = redirected
        .as_ref()
        .map_or(plan.envp, |(pointers, _)| pointers);
    let plan = ChildPlan {
        envp,
        rlimits: &rlimits,
        ..*plan
    };
    let config = ShimConfig {
        sandbox,
        missing,
        // Checked before the fork: in a user namespace no process is root.
        is_root: sys::is_root(),
        proxy_socket: proxy.as_ref().map(EgressProxy::socket),
        scratch: scratch.as_ref().map(ScratchDir::path),
    };
    match start(&plan, executable, &config) {
        Ok((pid, status_reader)) => {
            let files = MemoryFiles::new(!missing.namespaces);
            let proxy = proxy.map(|proxy| proxy.pid);
            Ok(SandboxedChild {
                pid,
                status_reader,
                proxy,
                missing: Vec::new(),
                files,
                _scratch: scratch,
            })
        }
        Err(error) => {
            proxy.into_iter().for_each(EgressProxy::discard);
            Err(error)
        }
    }
}

/// Replaces the directories in the environment of a command whose writable directory is on the
/// host.
fn redirect_directories(
    envp: &[*const c_char],
    scratch: &ScratchDir,
) -> (Vec<*const c_char>, Vec<CString>) {
    use std::os::unix::ffi::OsStrExt;
    let variable =
        |name: &&str| [name.as_bytes(), b"=", scratch.path().as_os_str().as_bytes()].concat();
    let own: Vec<CString> = DIRECTORY_VARIABLES
        .iter()
        .filter_map(|name| CString::new(variable(name)).ok())
        .collect();
    let defaults = super::ENVIRONMENT;
    let replaced = |variable: &*const c_char| {
        let text = if variable.is_null() {
            c""
        } else {
            // SAFETY: the plan's variables are C strings that outlive it, with a null pointer at
            // the end.
            unsafe { CStr::from_ptr(*variable) }
        };
        let name = |text: &CStr| {
            text.to_bytes()
                .split(|b| *b == b'=')
                .next()
                .map(<[u8]>::to_vec)
        };
        // Variables that the task has set itself stay unchanged.
        let own = own
            .iter()
            .find(|own| defaults.contains(&text) && name(own) == name(text));
        own.map_or(*variable, |own| own.as_ptr())
    };
    (envp.iter().map(replaced).collect(), own)
}

/// Forks the shim and waits for its report.
fn start(
    plan: &ChildPlan<'_>,
    executable: &Executable,
    config: &ShimConfig<'_>,
) -> Result<(u32, ShimExit), StartError> {
    let shortage = |error| StartError::Step(ChildStep::Clone, error);
    let (ours, theirs) = sys::seqpacket_pair().map_err(shortage)?;
    let (runner_pipe, release) = io::pipe().map_err(shortage)?;
    ids::give_to_command_user(plan.outputs.iter().chain([&plan.stdin]));
    let channels = ShimEnds {
        reports: theirs,
        runner_pipe: runner_pipe.into(),
    };
    let flags = config.namespaces() | libc::SIGCHLD;
    // SAFETY: a runner has one thread.
    match unsafe { sys::fork(flags, || shim::run(plan, executable, &channels, config)) } {
        Ok(pid) => {
            drop(channels);
            let mapped = if config.missing.namespaces {
                Ok(())
            } else {
                ids::map_ids(pid)
            };
            let mapped = mapped.map_err(Layer::Ids.refused("map its ids"));
            let started = mapped.and_then(|()| {
                let _ = sys::write_some(release.as_fd(), &[GO]);
                read_report(&ours)
            });
            match started {
                Ok(()) => {
                    sys::set_nonblocking(ours.as_fd()).map_err(shortage)?;
                    Ok((pid, ShimExit(ours)))
                }
                Err(error) => {
                    sys::kill(pid, Signal::KILL);
                    sys::wait_for_end(pid);
                    Err(error)
                }
            }
        }
        Err(error) if refuses_namespaces(&error) && !config.missing.namespaces => {
            Err(Layer::Namespaces.refused("clone")(error))
        }
        Err(error) => Err(shortage(error)),
    }
}

/// Whether the kernel refuses namespaces in general, as opposed to a temporary shortage.
fn refuses_namespaces(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::ENOSPC | libc::EINVAL | libc::ENOSYS | libc::EUSERS)
    )
}

/// Reads the shim's first report.
fn read_report(socket: &OwnedFd) -> Result<(), StartError> {
    let mut fds = [libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }];
    let mut report = Decoder::new(shim::MAX_REPORT);
    sys::poll(&mut fds, Some(REPORT_TIMEOUT))
        .and_then(|()| {
            if fds[0].revents == 0 {
                Err(io::ErrorKind::TimedOut.into())
            } else {
                Ok(())
            }
        })
        .and_then(|()| sys::read_some(socket.as_fd(), report.buffer()))
        .map_err(|error| StartError::Step(ChildStep::Setup, error))?;
    let error = io::Error::from_raw_os_error;
    match report.next() {
        Ok(Some(ShimReport::Started)) => Ok(()),
        Ok(Some(ShimReport::Refused(layer, errno, what))) => {
            Err(StartError::Refused(SandboxRefused {
                layer,
                what,
                error: error(errno),
            }))
        }
        Ok(Some(ShimReport::Step(step, errno))) => Err(StartError::Step(step, error(errno))),
        Ok(None) | Err(_) => Err(StartError::Step(
            ChildStep::Setup,
            io::Error::other("the shim ended before it had begun"),
        )),
    }
}
