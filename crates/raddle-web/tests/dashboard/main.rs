//! The dashboard: over HTTP, and in a real browser.

#![expect(
    clippy::unwrap_used,
    reason = "in a test, what must be there and is not is a failure"
)]

mod browser;
mod client;
mod driver;
mod pages;
mod site;
