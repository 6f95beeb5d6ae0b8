//! Listen addresses. Metrics reveal what a machine does and are not encrypted, so addresses other
//! than loopback need an explicit flag.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
};

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(SocketAddr);

/// Why an address is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text is not an address.
    #[error("'{0}' is not an address to listen on: give one like 127.0.0.1:9464 or [::1]:9464")]
    Malformed(String),
    /// Other machines could reach the address.
    #[error(
        "{0} can be reached from other machines, and metrics are not encrypted: listen on 127.0.0.1:{port}, or add {flag} if that network is yours", port = .0.port(), flag = .1
    )]
    Public(SocketAddr, &'static str),
    /// Other machines could reach the address of the operator's interface.
    #[error(
        "{0} can be reached from other machines: serve TLS with --tls-cert and --tls-key, or add --public if that network is yours"
    )]
    Unencrypted(SocketAddr),
}

impl Address {
    /// Returns the address if it is a loopback address or `is_public` allows others. `flag` is the
    /// command-line flag that sets `is_public`, for the error.
    pub fn allowed(self, is_public: bool, flag: &'static str) -> Result<SocketAddr, AddressError> {
        if self.0.ip().to_canonical().is_loopback() || is_public {
            return Ok(self.0);
        }
        Err(AddressError::Public(self.0, flag))
    }

    /// Returns the address of an operator's interface if it is a loopback address or `is_allowed`
    /// allows others.
    pub fn allowed_for_web(self, is_allowed: bool) -> Result<SocketAddr, AddressError> {
        self.allowed(is_allowed, "")
            .map_err(|_| AddressError::Unencrypted(self.0))
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        // Names are not looked up: what a name resolves to is decided elsewhere and may change.
        if let Some(port) = text
            .strip_prefix("localhost:")
            .and_then(|port| port.parse().ok())
        {
            return Ok(Self((IpAddr::V4(Ipv4Addr::LOCALHOST), port).into()));
        }
        text.parse()
            .map(Self)
            .map_err(|_| AddressError::Malformed(text.into()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(text: &str, is_public: bool) -> Result<SocketAddr, AddressError> {
        text.parse::<Address>()?.allowed(is_public, "--public")
    }

    #[test]
    fn allows_only_loopback_by_default() {
        for text in [
            "127.0.0.1:9464",
            "[::1]:1",
            "127.9.9.9:0",
            "localhost:80",
            "[::ffff:127.0.0.1]:5",
        ] {
            assert!(allowed(text, false).is_ok(), "{text}");
        }
        for text in [
            "0.0.0.0:9464",
            "10.0.0.1:1",
            "[::]:9464",
            "[2001:db8::1]:1",
            "[::ffff:10.0.0.1]:5",
        ] {
            let refused = allowed(text, false).unwrap_err().to_string();
            assert!(
                refused.contains("--public") && refused.contains("not encrypted"),
                "{refused}"
            );
            assert!(allowed(text, true).is_ok(), "{text}");
        }
        for text in [
            "",
            "9464",
            ":9464",
            "example.org:80",
            "127.0.0.1",
            "localhost:x",
            "127.0.0.1:99999",
        ] {
            assert!(
                matches!(allowed(text, true), Err(AddressError::Malformed(_))),
                "{text}"
            );
        }
    }
}
