//! A sandbox around a command, for code that nobody trusts.
//!
//! Between the runner and the command stands a *shim*: a fork of the runner in namespaces of its own, where it is process 1. It builds what the
//! command will see, layer by layer, takes every privilege away from itself, starts the command, and waits. When the command ends, so does the
//! shim, and with process 1 the kernel ends whatever is left in there.
//!
//! | layer | file | what it keeps from the command |
//! | --- | --- | --- |
//! | namespaces | `shim.rs` | other processes, the network, the host's name, shared memory of others |
//! | ids | `ids.rs` | the worker's user, and every other |
//! | root | `root.rs` | every file but the system's, which cannot be written, and two folders in memory |
//! | landlock | `landlock.rs` | writing anywhere else, should the root have a hole |
//! | filter | `filter.rs` | system calls that no command needs and that holes were found in |
//!
//! A layer that the kernel refuses is an error: half a sandbox is none.

mod filter;
mod ids;
mod landlock;
mod root;
mod shim;

use std::{fmt, io};

pub(super) use root::shows;
pub(super) use shim::{NotBegun, Witness, spawn};

/// Where a command begins, and may write.
pub(super) const SCRATCH: &str = "/scratch";

/// What the environment of a command begins with: nothing of the worker's.
pub(super) const ENVIRONMENT: [&std::ffi::CStr; 4] =
    [c"PATH=/usr/local/bin:/usr/bin:/bin", c"HOME=/scratch", c"TMPDIR=/tmp", c"LANG=C.UTF-8"];

/// What a sandbox is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Layer {
    Namespaces = 1,
    Ids,
    Root,
    Privileges,
    Landlock,
    Filter,
}

/// Why there is no sandbox: the layer that was refused, what was tried, and why it could not be done.
#[derive(Debug)]
pub(super) struct Refused {
    layer: Layer,
    what: String,
    error: io::Error,
}

impl Layer {
    const ALL: [Self; 6] = [Self::Namespaces, Self::Ids, Self::Root, Self::Privileges, Self::Landlock, Self::Filter];

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

    /// Names what was tried when something of this layer fails.
    fn refused(self, what: impl Into<String>) -> impl FnOnce(io::Error) -> Refused {
        let what = what.into();
        move |error| Refused { layer: self, what, error }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this system refuses the sandbox {} ({}): {}", self.layer.as_str(), self.what, self.error)
    }
}
