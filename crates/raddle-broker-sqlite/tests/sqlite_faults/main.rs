//! Faults of a SQLite database: wrong files, full disks, killed processes, clock jumps.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod clock;
mod disk;
mod files;
mod helper_process;
mod leases;
mod output;
mod processes;
mod purge;
mod support;

#[path = "../common/mod.rs"]
mod common;
