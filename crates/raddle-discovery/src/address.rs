//! Where a worker serves.

use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr};

/// Where a worker serves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// At a socket in the file system.
    Unix(PathBuf),
    /// At a socket that has a name and no file, and so is gone with its process.
    Abstract(String),
    /// At a port.
    Tcp(String),
}

/// No such address is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no address: use host:port, as 127.0.0.1:7070, unix:/path or unix-abstract:name")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        if let Some(name) = text.strip_prefix("unix-abstract:") {
            // The longest that a name can be is a byte shorter than a path.
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
            Self::Tcp(place) => f.write_str(place),
        }
    }
}

impl Address {
    /// What the system takes for the path of a socket.
    pub fn socket_path(&self) -> Option<PathBuf> {
        match self {
            Self::Unix(path) => Some(path.clone()),
            Self::Abstract(name) => Some(PathBuf::from(format!("\0{name}"))),
            Self::Tcp(_) => None,
        }
    }

    /// Whether it means the same place on all machines.
    pub fn is_the_same_everywhere(&self) -> bool {
        match (self.ip(), self.host()) {
            (Some(ip), _) => !ip.is_unspecified() && !ip.to_canonical().is_loopback(),
            (None, Some(host)) => host != "localhost" && !host.ends_with(".localhost"),
            (None, None) => false,
        }
    }

    /// Whether it means all addresses of a machine: it can be served at, and means another place on each.
    pub fn is_everywhere(&self) -> bool {
        self.ip().is_some_and(|ip| ip.is_unspecified())
    }

    /// Where to connect to, from the machine that it is served at, if it means all addresses of that. Else it is the same.
    pub fn reached_here(self) -> Self {
        match (self.ip(), &self) {
            (Some(ip), Self::Tcp(place)) if ip.is_unspecified() => {
                let port = place.rsplit_once(':').map_or("", |(_, port)| port);
                Self::Tcp(if ip.is_ipv4() {
                    format!("127.0.0.1:{port}")
                } else {
                    format!("[::1]:{port}")
                })
            }
            _ => self,
        }
    }

    /// The IP address of the host, where it is one.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host()?
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse()
            .ok()
    }

    /// The port, where there is one.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(place) => place
                .rsplit_once(':')
                .and_then(|(_, port)| port.parse().ok()),
            Self::Unix(_) | Self::Abstract(_) => None,
        }
    }

    /// The host, where there is one.
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Tcp(place) => place.rsplit_once(':').map(|(host, _)| host),
            Self::Unix(_) | Self::Abstract(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_alike() {
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
                error.starts_with(&format!("'{text}' is no address")),
                "{error}"
            );
        }
    }

    #[test]
    fn addresses_of_one_machine_are_known() {
        for (address, everywhere) in [
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
                address.parse::<Address>().unwrap().is_the_same_everywhere(),
                everywhere,
                "{address}"
            );
        }
    }

    #[test]
    fn what_means_every_address_is_reached_at_one() {
        for (text, there) in [("0.0.0.0:80", "127.0.0.1:80"), ("[::]:80", "[::1]:80")] {
            let address: Address = text.parse().unwrap();
            assert!(address.is_everywhere());
            assert_eq!(address.reached_here().to_string(), there);
        }
        for text in ["10.0.0.1:80", "[fd00::1]:80", "host:80", "unix:/x"] {
            let address: Address = text.parse().unwrap();
            assert!(!address.is_everywhere());
            assert_eq!(address.reached_here().to_string(), text);
        }
    }

    #[test]
    fn a_name_without_a_file_begins_with_nothing() {
        let path = Address::Abstract("a".into()).socket_path().unwrap();
        assert_eq!(path.as_os_str(), "\0a");
    }
}
