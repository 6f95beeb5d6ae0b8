//! The worker: claims tasks and runs each in a process of its own.
//!
//! A worker is itself a task. It has an id, an entry in the registry, control queues and a title. Whether it takes tasks as they come or
//! exactly one ([`Options::only`]) is a matter of policy; the code is the same.
//!
//! ```text
//!            claim                 job                    frames
//! broker ───────────► service ───────────► slot (× N) ───────────► runner ──► command
//!    ▲                  │ ▲                  │
//!    │ started, finish  │ └── words ◄────────┼── control queue
//!    └──── ledger ◄─────┴──── outcome ◄──────┘
//!    ▲
//!    └──── pulse (own thread): renews the lease, moves the runners' fence
//! ```
//!
//! What the service does about what it hears is decided in `core`, without I/O or a clock.

mod apart;
mod audit;
mod backlog;
mod bound;
mod chaining;
mod conversation;
mod core;
mod event;
pub(crate) mod hand;
mod keeping;
mod ledger;
mod life;
mod obey;
mod options;
pub(crate) mod pace;
pub(crate) mod pulse;
mod request;
mod service;
mod shutdown;
mod slot;
mod standstill;
mod stopping;
pub(crate) mod words;

pub use apart::{NoMinimum, minimum};
pub(crate) use bound::BEYOND;
pub use bound::Bound;
pub use life::{EndReason, Ended, Worker};
pub use options::{Options, is_local, this_host};
pub use shutdown::Shutdown;
pub use standstill::Standstill;
