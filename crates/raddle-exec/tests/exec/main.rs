//! Attempts with real runners and real processes. Every wait has a deadline, and every test ends by asserting that no process is left.

mod basics;
mod fence;
mod limits;
mod loss;
mod output;
mod reuse;
mod stopping;
mod support;
mod titles;
mod tree;
