//! What Raddle shows over HTTP. So far that is a page of metrics, and whether somebody is ready, for which a few hundred lines do: whoever asks is read as if hostile, and
//! costs the worker beside which this runs no more than the bounds below allow.
//!
//! What is on the page is up to the [`Source`]; nothing here knows a task.

mod address;
mod request;
mod server;

pub use address::{Address, AddressError};
pub use server::{BindError, Readiness, Server, Serving, Source};
