//! The HTTP server of Raddle, on axum.
//!
//! [`router`] is the operator's interface: the API under `/api/v1`, the pages, metrics and health,
//! with sign-in and rights in front of all of them. It knows tasks only through the broker trait
//! and `raddle-view`.
//!
//! [`metrics`] and [`health`] are small [`Router`]s for workers and spawners, which serve nothing
//! else. [`Server`] serves any router. Clients are treated as hostile: connections, request heads
//! and the time of each step are bounded, so that no client slows down the worker beside which the
//! server runs.

mod address;
mod api;
mod app;
mod audit;
pub mod auth;
mod live;
mod options;
mod pages;
mod probe_routes;
mod probes;
mod problem;
mod route;
mod server;
mod state;
#[cfg(test)]
mod tests;
mod tls;
mod web_server;

pub use address::{Address, AddressError};
pub use app::{App, router};
pub use axum::Router;
pub use options::{Options, SignIn};
pub use probes::{Readiness, health, metrics};
pub use server::{BindError, Server, Serving};
pub use tls::{Acceptor, TlsFileError};
pub use web_server::WebServer;

/// The routes of the API and of sign-in as a Markdown table, for the reference.
#[doc(hidden)]
pub use api::reference;
