//! The program's side of the queue: routines and handlers, submitting and chaining tasks, waiting
//! for results, and why a task waits. Nothing here runs a worker.

pub mod explain;
pub mod handler;
pub mod host;
pub mod orphan_processes;
pub mod routine;
pub mod schedule;
pub mod text;
pub mod wait;
