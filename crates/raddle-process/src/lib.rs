//! What a process of Raddle shows of itself: its title in `ps`, and its log on standard error; and whether it can begin at all.
//!
//! This crate knows neither tasks nor workers, so that a program that only calls pools does not build what runs tasks.

mod descriptors;
pub mod log;
pub mod title;

pub use descriptors::check_descriptors;
