//! What the Redis engine does when its server is not as it should be, or is not there at all.

mod away;
mod forms;
mod proxy;
mod refusals;
mod support;

#[path = "../redis_server/mod.rs"]
mod redis_server;
