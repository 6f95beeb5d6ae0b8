//! What can happen to a SQLite database: wrong files, full disks, processes that are killed, clocks that are set.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod clock;
mod disk;
mod files;
mod helper;
mod leases;
mod output;
mod processes;
mod purge;
mod support;

#[path = "../common/mod.rs"]
mod common;
