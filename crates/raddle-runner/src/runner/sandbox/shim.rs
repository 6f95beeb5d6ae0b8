//! The shim: the process between the runner and the command. It builds the sandbox from inside, and
//! is process 1 there.

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

/// All namespaces except the network, which a task may share with the host.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Tells the shim that its ids are mapped.
pub(super) const GO: u8 = b'G';
/// Maximum length of a report.
pub(super) const MAX_REPORT: usize = 4096;
/// Exit code of every shim. The command's status is sent over the socket before.
const SHIM_EXIT_CODE: libc::c_int = 125;

/// Configuration of a shim.
pub(super) struct ShimConfig<'a> {
    pub(super) sandbox: &'a SandboxConfig,
    pub(super) missing: MissingLayers,
    pub(super) is_root: bool,
    /// The socket to the egress proxy, if there is one.
    pub(super) proxy_socket: Option<BorrowedFd<'a>>,
    /// The writable directory on the host, if the sandbox has no root of its own.
    pub(super) scratch: Option<&'a Path>,
}

/// The shim's ends of its connections.
pub(super) struct ShimEnds {
    /// Reports to the runner.
    pub(super) reports: OwnedFd,
    /// From the runner: `GO`, or end of file when the runner has died.
    pub(super) runner_pipe: OwnedFd,
}

/// Reads the command's wait status, as the shim saw it. A shim that was killed has sent none.
pub(in super::super) struct ShimExit(pub(super) OwnedFd);

/// The shim's first message: the command has started, or the step at which its start failed, or the
/// layer that was refused. Errors are errno values.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ShimReport {
    Started,
    Step(ChildStep, i32),
    Refused(Layer, i32, String),
}

impl ShimConfig<'_> {
    /// Namespaces to create.
    pub(super) fn namespaces(&self) -> libc::c_int {
        let network = if self.has_network() {
            libc::CLONE_NEWNET
        } else {
            0
        };
        if self.missing.namespaces {
            0
        } else {
            NAMESPACES | network
        }
    }

    /// Whether the sandbox has a network namespace.
    fn has_network(&self) -> bool {
        !self.missing.namespaces && self.sandbox.network != NetworkPolicy::Host
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

/// Main function of the shim.
pub(super) fn run(
    plan: &ChildPlan<'_>,
    executable: &Executable,
    channels: &ShimEnds,
    config: &ShimConfig<'_>,
) -> ! {
    let send = |bytes: &[u8]| _ = sys::write_some(channels.reports.as_fd(), bytes);
    let fail = |report: ShimReport| -> ! {
        send(&frame::encode(&report));
        exit()
    };
    let number = |error: io::Error| error.raw_os_error().unwrap_or(0);
    match build(plan, executable, channels, config) {
        Ok(()) => {}
        Err(StartError::Refused(SandboxRefused { layer, what, error })) => {
            fail(ShimReport::Refused(layer, number(error), what))
        }
        Err(StartError::Step(step, error)) => fail(ShimReport::Step(step, number(error))),
    }
    // The shim has already handled the group, the cgroup and the working directory.
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
    send(&frame::encode(&ShimReport::Started));
    send(&wait_for(command).to_le_bytes());
    exit()
}

/// Builds all layers. Each layer drops the privileges that the earlier ones needed.
fn build(
    plan: &ChildPlan<'_>,
    executable: &Executable,
    channels: &ShimEnds,
    config: &ShimConfig<'_>,
) -> Result<(), StartError> {
    let setup = Layer::Privileges;
    // The process group of the command.
    let _ = process::setpgid(None, None);
    die_with_the_runner();
    // The runner maps the ids meanwhile. Steps that need no mapping come before the wait.
    ids::bound_capabilities();
    if let Some(procs) = plan.cgroup {
        sys::write_some(procs, b"0").map_err(setup.refused("join its cgroup"))?;
    }
    let own = [
        Some(plan.stdin.as_raw_fd()),
        Some(channels.reports.as_raw_fd()),
        Some(channels.runner_pipe.as_raw_fd()),
        executable.opened().map(|fd| fd.as_raw_fd()),
    ];
    let own = own.into_iter().flatten().chain(
        config
            .proxy_socket
            .map(|proxy_socket| proxy_socket.as_raw_fd()),
    );
    close_all_except(
        &mut plan
            .outputs
            .iter()
            .map(AsRawFd::as_raw_fd)
            .chain(own)
            .collect::<Vec<_>>(),
    );
    let mut go = Vec::new();
    if !matches!(sys::read_some(channels.runner_pipe.as_fd(), &mut go), Ok(1)) {
        exit();
    }
    // The command runs as the same user and must not read the shim's descriptors and memory.
    let _ = process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    if !config.missing.namespaces {
        ids::become_inside_user(config.is_root).map_err(Layer::Ids.refused("change its user"))?;
    } else if config.is_root {
        // In a container without other users, root cannot change its user. It loses all of root's
        // privileges below in any case.
        let _ = ids::become_overflow_user();
    }
    // The kernel clears PR_SET_PDEATHSIG when the user changes.
    die_with_the_runner();
    let mut runner_pipe = [libc::pollfd {
        fd: channels.runner_pipe.as_raw_fd(),
        events: 0,
        revents: 0,
    }];
    if sys::poll(&mut runner_pipe, Some(Duration::ZERO)).is_err() || runner_pipe[0].revents != 0 {
        exit();
    }
    match config.scratch {
        None => enter_root(config)?,
        Some(scratch) => {
            let directory = config.sandbox.directory.as_ref().map_or(scratch, Path::new);
            std::env::set_current_dir(directory)
                .map_err(|error| StartError::Step(ChildStep::Chdir, error))?;
        }
    }
    ids::give_up_privileges().map_err(setup.refused("capabilities"))?;
    if !config.missing.landlock {
        restrict(config, executable).map_err(Layer::Landlock.refused("ruleset"))?;
    }
    if !config.missing.filter {
        let is_bare = config.missing.namespaces && config.sandbox.network != NetworkPolicy::Host;
        let sockets = if is_bare {
            Sockets::None
        } else {
            Sockets::Usual
        };
        filter::install(sockets).map_err(Layer::Filter.refused("seccomp"))?;
    }
    Ok(())
}

/// Sets up the inside of the namespaces.
fn enter_root(config: &ShimConfig<'_>) -> Result<(), StartError> {
    root::enter_root(config.sandbox)?;
    if config.has_network() {
        network::set_up().map_err(Layer::Namespaces.refused("its loopback interface"))?;
    }
    if let Some(proxy_socket) = config.proxy_socket {
        proxy::open_listener(proxy_socket)
            .map_err(|error| StartError::Step(ChildStep::Setup, error))?;
    }
    let _ = rustix::system::sethostname(b"sandbox");
    Ok(())
}

fn restrict(config: &ShimConfig<'_>, executable: &Executable) -> io::Result<()> {
    match config.scratch {
        None => {
            let mounts = config
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
            let (readable, writable) = root::accessible_paths(config.sandbox, &scratch);
            landlock::restrict(&readable, &writable, executable.opened())
        }
    }
}

/// Sets PR_SET_PDEATHSIG to SIGKILL. Whether the runner died before is checked on its pipe: a shim
/// cannot see its parent's pid.
pub(super) fn die_with_the_runner() {
    let _ = process::set_parent_process_death_signal(Some(Signal::KILL));
}

/// Closes the runner's descriptors: its socket, its lease deadline page, its signalfd, and the
/// worker's standard error.
pub(super) fn close_all_except(kept: &mut [RawFd]) {
    kept.sort_unstable();
    let mut from = 0;
    for fd in kept.iter().copied().chain([RawFd::MAX]) {
        if fd > from {
            sys::close_range(from as u32, fd as u32 - 1, 0);
        }
        from = fd.saturating_add(1);
    }
}

/// Reaps all processes of the sandbox until the command exits.
fn wait_for(command: u32) -> libc::c_int {
    loop {
        match process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == sys::pid_of(command) => return status.as_raw(),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => exit(),
        }
    }
}

/// Exits, and ends all processes of the sandbox.
fn exit() -> ! {
    sys::exit_at_once(SHIM_EXIT_CODE)
}
