//! Routines of a host: a child process in any language that runs the calls of this worker.
//!
//! The worker speaks the [host protocol](raddle_model::host) with it. Arguments and results pass
//! through unread. A worker has one host: when it dies, the worker ends too, so that its callers
//! see that their calls are lost and the pool starts another worker.
//!
//! | file | content |
//! | --- | --- |
//! | `shim.rs` | the start: from standard input to descriptor 3 |
//! | `process.rs` | the process, and the handshake |
//! | `relay.rs` | the calls |
//! | `socket.rs` | writing without a task |

mod process;
mod relay;
mod shim;
mod socket;

pub(super) use self::{
    process::HostProcess,
    relay::{HostCall, HostRelay, end_worker},
    shim::become_host_if_asked,
};
