//! Telling systemd that a service of `Type=notify` is ready, where it has asked to be told.

use std::os::{
    linux::net::SocketAddrExt,
    unix::net::{SocketAddr, UnixDatagram},
};

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
    fn a_place_is_a_path_or_a_name() {
        let path = address("/run/notify".as_ref()).unwrap();
        assert_eq!(path.as_pathname(), Some(std::path::Path::new("/run/notify")));
        assert_eq!(address("@raddle-notify".as_ref()).unwrap().as_abstract_name(), Some(&b"raddle-notify"[..]));
    }
}
