//! Attempts with real runners and real processes. Every wait has a deadline, and every test ends by
//! asserting that no process is left.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod basics;
mod fence;
mod functions;
mod init;
mod limits;
mod loss;
mod output;
mod reuse;
mod sandbox;
mod stopping;
mod support;
mod titles;
mod tree;
