//! The command line as people and scripts use it: real processes in directories of their own.

#![expect(
    clippy::unwrap_used,
    reason = "in a test, what must be there and is not is a failure"
)]

mod agent;
mod bad_input;
mod batch;
mod book;
#[cfg(feature = "tls")]
mod cert;
mod chain;
#[cfg(feature = "kubernetes")]
mod cluster;
#[cfg(feature = "docker")]
#[cfg(feature = "docker")]
mod contained;
#[cfg(feature = "docker")]
mod containers;
mod control;
mod database;
mod durability;
mod emergency;
#[cfg(feature = "docker")]
mod engine;
mod faults;
mod group;
mod handlers;
mod help;
mod json_shapes;
#[cfg(feature = "kubernetes")]
mod kubectl;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod leaks;
mod log;
mod manager;
#[cfg(feature = "kubernetes")]
mod manifests;
mod metrics;
mod orphans;
#[cfg(all(feature = "otlp", feature = "tls"))]
mod otlp;
#[cfg(feature = "pool")]
mod pool;
mod program;
mod queue;
mod recursive;
mod redis;
mod result;
mod run;
mod sandbox;
mod schedule;
mod shape;
mod spawner;
mod submit;
mod trace;
mod waiting;
mod worker;
mod world;
