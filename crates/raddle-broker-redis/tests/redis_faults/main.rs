//! The Redis engine with servers that are wrong, unreachable, replicated or clustered.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod chain;
mod cluster;
mod doctor;
mod index_lists;
mod lost_writes;
mod operator;
mod outages;
mod proxy;
mod refusals;
mod replicas;
mod secure;
mod support;
mod urls;

#[path = "../redis_server/mod.rs"]
mod redis_server;
