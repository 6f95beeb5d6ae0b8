//! Several hosts on one machine, for tests: each is a network namespace with a cable to a switch,
//! which is a bridge in its own namespace. The machine and other tests see nothing of it, so all
//! tests can use the same names and addresses. This crate also holds the one rule for skipped
//! tests: [`is_root`], [`skip`].
//!
//! ```no_run
//! let lan = raddle_testnet::Lan::new();
//! let (one, two) = (lan.host(), lan.host());
//! let mut serving = one.command("my-server").arg(one.ipv4().to_string()).spawn()?;
//! let answer = two.command("my-client").arg(one.ipv4().to_string()).output()?;
//! one.cable().pull();
//! # Ok::<_, std::io::Error>(())
//! ```
//!
//! Dropping a host kills its processes. That also happens when the process of the test is killed.
//!
//! Failures are panics, because no test makes sense without its hosts. Hosts need root, and the
//! programs `ip`, `nft`, `nsenter` and `unshare`.

mod cable;
mod delay;
mod host;
mod lan;
mod namespace;

pub use self::{cable::Cable, host::Host, lan::Lan};

/// Whether hosts can be created here. In continuous integration it is an error if not.
pub fn can_create_hosts() -> bool {
    is_root("make hosts")
}

/// Whether this process is root, which `what` needs. If not, the test is skipped with a message; in
/// continuous integration that is an error.
#[track_caller]
pub fn is_root(what: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(&format!("only root can {what}: run the tests as root"));
    }
    is_root
}

/// Reports why a test is skipped. In continuous integration that is an error.
#[track_caller]
pub fn skip(why: &str) {
    let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1");
    assert!(!is_ci, "{why}");
    eprintln!("skipped: {why}");
}
