//! The addresses of standalone workers: where each listens, and where callers find it. Pure.

use std::{fmt, net::Ipv6Addr, str::FromStr};

use raddle_discovery::Address;

/// The public address of workers that listen elsewhere: a host, and optionally the first of
/// consecutive ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertise {
    /// With brackets if it is an IPv6 address.
    host: String,
    port: Option<u16>,
}

/// The text is not a valid public address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid address '{0}': give a host, as 10.0.0.7, worker.internal or [2001:db8::7], with a port if it differs: 10.0.0.7:7070"
)]
pub struct AdvertiseError(String);

/// The address that the worker of this slot listens on.
pub(super) fn listen_address(bind: &Address, slot: usize) -> Result<Address, String> {
    let (host, first) = match (bind.host(), bind.port()) {
        (Some(host), Some(first)) if first > 0 => (host, first),
        (None, _) if slot > 0 => {
            return Err(format!(
                "only one worker can listen on {bind}: give a port for several, or one worker"
            ));
        }
        _ => return Ok(bind.clone()),
    };
    let port = u16::try_from(slot)
        .ok()
        .and_then(|slot| first.checked_add(slot));
    let port =
        port.ok_or_else(|| format!("there are not enough ports from {first} on for all workers"))?;
    Ok(Address::Tcp(format!("{host}:{port}")))
}

/// Whether other machines can connect, as far as the address shows.
pub(super) fn is_exposed(bind: &Address) -> bool {
    bind.ip().is_some_and(|ip| !ip.to_canonical().is_loopback())
}

/// The address at which this user on this machine finds a worker that listens on `served`.
pub(super) fn local_address(served: &str) -> String {
    served.parse::<Address>().map_or_else(
        |_| served.to_owned(),
        |served| served.reached_here().to_string(),
    )
}

impl Advertise {
    /// The host, without brackets.
    pub fn host(&self) -> &str {
        self.host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(&self.host)
    }

    /// Checks the combination with the listening address.
    pub(super) fn check(&self, bind: Option<&Address>) -> Result<(), String> {
        match (bind.and_then(Address::port), self.port) {
            (Some(0), Some(_)) => Err(format!(
                "'{self}' has a port, and the workers listen on any free ones: give the first port in the listening address too"
            )),
            (Some(_), _) => Ok(()),
            (None, _) => Err(format!(
                "workers without a port cannot be found at '{self}': give an address with a port to listen on"
            )),
        }
    }

    /// The public address of a worker that listens on `served`, for a configured address `bind`.
    pub(super) fn public_address(&self, served: &str, bind: Option<&Address>) -> String {
        let served_at = served
            .parse()
            .ok()
            .and_then(|served: Address| served.port());
        let (Some(port), Some(first)) = (served_at, bind.and_then(Address::port)) else {
            return served.to_owned();
        };
        let port = self
            .port
            .map_or(port, |own| own.saturating_add(port.saturating_sub(first)));
        format!("{}:{port}", self.host)
    }
}

impl FromStr for Advertise {
    type Err = AdvertiseError;

    fn from_str(text: &str) -> Result<Self, AdvertiseError> {
        let wrong = || AdvertiseError(text.to_owned());
        // An IPv6 address contains colons, so it is in brackets if a port follows.
        if let Ok(ip) = text.trim_matches(['[', ']']).parse::<Ipv6Addr>() {
            return if ip.is_unspecified() {
                Err(wrong())
            } else {
                Ok(Self {
                    host: format!("[{ip}]"),
                    port: None,
                })
            };
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (
                host,
                Some(
                    port.parse()
                        .ok()
                        .filter(|port| *port > 0)
                        .ok_or_else(wrong)?,
                ),
            ),
            None => (text, None),
        };
        // Parse it as callers will.
        let address = format!("{host}:1")
            .parse::<Address>()
            .map_err(|_| wrong())?;
        let is_well_formed = address.ip().is_some() || !host.contains(':');
        let is_one = address.host().is_some() && is_well_formed && !address.is_everywhere();
        if is_one {
            Ok(Self {
                host: host.to_owned(),
                port,
            })
        } else {
            Err(wrong())
        }
    }
}

impl fmt::Display for Advertise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }
    }
}
