//! What can happen to a SQLite database: wrong files, full disks, processes that are killed, clocks that are set.

mod clock;
mod disk;
mod files;
mod helper;
mod processes;
mod support;
