//! A sandbox around a command, for code that nobody trusts.
//!
//! Between the runner and the command stands a *shim*: a fork of the runner in namespaces of its own, where it is process 1. It builds what the
//! command will see, layer by layer, takes every privilege away from itself, starts the command, and waits. When the command ends, so does the
//! shim, and with process 1 the kernel ends whatever is left in there.
//!
//! | layer | file | what it keeps from the command |
//! | --- | --- | --- |
//! | namespaces | `shim.rs`, `network.rs` | other processes, the network, the host's name, shared memory of others |
//! | ids | `ids.rs` | the worker's user, and every other |
//! | root | `root.rs` | every file but the system's, which cannot be written, and two directories in memory |
//! | landlock | `landlock.rs` | writing anywhere else, should the root have a hole |
//! | filter | `filter.rs` | system calls that no command needs and that holes were found in |
//!
//! A layer that the kernel refuses is an error: half a sandbox is none. Only a task that says so is run with what is left of one ([`MissingLayers`]).
//!
//! A task that may reach a few places of the network has a *proxy* besides, outside (`proxy/`).

mod filter;
mod ids;
mod landlock;
mod limits;
mod network;
mod proxy;
mod root;
mod scratch;
mod shim;
mod spawn;

use std::{ffi::CString, fmt, io};

use serde::{Deserialize, Serialize};

pub use ids::NOBODY;
pub use limits::capped;
pub(super) use limits::{MemoryFiles, bounded, rlimits};
pub(super) use root::shows;
pub(crate) use scratch::sweep_scratch;
pub(super) use spawn::{SandboxedChild, spawn};

use super::child::ChildStep;
use crate::message::SandboxConfig;

/// Where a command begins, and may write.
pub(super) const SCRATCH: &str = "/scratch";

/// What the environment of a command begins with: nothing of the worker's.
const ENVIRONMENT: [&std::ffi::CStr; 4] = [
    c"PATH=/usr/local/bin:/usr/bin:/bin",
    c"HOME=/scratch",
    c"TMPDIR=/tmp",
    c"LANG=C.UTF-8",
];
/// Those of them that name a directory.
const DIRECTORYS: [&str; 2] = ["HOME", "TMPDIR"];

/// What a sandbox is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Layer {
    Namespaces,
    Ids,
    Root,
    Privileges,
    Landlock,
    Filter,
}

/// Why there is no sandbox: the layer that was refused, what was tried, and why it could not be done.
#[derive(Debug)]
pub(super) struct SandboxRefused {
    layer: Layer,
    what: String,
    error: io::Error,
}

/// Why a command did not begin.
pub(super) enum StartError {
    Refused(SandboxRefused),
    Step(ChildStep, io::Error),
}

/// The layers that a sandbox does without, because the system refuses them and its task says that it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MissingLayers {
    /// And with them the user and the root, which are nothing without.
    namespaces: bool,
    landlock: bool,
    filter: bool,
}

/// What the environment of an attempt begins with.
pub(super) fn environment(sandbox: &SandboxConfig) -> Vec<CString> {
    let mut variables: Vec<CString> = ENVIRONMENT.map(Into::into).into();
    variables.extend(proxy::environment(&sandbox.network));
    variables
}

impl MissingLayers {
    /// Does without this layer too. Returns whether that makes a difference: if not, there is nothing left to do without.
    fn add(&mut self, layer: Layer) -> bool {
        let lacking = match layer {
            Layer::Namespaces | Layer::Ids | Layer::Root => &mut self.namespaces,
            Layer::Landlock => &mut self.landlock,
            Layer::Filter => &mut self.filter,
            // Every system lets a process give up what it has.
            Layer::Privileges => return false,
        };
        !std::mem::replace(lacking, true)
    }
}

impl Layer {
    fn as_str(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces of its own",
            Self::Ids => "a user of its own",
            Self::Root => "a root of its own",
            Self::Privileges => "to give up privileges",
            Self::Landlock => "landlock",
            Self::Filter => "a filter of system calls",
        }
    }

    /// Names what was tried when something of this layer fails. A shortage is no refusal: a task with `fallback` must not lose a layer because the
    /// system is out of memory, processes or descriptors for a moment.
    fn refused(self, what: impl Into<String>) -> impl FnOnce(io::Error) -> StartError {
        let what = what.into();
        move |error| match error.raw_os_error() {
            Some(libc::ENOMEM | libc::EAGAIN | libc::ENOBUFS | libc::EMFILE | libc::ENFILE) => {
                StartError::Step(ChildStep::Clone, error)
            }
            _ => StartError::Refused(SandboxRefused {
                layer: self,
                what,
                error,
            }),
        }
    }
}

impl fmt::Display for SandboxRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "this system refuses the sandbox {} ({}): {}",
            self.layer.as_str(),
            self.what,
            self.error
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_no_refusal_of_a_layer() {
        let layers = [
            Layer::Namespaces,
            Layer::Ids,
            Layer::Root,
            Layer::Privileges,
            Layer::Landlock,
            Layer::Filter,
        ];
        for layer in layers {
            let fail = |errno| layer.refused("a step")(io::Error::from_raw_os_error(errno));
            for errno in [
                libc::ENOMEM,
                libc::EAGAIN,
                libc::ENOBUFS,
                libc::EMFILE,
                libc::ENFILE,
            ] {
                assert!(
                    matches!(fail(errno), StartError::Step(ChildStep::Clone, _)),
                    "{layer:?} {errno}"
                );
            }
            for errno in [libc::EPERM, libc::ENOSPC, libc::ENOSYS] {
                let StartError::Refused(refused) = fail(errno) else {
                    panic!("{layer:?} {errno}")
                };
                assert_eq!(refused.layer, layer);
            }
        }
    }

    #[test]
    fn what_stands_on_a_layer_goes_with_it_and_privileges_always_go() {
        let mut lacks = MissingLayers::default();
        assert!(lacks.add(Layer::Root));
        assert_eq!(
            lacks,
            MissingLayers {
                namespaces: true,
                ..MissingLayers::default()
            }
        );
        assert!(
            !lacks.add(Layer::Namespaces)
                && !lacks.add(Layer::Ids)
                && !lacks.add(Layer::Privileges)
        );
        assert!(
            lacks.add(Layer::Landlock) && lacks.add(Layer::Filter) && !lacks.add(Layer::Filter)
        );
    }
}
