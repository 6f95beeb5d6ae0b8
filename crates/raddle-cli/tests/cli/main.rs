//! The command line as people and scripts use it: real processes, each test in its own directory.

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
mod control;
mod database;
#[cfg(feature = "docker")]
mod docker_engine;
mod durability;
mod emergency;
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
#[cfg(feature = "docker")]
mod task_containers;
mod trace;
mod waiting;
mod web;
mod worker;
#[cfg(feature = "docker")]
mod worker_containers;
mod world;
