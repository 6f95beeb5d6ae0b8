//! Several hosts on one machine, for tests: each is a network namespace with a cable to a switch, which is a bridge in a namespace of its
//! own. Nothing of it is seen by the machine or by other tests, so that all may use the same names and addresses. Also the one rule for tests that are left
//! out: [`is_root`], [`skip`].
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
//! A host that is dropped ends whatever runs in it. That also happens when the process of the test is killed.
//!
//! What fails is a panic: there is no test without the hosts. It takes root, and the programs `ip`, `nft`, `nsenter` and `unshare`.

mod cable;
mod delay;
mod host;
mod lan;
mod namespace;

pub use self::{cable::Cable, host::Host, lan::Lan};

/// Whether hosts can be made here. In continuous integration it is an error if not.
pub fn can_be_made() -> bool {
    is_root("make hosts")
}

/// Whether this is root, who alone can do this. If not, the test is left out, and that is said; in continuous integration it is an error.
#[track_caller]
pub fn is_root(what: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(&format!("only root can {what}: run the tests as root"));
    }
    is_root
}

/// Says why a test is left out. In continuous integration none is.
#[track_caller]
pub fn skip(why: &str) {
    let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1");
    assert!(!is_ci, "{why}");
    eprintln!("skipped: {why}");
}
