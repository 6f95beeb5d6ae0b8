//! The HTTP server of Raddle, on axum.
//!
//! [`metrics`] and [`health`] are [`Router`]s, which can be merged with others; [`Server`] serves
//! any router. Clients are treated as hostile: connections, request heads and the time of each step
//! are bounded, so that no client slows down the worker beside which the server runs. This crate
//! must not know about tasks.

mod address;
mod routes;
mod server;

pub use address::{Address, AddressError};
pub use axum::Router;
pub use routes::{Readiness, health, metrics};
pub use server::{BindError, Server, Serving};
