//! The HTTP server of Raddle, on axum.
//!
//! [`metrics`] and [`health`] are [`Router`]s, which others can be merged with; [`Server`] serves any. Clients are read as if hostile: connections, heads, and the
//! time of each step are bounded, so that none costs the worker beside which the server runs more than that. Nothing here knows a task.

mod address;
mod routes;
mod server;

pub use address::{Address, AddressError};
pub use axum::Router;
pub use routes::{Readiness, health, metrics};
pub use server::{BindError, Server, Serving};
