//! The sandbox around a command that runs untrusted code.
//!
//! Between the runner and the command is a *shim*: a fork of the runner in new namespaces, where it
//! is process 1. It builds the command's environment layer by layer, drops all its privileges,
//! starts the command, and waits. When the command exits, the shim exits, and with process 1 the
//! kernel kills every process in the namespace.
//!
//! | layer | file | protects |
//! | --- | --- | --- |
//! | namespaces | `shim.rs`, `network.rs` | other processes, the network, the host name, shared memory of others |
//! | ids | `ids.rs` | the worker's user and all others |
//! | root | `root.rs` | all files except those of the operating system, which are read-only, and two directories in memory |
//! | landlock | `landlock.rs` | files outside the writable directories, if the root has a hole |
//! | filter | `filter.rs` | the kernel, from system calls that no command needs and that had vulnerabilities |
//!
//! A layer that the kernel refuses is an error: a partial sandbox counts as none. Only a task that
//! allows it (`isolation_fallback`) runs with the layers that are left ([`MissingLayers`]).
//!
//! A task that may reach listed network endpoints also has an egress *proxy*, outside the sandbox
//! (`proxy/`).

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

pub use ids::OVERFLOW_UID;
pub use limits::cap_limits;
pub(super) use limits::{MemoryFiles, rlimits, with_default_limits};
pub(super) use root::is_visible;
pub(crate) use scratch::sweep_scratch;
pub(super) use spawn::{SandboxedChild, spawn};

use super::child::ChildStep;
use crate::message::SandboxConfig;

/// Working directory of a command, which it may write to.
pub(super) const SCRATCH: &str = "/scratch";

/// Base environment of a command. Nothing of the worker's environment is in it.
const ENVIRONMENT: [&std::ffi::CStr; 4] = [
    c"PATH=/usr/local/bin:/usr/bin:/bin",
    c"HOME=/scratch",
    c"TMPDIR=/tmp",
    c"LANG=C.UTF-8",
];
/// The variables of [`ENVIRONMENT`] that name a directory.
const DIRECTORY_VARIABLES: [&str; 2] = ["HOME", "TMPDIR"];

/// A layer of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Layer {
    Namespaces,
    Ids,
    Root,
    Privileges,
    Landlock,
    Filter,
}

/// Why a sandbox could not be created: the refused layer, the step, and the error.
#[derive(Debug)]
pub(super) struct SandboxRefused {
    layer: Layer,
    what: String,
    error: io::Error,
}

/// Why a command did not start.
pub(super) enum StartError {
    Refused(SandboxRefused),
    Step(ChildStep, io::Error),
}

/// Layers that the sandbox omits, because the kernel refuses them and its task allows that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MissingLayers {
    /// Namespaces, and with them the ids and the root, which need a namespace.
    namespaces: bool,
    landlock: bool,
    filter: bool,
}

/// The base environment of an attempt.
pub(super) fn environment(sandbox: &SandboxConfig) -> Vec<CString> {
    let mut variables: Vec<CString> = ENVIRONMENT.map(Into::into).into();
    variables.extend(proxy::environment(&sandbox.network));
    variables
}

impl MissingLayers {
    /// Omits another layer. Returns whether that changes anything: if not, the sandbox cannot be
    /// created at all.
    fn add(&mut self, layer: Layer) -> bool {
        let lacking = match layer {
            Layer::Namespaces | Layer::Ids | Layer::Root => &mut self.namespaces,
            Layer::Landlock => &mut self.landlock,
            Layer::Filter => &mut self.filter,
            // Every kernel lets a process drop its privileges, so a refusal is a real error.
            Layer::Privileges => return false,
        };
        !std::mem::replace(lacking, true)
    }
}

impl Layer {
    fn as_str(self) -> &'static str {
        match self {
            Self::Namespaces => "its own namespaces",
            Self::Ids => "its own user",
            Self::Root => "its own root",
            Self::Privileges => "to give up privileges",
            Self::Landlock => "landlock",
            Self::Filter => "a system call filter",
        }
    }

    /// Turns an error of this layer into a refusal that names the step. A shortage is not a
    /// refusal: a task with `fallback` must not lose a layer because the kernel is briefly out of
    /// memory, processes or descriptors.
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
    fn treats_a_shortage_not_as_a_refusal() {
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
    fn omits_dependent_layers_and_never_privileges() {
        let mut missing = MissingLayers::default();
        assert!(missing.add(Layer::Root));
        assert_eq!(
            missing,
            MissingLayers {
                namespaces: true,
                ..MissingLayers::default()
            }
        );
        assert!(
            !missing.add(Layer::Namespaces)
                && !missing.add(Layer::Ids)
                && !missing.add(Layer::Privileges)
        );
        assert!(
            missing.add(Layer::Landlock)
                && missing.add(Layer::Filter)
                && !missing.add(Layer::Filter)
        );
    }
}
