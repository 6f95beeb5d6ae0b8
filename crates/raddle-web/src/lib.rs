//! What Raddle shows over HTTP. So far that is one page of metrics, for which a few hundred lines do: whoever asks is read as if hostile, and
//! costs the worker beside which this runs no more than the bounds below allow.
//!
//! What is on the page is up to the [`Source`]; nothing here knows a task.

mod address;
mod request;
mod server;

pub use address::{Address, AddressError};
pub use server::{BindError, Server, Serving, Source};
