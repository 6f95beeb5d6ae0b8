//! What the Redis engine does when its server is not as it should be, or is not there at all, and in company with others.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod away;
mod chain;
mod cluster;
mod doctor;
mod forgotten;
mod forms;
mod lists;
mod proxy;
mod refusals;
mod replicas;
mod secure;
mod support;

#[path = "../redis_server/mod.rs"]
mod redis_server;
