//! Standalone workers: a service that keeps workers running for pools of other programs and
//! machines.
//!
//! [`Options`] describe the workers, [`StandaloneService::run`] keeps them running until a
//! [`Shutdown`] is requested, and a [`StandaloneHandle`] reports their status. Workers run this
//! program, as those of a pool do, and end with it. A worker that ends is replaced, on the same
//! port if it has a fixed one; a crash loop is slowed down by exponential backoff.

mod advertise;
mod advertised_publisher;
mod options;
mod service;
mod shutdown;
#[cfg(test)]
mod tests;

pub use self::{
    advertise::{Advertise, AdvertiseError},
    options::Options,
    service::{ServiceEnd, ServicePhase, ServiceStatus, StandaloneHandle, StandaloneService},
    shutdown::Shutdown,
};
