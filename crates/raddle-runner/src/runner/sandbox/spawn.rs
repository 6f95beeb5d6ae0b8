//! The runner's side of a sandbox: starting the shim, hearing what has come of it, and doing without what the system refuses where the
//! task says so.

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
    DIRECTORYS, Layer, MemoryFiles, MissingLayers, SandboxRefused, StartError, ids,
    proxy::EgressProxy,
    scratch::ScratchDir,
    shim::{self, GO, ShimConfig, ShimEnds, ShimExit, ShimReport},
};
use crate::{message::SandboxConfig, sys};

/// No system takes so long.
const PATIENCE: Duration = Duration::from_secs(10);

/// A command that has begun.
pub(in super::super) struct SandboxedChild {
    /// The shim, whose group the command is in.
    pub(in super::super) pid: u32,
    pub(in super::super) witness: ShimExit,
    /// The process of the proxy, if there is one.
    pub(in super::super) proxy: Option<u32>,
    /// What it does without.
    pub(in super::super) lacks: Vec<SandboxRefused>,
    /// What it keeps in files in memory.
    pub(in super::super) files: MemoryFiles,
    /// Where it writes, if that is on the host. Removed with this.
    _scratch: Option<ScratchDir>,
}

/// Starts a command in a sandbox.
pub(in super::super) fn spawn(
    plan: &ChildPlan<'_>,
    executable: &Executable,
    sandbox: &SandboxConfig,
) -> Result<SandboxedChild, StartError> {
    let (mut lacks, mut refusals) = (MissingLayers::default(), Vec::new());
    loop {
        match spawn_without(lacks, plan, executable, sandbox) {
            Err(StartError::Refused(refused)) if sandbox.fallback && lacks.add(refused.layer) => {
                refusals.push(refused)
            }
            Err(not_begun) => return Err(not_begun),
            Ok(spawned) => {
                return Ok(SandboxedChild {
                    lacks: refusals,
                    ..spawned
                });
            }
        }
    }
}

fn spawn_without(
    lacks: MissingLayers,
    plan: &ChildPlan<'_>,
    executable: &Executable,
    sandbox: &SandboxConfig,
) -> Result<SandboxedChild, StartError> {
    let starved = |error| StartError::Step(ChildStep::Clone, error);
    let scratch = lacks
        .namespaces
        .then(ScratchDir::new)
        .transpose()
        .map_err(|error| StartError::Step(ChildStep::Setup, error))?;
    // Without a network of its own there is nobody to listen for, and no way to say what is reached: then it is nothing.
    let proxied = matches!(sandbox.network, NetworkPolicy::Only(_)) && !lacks.namespaces;
    let proxy = proxied
        .then(|| EgressProxy::fork(&sandbox.network))
        .transpose()
        .map_err(starved)?;
    let moved = scratch.as_ref().map(|scratch| moved(plan.envp, scratch));
    // Without a user of its own all processes of the worker's user would count.
    let counted = |limit: &&(Resource, u64)| !lacks.namespaces || limit.0 != Resource::Nproc;
    let rlimits: Vec<_> = plan.rlimits.iter().filter(counted).copied().collect();
    let envp = moved.as_ref().map_or(plan.envp, |(pointers, _)| pointers);
    let plan = ChildPlan {
        envp,
        rlimits: &rlimits,
        ..*plan
    };
    let design = ShimConfig {
        sandbox,
        lacks,
        // Asked before: in a user namespace nobody is root.
        is_root: sys::is_root(),
        door: proxy.as_ref().map(EgressProxy::door),
        scratch: scratch.as_ref().map(ScratchDir::path),
    };
    match start(&plan, executable, &design) {
        Ok((pid, witness)) => {
            let files = MemoryFiles::new(!lacks.namespaces);
            let proxy = proxy.map(|proxy| proxy.pid);
            Ok(SandboxedChild {
                pid,
                witness,
                proxy,
                lacks: Vec::new(),
                files,
                _scratch: scratch,
            })
        }
        Err(not_begun) => {
            proxy.into_iter().for_each(EgressProxy::discard);
            Err(not_begun)
        }
    }
}

/// The environment of a command whose directory is on the host.
fn moved(envp: &[*const c_char], scratch: &ScratchDir) -> (Vec<*const c_char>, Vec<CString>) {
    use std::os::unix::ffi::OsStrExt;
    let named =
        |name: &&str| [name.as_bytes(), b"=", scratch.path().as_os_str().as_bytes()].concat();
    let own: Vec<CString> = DIRECTORYS
        .iter()
        .filter_map(|name| CString::new(named(name)).ok())
        .collect();
    let usual = super::ENVIRONMENT;
    let replaced = |variable: &*const c_char| {
        let text = if variable.is_null() {
            c""
        } else {
            // SAFETY: the plan's variables are C strings that outlive it, and a null pointer at the end.
            unsafe { CStr::from_ptr(*variable) }
        };
        let name = |text: &CStr| {
            text.to_bytes()
                .split(|b| *b == b'=')
                .next()
                .map(<[u8]>::to_vec)
        };
        // What the task has set itself is not ours to change.
        let own = own
            .iter()
            .find(|own| usual.contains(&text) && name(own) == name(text));
        own.map_or(*variable, |own| own.as_ptr())
    };
    (envp.iter().map(replaced).collect(), own)
}

/// Forks the shim, and listens to it.
fn start(
    plan: &ChildPlan<'_>,
    executable: &Executable,
    design: &ShimConfig<'_>,
) -> Result<(u32, ShimExit), StartError> {
    let starved = |error| StartError::Step(ChildStep::Clone, error);
    let (ours, theirs) = sys::seqpacket_pair().map_err(starved)?;
    let (leash, held) = io::pipe().map_err(starved)?;
    ids::hand_over(plan.outputs.iter().chain([&plan.stdin]));
    let ends = ShimEnds {
        says: theirs,
        leash: leash.into(),
    };
    let flags = design.namespaces() | libc::SIGCHLD;
    // SAFETY: a runner has one thread.
    match unsafe { sys::fork(flags, || shim::live(plan, executable, &ends, design)) } {
        Ok(pid) => {
            drop(ends);
            let named = if design.lacks.namespaces {
                Ok(())
            } else {
                ids::name(pid)
            };
            let named = named.map_err(Layer::Ids.refused("its names"));
            let begun = named.and_then(|()| {
                let _ = sys::write_some(held.as_fd(), &[GO]);
                listen(&ours)
            });
            match begun {
                Ok(()) => {
                    sys::set_nonblocking(ours.as_fd()).map_err(starved)?;
                    Ok((pid, ShimExit(ours)))
                }
                Err(not_begun) => {
                    sys::kill(pid, Signal::KILL);
                    sys::wait_for_end(pid);
                    Err(not_begun)
                }
            }
        }
        Err(error) if is_refusal(&error) && !design.lacks.namespaces => {
            Err(Layer::Namespaces.refused("clone")(error))
        }
        Err(error) => Err(starved(error)),
    }
}

/// Whether the system does not give namespaces at all, and not just now.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::ENOSPC | libc::EINVAL | libc::ENOSYS | libc::EUSERS)
    )
}

/// What the shim says first.
fn listen(socket: &OwnedFd) -> Result<(), StartError> {
    let mut fds = [libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }];
    let mut said = Decoder::new(shim::LONGEST);
    sys::poll(&mut fds, Some(PATIENCE))
        .and_then(|()| {
            if fds[0].revents == 0 {
                Err(io::ErrorKind::TimedOut.into())
            } else {
                Ok(())
            }
        })
        .and_then(|()| sys::read_some(socket.as_fd(), said.buffer()))
        .map_err(|error| StartError::Step(ChildStep::Setup, error))?;
    let error = io::Error::from_raw_os_error;
    match said.next() {
        Ok(Some(ShimReport::Begun)) => Ok(()),
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
