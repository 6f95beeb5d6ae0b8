//! The process between the runner and the command: it makes the sandbox from inside, and is process 1 there.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    path::Path,
    time::Duration,
};

use raddle_model::{frame, spec::NetworkPolicy};
use rustix::process::{self, DumpableBehavior, Signal, WaitOptions};
use serde::{Deserialize, Serialize};

use super::{
    super::{
        child::{self, ChildPlan, ChildStep},
        program::Executable,
    },
    Layer, MissingLayers, SCRATCH, SandboxRefused, StartError,
    filter::{self, Sockets},
    ids, landlock, network, proxy, root,
};
use crate::{message::SandboxConfig, sys};

/// Everything of its own, but for the network, which a task may share with the host.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Tells the shim that its user has a name.
pub(super) const GO: u8 = b'G';
/// The longest thing that it says.
pub(super) const LONGEST: usize = 4096;
/// The exit code of every shim. What its command's is, it has said before.
const SHIM: libc::c_int = 125;

/// What a shim is to make.
pub(super) struct ShimConfig<'a> {
    pub(super) sandbox: &'a SandboxConfig,
    pub(super) lacks: MissingLayers,
    pub(super) is_root: bool,
    /// The way to the proxy, if there is one.
    pub(super) door: Option<BorrowedFd<'a>>,
    /// The directory to write in, where there is no root of its own.
    pub(super) scratch: Option<&'a Path>,
}

/// The shim's ends of its ways.
pub(super) struct ShimEnds {
    /// What it says to the runner.
    pub(super) says: OwnedFd,
    /// What it hears from it: its user has a name; or the end of file, when the runner is gone.
    pub(super) leash: OwnedFd,
}

/// How the command ended, as the shim saw it. A shim that was killed has seen nothing.
pub(in super::super) struct ShimExit(pub(super) OwnedFd);

/// What the shim says first, once: that the command has begun, at which step of its start it failed, or which layer was refused. Errors are numbers of the
/// system.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ShimReport {
    Begun,
    Step(ChildStep, i32),
    Refused(Layer, i32, String),
}

impl ShimConfig<'_> {
    /// The namespaces that it is to be in.
    pub(super) fn namespaces(&self) -> libc::c_int {
        let network = if self.has_network() {
            libc::CLONE_NEWNET
        } else {
            0
        };
        if self.lacks.namespaces {
            0
        } else {
            NAMESPACES | network
        }
    }

    /// Whether it is to have a network of its own.
    fn has_network(&self) -> bool {
        !self.lacks.namespaces && self.sandbox.network != NetworkPolicy::Host
    }
}

impl ShimExit {
    /// The command's wait status.
    pub(in super::super) fn status(&self) -> Option<libc::c_int> {
        let mut buf = Vec::new();
        sys::read_some(self.0.as_fd(), &mut buf).ok()?;
        buf.try_into().ok().map(libc::c_int::from_le_bytes)
    }
}

/// The shim's part.
pub(super) fn live(
    plan: &ChildPlan<'_>,
    executable: &Executable,
    ends: &ShimEnds,
    design: &ShimConfig<'_>,
) -> ! {
    let say = |bytes: &[u8]| _ = sys::write_some(ends.says.as_fd(), bytes);
    let fail = |word: ShimReport| -> ! {
        say(&frame::encode(&word));
        leave()
    };
    let number = |error: io::Error| error.raw_os_error().unwrap_or(0);
    match build(plan, executable, ends, design) {
        Ok(()) => {}
        Err(StartError::Refused(SandboxRefused { layer, what, error })) => {
            fail(ShimReport::Refused(layer, number(error), what))
        }
        Err(StartError::Step(step, error)) => fail(ShimReport::Step(step, number(error))),
    }
    // The shim has seen to the rest: the group, the control group, and the directory.
    let plan = ChildPlan {
        leads: false,
        cgroup: None,
        cwd: None,
        ..*plan
    };
    let command = match child::spawn(&plan, executable) {
        Ok(command) => command,
        Err((step, error)) => fail(ShimReport::Step(step, number(error))),
    };
    say(&frame::encode(&ShimReport::Begun));
    say(&wait_for(command).to_le_bytes());
    leave()
}

/// Makes all layers, each of which takes away what it takes to make those before it.
fn build(
    plan: &ChildPlan<'_>,
    executable: &Executable,
    ends: &ShimEnds,
    design: &ShimConfig<'_>,
) -> Result<(), StartError> {
    let setup = Layer::Privileges;
    // The group that the command will be in.
    let _ = process::setpgid(None, None);
    end_with_the_runner();
    // The runner names its user meanwhile. What takes no name is done before that is waited for.
    ids::bound_capabilities();
    if let Some(procs) = plan.cgroup {
        sys::write_some(procs, b"0").map_err(setup.refused("join its control group"))?;
    }
    let own = [
        Some(plan.stdin.as_raw_fd()),
        Some(ends.says.as_raw_fd()),
        Some(ends.leash.as_raw_fd()),
        executable.opened().map(|fd| fd.as_raw_fd()),
    ];
    let own = own
        .into_iter()
        .flatten()
        .chain(design.door.map(|door| door.as_raw_fd()));
    close_all_but(
        &mut plan
            .outputs
            .iter()
            .map(AsRawFd::as_raw_fd)
            .chain(own)
            .collect::<Vec<_>>(),
    );
    let mut go = Vec::new();
    if !matches!(sys::read_some(ends.leash.as_fd(), &mut go), Ok(1)) {
        leave();
    }
    // What the shim has open or in memory is nothing for the command, which is the same user.
    let _ = process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    if !design.lacks.namespaces {
        ids::become_it(design.is_root).map_err(Layer::Ids.refused("become it"))?;
    } else if design.is_root {
        // In a container without other users root cannot be another. It has lost what makes it root all the same, below.
        let _ = ids::become_nobody();
    }
    // Whoever changes its user loses what it had asked for.
    end_with_the_runner();
    let mut leash = [libc::pollfd {
        fd: ends.leash.as_raw_fd(),
        events: 0,
        revents: 0,
    }];
    if sys::poll(&mut leash, Some(Duration::ZERO)).is_err() || leash[0].revents != 0 {
        leave();
    }
    match design.scratch {
        None => enter(design)?,
        Some(scratch) => {
            let directory = design.sandbox.directory.as_ref().map_or(scratch, Path::new);
            std::env::set_current_dir(directory)
                .map_err(|error| StartError::Step(ChildStep::Chdir, error))?;
        }
    }
    ids::give_up_privileges().map_err(setup.refused("capabilities"))?;
    if !design.lacks.landlock {
        restrict(design, executable).map_err(Layer::Landlock.refused("its rules"))?;
    }
    if !design.lacks.filter {
        let is_bare = design.lacks.namespaces && design.sandbox.network != NetworkPolicy::Host;
        let sockets = if is_bare {
            Sockets::None
        } else {
            Sockets::Usual
        };
        filter::install(sockets).map_err(Layer::Filter.refused("seccomp"))?;
    }
    Ok(())
}

/// Makes what namespaces have in them.
fn enter(design: &ShimConfig<'_>) -> Result<(), StartError> {
    root::enter(design.sandbox)?;
    if design.has_network() {
        network::set_up().map_err(Layer::Namespaces.refused("its network"))?;
    }
    if let Some(door) = design.door {
        proxy::open(door).map_err(|error| StartError::Step(ChildStep::Setup, error))?;
    }
    let _ = rustix::system::sethostname(b"sandbox");
    Ok(())
}

fn restrict(design: &ShimConfig<'_>, executable: &Executable) -> io::Result<()> {
    match design.scratch {
        None => {
            let mounts = design
                .sandbox
                .mounts
                .iter()
                .filter(|mount| mount.writable)
                .map(|mount| &*mount.path);
            let writable: Vec<&str> = [SCRATCH, "/tmp", "/dev"]
                .into_iter()
                .chain(mounts)
                .collect();
            landlock::restrict(&["/"], &writable, executable.opened())
        }
        Some(scratch) => {
            let scratch = scratch.to_string_lossy();
            let (readable, writable) = root::instead(design.sandbox, &scratch);
            landlock::restrict(&readable, &writable, executable.opened())
        }
    }
}

/// Asks for SIGKILL at the runner's death. Whether that has come before is told by the leash: a shim does not see its parent.
pub(super) fn end_with_the_runner() {
    let _ = process::set_parent_process_death_signal(Some(Signal::KILL));
}

/// Lets go of what belongs to the runner: its socket, its fence, its signals, and the worker's standard error.
pub(super) fn close_all_but(kept: &mut [RawFd]) {
    kept.sort_unstable();
    let mut from = 0;
    for fd in kept.iter().copied().chain([RawFd::MAX]) {
        if fd > from {
            sys::close_range(from as u32, fd as u32 - 1, 0);
        }
        from = fd.saturating_add(1);
    }
}

/// Waits for all that ends in the sandbox, until the command does.
fn wait_for(command: u32) -> libc::c_int {
    loop {
        match process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == sys::pid_of(command) => return status.as_raw(),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => leave(),
        }
    }
}

/// Ends, and with it all that is in the sandbox.
fn leave() -> ! {
    sys::exit_at_once(SHIM)
}
