//! The terminal UI: `raddle top`.
//!
//! It reads the values of `raddle-view` from a broker, without a server between them. `app` decides
//! what a key does, and `draw` shows a state: both are pure. `run` has the terminal, the broker and
//! the clock.

mod action;
mod app;
mod command;
mod draw;
mod line_editor;
mod output;
mod overlay;
mod reader;
mod run;
mod screen;
mod table;
mod terminal;

pub use reader::OverviewData;
pub use run::{Options, print_frame, run};
