//! Notifies systemd that a service of `Type=notify` is ready, alive or stopping (sd_notify(3)).

use std::{
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

use tokio::time::{Interval, MissedTickBehavior};

use crate::interrupt::wait_if_some;

/// The variable with the address of the notification socket.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Sends `READY=1`.
pub(crate) fn notify_ready(status: &str) {
    // One line is one assignment.
    notify(&format!("READY=1\nSTATUS={}", status.replace('\n', " ")));
}

/// Sends `STOPPING=1`.
pub(crate) fn notify_stopping() {
    notify("STOPPING=1");
}

/// Sends `WATCHDOG=1`. The service's loop calls it, so it proves that the loop turns.
pub(crate) fn notify_alive() {
    notify("WATCHDOG=1");
}

/// The interval of watchdog notifications, if systemd asks for them.
pub(crate) struct Watchdog(Option<Interval>);

impl Watchdog {
    /// Reads `WATCHDOG_USEC` and `WATCHDOG_PID`.
    pub(crate) fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let interval = watchdog_interval(
            variable("WATCHDOG_USEC").as_deref(),
            variable("WATCHDOG_PID").as_deref(),
            std::process::id(),
        );
        Self(interval.map(|interval| {
            let mut due = tokio::time::interval(interval);
            due.set_missed_tick_behavior(MissedTickBehavior::Delay);
            due
        }))
    }

    /// Waits until the next notification is due; for ever without a watchdog.
    pub(crate) async fn due(&mut self) {
        wait_if_some(self.0.as_mut().map(Interval::tick)).await;
    }
}

/// Half of `WATCHDOG_USEC`, as sd_watchdog_enabled(3) advises.
fn watchdog_interval(usec: Option<&str>, pid: Option<&str>, own_pid: u32) -> Option<Duration> {
    let usec: u64 = usec?.parse().ok().filter(|usec| *usec > 1)?;
    // The variables are inherited: WATCHDOG_PID names the process that they are for.
    let is_ours = pid.is_none_or(|pid| pid.parse() == Ok(own_pid));
    is_ours.then(|| Duration::from_micros(usec / 2))
}

fn notify(message: &str) {
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else {
        return;
    };
    let sent = address(&path)
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address));
    if let Err(error) = sent {
        crate::output::eprint(&format!("cannot notify systemd at {VARIABLE}: {error}"));
    }
}

/// The address of a path, or of an abstract name that begins with '@'.
fn address(path: &std::ffi::OsStr) -> std::io::Result<SocketAddr> {
    match path.as_encoded_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifies_at_half_the_watchdog_interval_of_this_process() {
        assert_eq!(
            watchdog_interval(Some("3000000"), None, 7),
            Some(Duration::from_millis(1500))
        );
        assert_eq!(
            watchdog_interval(Some("3000000"), Some("7"), 7),
            Some(Duration::from_millis(1500))
        );
        assert_eq!(watchdog_interval(Some("3000000"), Some("8"), 7), None);
        for wrong in [None, Some(""), Some("0"), Some("soon"), Some("-1")] {
            assert_eq!(watchdog_interval(wrong, None, 7), None);
        }
    }

    #[test]
    fn an_address_is_a_path_or_an_abstract_name() {
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
