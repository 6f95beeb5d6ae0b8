//! Workers without a pool of their own: a service that keeps them, for durable pools of other programs and machines.
//!
//! [`Options`] say what they are to be, [`StandaloneService::run`] keeps them until a [`Shutdown`] is asked for, and a [`StandaloneHandle`] says how they are meanwhile.
//! Workers are this program again, as those of a pool are, and end with it. One that ends is replaced, at the same port if it had one of its own;
//! those that end again and again are replaced after longer and longer pauses.

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
