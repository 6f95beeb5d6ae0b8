//! The process between the runner and the command: it makes the sandbox from inside, and is process 1 there.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    path::Path,
    time::Duration,
};

use raddle_core::spec::Network;
use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::{self, DumpableBehavior, Signal},
};

use super::{
    super::{
        child::{self, Plan, Stack, Step},
        program::Executable,
    },
    Lacks, Layer, NotBegun, Refused, SCRATCH,
    filter::{self, Sockets},
    ids, landlock,
    network::Making,
    proxy, root,
};
use crate::{message::Sandbox, sys};

/// Everything of its own, but for the network: the shim makes that when it is there.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// Tells the shim that its user has a name.
pub(super) const GO: u8 = b'G';
/// The longest thing that it says.
pub(super) const LONGEST: usize = 256;
/// The exit code of every shim. What its command's is, it has said before.
const SHIM: libc::c_int = 125;

/// What a shim is to make.
pub(super) struct Design<'a> {
    pub(super) sandbox: &'a Sandbox,
    pub(super) lacks: Lacks,
    pub(super) is_root: bool,
    /// The way to the proxy, if there is one.
    pub(super) door: Option<BorrowedFd<'a>>,
    /// The folder to write in, where there is no root of its own.
    pub(super) scratch: Option<&'a Path>,
    /// It is forked in the network that it is to be in.
    pub(super) is_networked: bool,
}

/// The shim's ends of its ways.
pub(super) struct Ends {
    /// What it says to the runner.
    pub(super) says: OwnedFd,
    /// What it hears from it: its user has a name; or the end of file, when the runner is gone.
    pub(super) leash: OwnedFd,
}

/// How the command ended, as the shim saw it. A shim that was killed has seen nothing.
pub(in super::super) struct Witness(pub(super) OwnedFd);

/// What the shim says first, once: that the command has begun, at which step of its start it failed, or which layer was refused.
pub(super) enum Word {
    Begun,
    Step(Step, io::Error),
    Refused(Layer, io::Error, String),
}

const BEGUN: u8 = 0;
/// Layers have lower numbers, and steps these.
const STEP: u8 = 64;

impl Design<'_> {
    /// The namespaces that it is to be in.
    pub(super) fn namespaces(&self) -> libc::c_int {
        if self.lacks.namespaces { 0 } else { NAMESPACES }
    }

    /// Whether it is to have a network of its own.
    pub(super) fn has_network(&self) -> bool {
        !self.lacks.namespaces && self.sandbox.network != Network::Host
    }
}

impl Witness {
    /// The command's wait status.
    pub(in super::super) fn status(&self) -> Option<libc::c_int> {
        let mut buf = Vec::new();
        sys::read_some(self.0.as_fd(), &mut buf, 4).ok()?;
        buf.try_into().ok().map(libc::c_int::from_le_bytes)
    }
}

impl Word {
    /// A kind, an error's number, and what was tried.
    fn write(&self) -> Vec<u8> {
        let (kind, error, what) = match self {
            Self::Begun => (BEGUN, None, ""),
            Self::Step(step, error) => (STEP + *step as u8, Some(error), ""),
            Self::Refused(layer, error, what) => (*layer as u8, Some(error), what.as_str()),
        };
        let errno = error.and_then(io::Error::raw_os_error).unwrap_or(0);
        [kind].into_iter().chain(errno.to_le_bytes()).chain(what.bytes()).take(LONGEST).collect()
    }

    /// Nothing, if it is none.
    pub(super) fn read(said: &[u8]) -> Option<Self> {
        let (&kind, rest) = said.split_first()?;
        let (errno, what) = rest.split_first_chunk()?;
        let error = io::Error::from_raw_os_error(i32::from_le_bytes(*errno));
        if kind == BEGUN {
            return Some(Self::Begun);
        }
        if let Some(layer) = Layer::ALL.into_iter().find(|layer| *layer as u8 == kind) {
            return Some(Self::Refused(layer, error, String::from_utf8_lossy(what).into_owned()));
        }
        let steps = [Step::Clone, Step::Setup, Step::Chdir, Step::Exec];
        steps.into_iter().find(|step| STEP + *step as u8 == kind).map(|step| Self::Step(step, error))
    }
}

/// The shim's part.
pub(super) fn live(stack: &mut Stack, plan: &Plan<'_>, executable: &Executable, ends: &Ends, design: &Design<'_>) -> ! {
    let says = ends.says.as_fd();
    let fail = |word: Word| -> ! {
        let _ = sys::write_some(says, &word.write());
        leave()
    };
    match build(plan, executable, ends, design) {
        Ok(()) => {}
        Err(NotBegun::Refused(Refused { layer, what, error })) => fail(Word::Refused(layer, error, what)),
        Err(NotBegun::Step(step, error)) => fail(Word::Step(step, error)),
    }
    // The shim has seen to the rest: the group, the control group, and the folder.
    let plan = Plan { leads: false, cgroup: None, cwd: None, ..*plan };
    let command = match child::spawn(stack, &plan, executable) {
        Ok(command) => command,
        Err((step, error)) => fail(Word::Step(step, error)),
    };
    let _ = sys::write_some(says, &Word::Begun.write());
    let _ = sys::write_some(says, &wait_for(command).to_le_bytes());
    leave()
}

/// Makes all layers, each of which takes away what it takes to make those before it.
fn build(plan: &Plan<'_>, executable: &Executable, ends: &Ends, design: &Design<'_>) -> Result<(), NotBegun> {
    let setup = Layer::Privileges;
    // The group that the command will be in.
    let _ = process::setpgid(None, None);
    end_with_the_runner();
    // The runner names its user meanwhile. What takes no name is done before that is waited for.
    ids::bound_capabilities();
    if let Some(procs) = plan.cgroup {
        // SAFETY: an open descriptor, and one byte.
        let joined = unsafe { libc::write(procs, c"0".as_ptr().cast(), 1) };
        sys::check(joined as i32).map_err(setup.refused("join its control group"))?;
    }
    let own = [
        Some(plan.stdin),
        Some(ends.says.as_raw_fd()),
        Some(ends.leash.as_raw_fd()),
        executable.opened().map(|fd| fd.as_raw_fd()),
    ];
    let own = own.into_iter().flatten().chain(design.door.map(|door| door.as_raw_fd()));
    close_all_but(&mut plan.outputs.iter().copied().chain(own).collect::<Vec<_>>());
    let network = (design.has_network() && !design.is_networked).then(Making::begin);
    let mut go = Vec::new();
    if !matches!(sys::read_some(ends.leash.as_fd(), &mut go, 1), Ok(1)) {
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
    let mut leash = [libc::pollfd { fd: ends.leash.as_raw_fd(), events: 0, revents: 0 }];
    if sys::poll(&mut leash, Some(Duration::ZERO)).is_err() || leash[0].revents != 0 {
        leave();
    }
    match design.scratch {
        None => enter(design, network)?,
        Some(scratch) => {
            let folder = design.sandbox.folder.as_ref().map_or(scratch, Path::new);
            std::env::set_current_dir(folder).map_err(|error| NotBegun::Step(Step::Chdir, error))?;
        }
    }
    ids::give_up_privileges().map_err(setup.refused("capabilities"))?;
    if !design.lacks.landlock {
        restrict(design, executable).map_err(Layer::Landlock.refused("its rules"))?;
    }
    if !design.lacks.filter {
        let is_bare = design.lacks.namespaces && design.sandbox.network != Network::Host;
        let sockets = if is_bare { Sockets::None } else { Sockets::Usual };
        filter::install(sockets).map_err(Layer::Filter.refused("seccomp"))?;
    }
    Ok(())
}

/// Makes what namespaces have in them.
fn enter(design: &Design<'_>, network: Option<Making>) -> Result<(), NotBegun> {
    root::enter(design.sandbox)?;
    network.map_or(Ok(()), Making::enter)?;
    if let Some(door) = design.door {
        proxy::open(door).map_err(|error| NotBegun::Step(Step::Setup, error))?;
    }
    let _ = rustix::system::sethostname(b"sandbox");
    Ok(())
}

fn restrict(design: &Design<'_>, executable: &Executable) -> io::Result<()> {
    match design.scratch {
        None => landlock::restrict(&["/"], &[SCRATCH, "/tmp", "/dev"], executable.opened()),
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
            // SAFETY: nothing of this process uses them any more.
            unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) };
        }
        from = fd.saturating_add(1);
    }
}

/// Waits for all that ends in the sandbox, until the command does.
fn wait_for(command: u32) -> libc::c_int {
    loop {
        let mut status = 0;
        // SAFETY: the pointer is to a local.
        let ended = unsafe { libc::wait(&raw mut status) };
        if ended == command as i32 {
            return status;
        }
        if ended < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            leave();
        }
    }
}

/// Ends, and with it all that is in the sandbox.
fn leave() -> ! {
    // SAFETY: ends the process without running what the runner has registered for its own end.
    unsafe { libc::_exit(SHIM) }
}

pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shim_says_is_understood() {
        let again = |word: Word| Word::read(&word.write());
        assert!(matches!(again(Word::Begun), Some(Word::Begun)));
        let no = || io::Error::from_raw_os_error(libc::EPERM);
        for layer in Layer::ALL {
            let heard = again(Word::Refused(layer, no(), "x".repeat(300)));
            let Some(Word::Refused(again, error, what)) = heard else { panic!("{layer:?}") };
            assert_eq!((again, error.raw_os_error(), what.len()), (layer, Some(libc::EPERM), LONGEST - 5));
        }
        for step in [Step::Clone, Step::Setup, Step::Chdir, Step::Exec] {
            assert!(matches!(again(Word::Step(step, no())), Some(Word::Step(again, _)) if again == step));
        }
        for nonsense in [&b""[..], b"\0", b"\xff\0\0\0\0", b"\x40"] {
            assert!(Word::read(nonsense).is_none());
        }
    }
}
