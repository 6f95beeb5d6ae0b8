//! Notifies systemd that a service of `Type=notify` is ready, alive or stopping (sd_notify(3)).

use std::{
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::interrupt::if_any;

/// The variable with the address of the notification socket.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Sends `READY=1`.
pub(crate) fn ready(status: &str) {
    // One line is one assignment.
    tell(&format!("READY=1\nSTATUS={}", status.replace('\n', " ")));
}

/// Sends `STOPPING=1`.
pub(crate) fn stopping() {
    tell("STOPPING=1");
}

/// Sends `WATCHDOG=1`. The service's loop calls it, so it proves that the loop turns.
pub(crate) fn alive() {
    tell("WATCHDOG=1");
}

/// The interval of watchdog notifications, if systemd asks for them.
pub(crate) struct Watchdog(Option<Interval>);

impl Watchdog {
    pub(crate) fn of_environment() -> Self {
        let said = |name: &str| std::env::var(name).ok();
        let pause = pause(
            said("WATCHDOG_USEC").as_deref(),
            said("WATCHDOG_PID").as_deref(),
            std::process::id(),
        );
        Self(pause.map(|pause| {
            let mut due = interval(pause);
            due.set_missed_tick_behavior(MissedTickBehavior::Delay);
            due
        }))
    }

    /// Returns when the next notification is due; never, if none is asked for.
    pub(crate) async fn due(&mut self) {
        if_any(self.0.as_mut().map(Interval::tick)).await;
    }
}

/// The interval: half of `WATCHDOG_USEC`, as sd_watchdog_enabled(3) advises.
fn pause(usec: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    let usec: u64 = usec?.parse().ok().filter(|usec| *usec > 1)?;
    // Variables that name another process are only inherited.
    let is_meant = pid.is_none_or(|pid| pid.parse() == Ok(own));
    is_meant.then(|| Duration::from_micros(usec / 2))
}

fn tell(words: &str) {
    let Some(place) = std::env::var_os(VARIABLE).filter(|place| !place.is_empty()) else {
        return;
    };
    let told = address(&place)
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(words.as_bytes(), &address));
    if let Err(error) = told {
        crate::output::eprint(&format!(
            "nobody can be told at {VARIABLE} that this is ready or stops: {error}"
        ));
    }
}

/// A path, or an abstract name that begins with '@'.
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
        assert_eq!(
            pause(Some("3000000"), None, 7),
            Some(Duration::from_millis(1500))
        );
        assert_eq!(
            pause(Some("3000000"), Some("7"), 7),
            Some(Duration::from_millis(1500))
        );
        assert_eq!(pause(Some("3000000"), Some("8"), 7), None);
        for wrong in [None, Some(""), Some("0"), Some("soon"), Some("-1")] {
            assert_eq!(pause(wrong, None, 7), None);
        }
    }

    #[test]
    fn a_place_is_a_path_or_a_name() {
        let path = address("/run/notify".as_ref()).unwrap();
        assert_eq!(
            path.as_pathname(),
            Some(std::path::Path::new("/run/notify"))
        );
        assert_eq!(
            address("@raddle-notify".as_ref())
                .unwrap()
                .as_abstract_name(),
            Some(&b"raddle-notify"[..])
        );
    }
}
