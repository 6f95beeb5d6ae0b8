//! Process title in `ps`, logging to standard error, and the check for free descriptors at startup.
//!
//! This crate must not depend on tasks or workers, so that a program that only calls pools does not
//! build what runs tasks.

mod descriptors;
pub mod log;
#[cfg(feature = "testing")]
pub mod testing;
pub mod title;

pub use descriptors::check_descriptors;
