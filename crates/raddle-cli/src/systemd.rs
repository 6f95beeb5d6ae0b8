//! Telling systemd that a service of `Type=notify` is ready, and that it is alive, where it has asked to be told.

use std::{
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::interrupt::if_any;

/// Where it wants to be told.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Everything serves.
pub(crate) fn ready(status: &str) {
    // A line is a word to it.
    tell(&format!("READY=1\nSTATUS={}", status.replace('\n', " ")));
}

/// It is about to end.
pub(crate) fn stopping() {
    tell("STOPPING=1");
}

/// It is alive: whoever says so goes round its loop.
pub(crate) fn alive() {
    tell("WATCHDOG=1");
}

/// When systemd wants to be told that a service is alive, if it does.
pub(crate) struct Watchdog(Option<Interval>);

impl Watchdog {
    pub(crate) fn of_environment() -> Self {
        let said = |name: &str| std::env::var(name).ok();
        let pause = pause(said("WATCHDOG_USEC").as_deref(), said("WATCHDOG_PID").as_deref(), std::process::id());
        Self(pause.map(|pause| {
            let mut due = interval(pause);
            due.set_missed_tick_behavior(MissedTickBehavior::Delay);
            due
        }))
    }

    /// Returns when it has to be told again; never, if it need not be.
    pub(crate) async fn due(&mut self) {
        if_any(self.0.as_mut().map(Interval::tick)).await;
    }
}

/// How often it has to be told: twice as often as it looks, as it is advised.
fn pause(usec: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    let usec: u64 = usec?.parse().ok().filter(|usec| *usec > 1)?;
    // What is meant for another process has only been inherited.
    let is_meant = pid.is_none_or(|pid| pid.parse() == Ok(own));
    is_meant.then(|| Duration::from_micros(usec / 2))
}

fn tell(words: &str) {
    let Some(place) = std::env::var_os(VARIABLE).filter(|place| !place.is_empty()) else { return };
    let told = address(&place).and_then(|address| UnixDatagram::unbound()?.send_to_addr(words.as_bytes(), &address));
    if let Err(error) = told {
        crate::output::complain(&format!("nobody can be told at {VARIABLE} that this is ready or stops: {error}"));
    }
}

/// A path, or a name without a file, which begins with an '@'.
fn address(place: &std::ffi::OsStr) -> std::io::Result<SocketAddr> {
    match place.as_encoded_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(place),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_is_fed_twice_as_often_as_it_looks_and_only_ones_own() {
        assert_eq!(pause(Some("3000000"), None, 7), Some(Duration::from_millis(1500)));
        assert_eq!(pause(Some("3000000"), Some("7"), 7), Some(Duration::from_millis(1500)));
        assert_eq!(pause(Some("3000000"), Some("8"), 7), None);
        for wrong in [None, Some(""), Some("0"), Some("soon"), Some("-1")] {
            assert_eq!(pause(wrong, None, 7), None);
        }
    }

    #[test]
    fn a_place_is_a_path_or_a_name() {
        let path = address("/run/notify".as_ref()).unwrap();
        assert_eq!(path.as_pathname(), Some(std::path::Path::new("/run/notify")));
        assert_eq!(address("@raddle-notify".as_ref()).unwrap().as_abstract_name(), Some(&b"raddle-notify"[..]));
    }
}
