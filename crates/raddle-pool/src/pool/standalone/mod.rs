//! Workers without a pool of their own: a service that keeps them, for durable pools of other programs and machines.
//!
//! [`Options`] say what they are to be, [`Service::run`] keeps them until a [`Shutdown`] is asked for, and a [`Handle`] says how they are meanwhile.
//! Workers are this program again, as those of a pool are, and end with it. One that ends is replaced, at the same port if it had one of its own;
//! those that end again and again are replaced after longer and longer pauses.

mod options;
mod place;
mod published;
mod service;
mod shutdown;
#[cfg(test)]
mod tests;

pub use self::{
    options::Options,
    place::{Advertise, AdvertiseError},
    service::{Ended, Handle, Phase, Service, Standing},
    shutdown::Shutdown,
};
