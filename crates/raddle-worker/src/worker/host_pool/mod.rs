//! The hosts of one program, as their worker keeps them: which attempt runs in which host, when a
//! host is started, replaced or killed, and what follows for the attempts in it.
//!
//! `core` decides without I/O or a clock; `service` carries its effects out; `process` owns one
//! host process and its connection; `side` passes on what an attempt says while it runs.

mod attempts;
mod core;
mod hosts;
mod probe;
mod process;
mod service;
mod side;
#[cfg(test)]
mod tests;

pub use probe::probe;
pub(super) use service::HostPool;
