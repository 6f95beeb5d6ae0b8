//! Addresses of workers.

use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr};

/// The address that a worker serves at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A socket file.
    Unix(PathBuf),
    /// A socket in the abstract namespace, which has no file and vanishes with its process.
    Abstract(String),
    /// `host:port`.
    Tcp(String),
}

/// The text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid address '{0}': use host:port, as 127.0.0.1:7070, unix:/path or unix-abstract:name"
)]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        if let Some(name) = text.strip_prefix("unix-abstract:") {
            // `sun_path` has 108 bytes, and the name follows a NUL byte.
            return if (1..=106).contains(&name.len()) {
                Ok(Self::Abstract(name.to_owned()))
            } else {
                Err(wrong())
            };
        }
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() {
                Ok(Self::Unix(path))
            } else {
                Err(wrong())
            };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let is_host = !host.is_empty() && !host.contains(['/', '@', ' ']);
        if is_host && port.parse::<u16>().is_ok() {
            Ok(Self::Tcp(text.to_owned()))
        } else {
            Err(wrong())
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Abstract(name) => write!(f, "unix-abstract:{name}"),
            Self::Tcp(host_port) => f.write_str(host_port),
        }
    }
}

impl Address {
    /// The socket path for the system calls; an abstract name follows a NUL byte.
    pub fn socket_path(&self) -> Option<PathBuf> {
        match self {
            Self::Unix(path) => Some(path.clone()),
            Self::Abstract(name) => Some(PathBuf::from(format!("\0{name}"))),
            Self::Tcp(_) => None,
        }
    }

    /// Whether the address means the same worker on every machine.
    pub fn is_global(&self) -> bool {
        match (self.ip(), self.host()) {
            (Some(ip), _) => !ip.is_unspecified() && !ip.to_canonical().is_loopback(),
            (None, Some(host)) => host != "localhost" && !host.ends_with(".localhost"),
            (None, None) => false,
        }
    }

    /// Whether it is a wildcard address: one to listen on, which means another worker on each
    /// machine.
    pub fn is_wildcard(&self) -> bool {
        self.ip().is_some_and(|ip| ip.is_unspecified())
    }

    /// The address to connect to from the worker's own machine: the loopback address for a
    /// wildcard, else unchanged.
    pub fn connect_address(self) -> Self {
        match (self.ip(), &self) {
            (Some(ip), Self::Tcp(host_port)) if ip.is_unspecified() => {
                let port = host_port.rsplit_once(':').map_or("", |(_, port)| port);
                Self::Tcp(if ip.is_ipv4() {
                    format!("127.0.0.1:{port}")
                } else {
                    format!("[::1]:{port}")
                })
            }
            _ => self,
        }
    }

    /// The host, if it is an IP address.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host()?
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse()
            .ok()
    }

    /// The port, if any.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(host_port) => host_port
                .rsplit_once(':')
                .and_then(|(_, port)| port.parse().ok()),
            Self::Unix(_) | Self::Abstract(_) => None,
        }
    }

    /// The host, if any.
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Tcp(host_port) => host_port.rsplit_once(':').map(|(host, _)| host),
            Self::Unix(_) | Self::Abstract(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in [
            "unix:/run/a b.sock",
            "unix-abstract:raddle-1-x",
            "127.0.0.1:80",
            "[::1]:9000",
            "host.example:1",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "unix:",
            "unix:relative",
            "unix-abstract:",
            "host",
            "host:",
            ":80",
            "host:99999",
            "a/b:80",
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("invalid address '{text}'")),
                "{error}"
            );
        }
    }

    #[test]
    fn global_addresses_are_recognised() {
        for (address, is_global) in [
            ("10.0.0.1:1", true),
            ("[fd00::1]:1", true),
            ("worker-7.example:1", true),
            ("127.0.0.2:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("0.0.0.0:1", false),
            ("localhost:1", false),
            ("a.localhost:1", false),
            ("unix:/run/x", false),
            ("unix-abstract:x", false),
        ] {
            assert_eq!(
                address.parse::<Address>().unwrap().is_global(),
                is_global,
                "{address}"
            );
        }
    }

    #[test]
    fn wildcard_address_is_connected_to_at_the_loopback() {
        for (text, expected) in [("0.0.0.0:80", "127.0.0.1:80"), ("[::]:80", "[::1]:80")] {
            let address: Address = text.parse().unwrap();
            assert!(address.is_wildcard());
            assert_eq!(address.connect_address().to_string(), expected);
        }
        for text in ["10.0.0.1:80", "[fd00::1]:80", "host:80", "unix:/x"] {
            let address: Address = text.parse().unwrap();
            assert!(!address.is_wildcard());
            assert_eq!(address.connect_address().to_string(), text);
        }
    }

    #[test]
    fn abstract_socket_path_starts_with_a_nul_byte() {
        let path = Address::Abstract("a".into()).socket_path().unwrap();
        assert_eq!(path.as_os_str(), "\0a");
    }
}
