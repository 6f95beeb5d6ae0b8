//! Queued tasks in warm processes: a real program, its worker and its hosts.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

mod basics;
mod crashes;
mod groups;
mod hostile;
