//! The interface as its clients see it: a real server, a real client, a real broker.

mod api;
mod client;
mod hostile;
mod lifecycle;
mod page_rights;
mod roles;
mod sign_in;
mod tls;
mod world;
