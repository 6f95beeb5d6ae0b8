//! Where each of several workers serves, and where others find it. Pure.

use std::{fmt, net::Ipv6Addr, str::FromStr};

use raddle_discovery::Address;

/// Where others find workers that serve elsewhere: a host, and perhaps the first of several ports in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertise {
    /// With brackets, if it has to have them.
    host: String,
    port: Option<u16>,
}

/// Nobody can be found there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "nobody is found at '{0}': give a host, as 10.0.0.7, worker.internal or [2001:db8::7], and a port if that is another: 10.0.0.7:7070"
)]
pub struct AdvertiseError(String);

/// Where the worker of this place serves.
pub(super) fn at(bind: &Address, place: usize) -> Result<Address, String> {
    let (host, first) = match (bind.host(), bind.port()) {
        (Some(host), Some(first)) if first > 0 => (host, first),
        (None, _) if place > 0 => {
            return Err(format!(
                "only one worker can serve at {bind}: give a port for several, or one worker"
            ));
        }
        _ => return Ok(bind.clone()),
    };
    let port = u16::try_from(place)
        .ok()
        .and_then(|place| first.checked_add(place));
    let port = port.ok_or_else(|| {
        format!("there are not so many ports from {first} on as there are workers")
    })?;
    Ok(Address::Tcp(format!("{host}:{port}")))
}

/// Whether other machines reach it, as far as that can be told without asking anybody.
pub(super) fn is_exposed(bind: &Address) -> bool {
    bind.ip().is_some_and(|ip| !ip.to_canonical().is_loopback())
}

/// Where a worker that serves at `served` is found by this user on this machine.
pub(super) fn nearby(served: &str) -> String {
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

    /// Whether it goes with where they serve.
    pub(super) fn check(&self, bind: Option<&Address>) -> Result<(), String> {
        match (bind.and_then(Address::port), self.port) {
            (Some(0), Some(_)) => Err(format!(
                "'{self}' names a port, and those that the workers serve at are any: give the first with the address they serve at, too"
            )),
            (Some(_), _) => Ok(()),
            (None, _) => Err(format!(
                "nobody finds workers at '{self}' that serve at no port: give an address to serve at"
            )),
        }
    }

    /// Where a worker is found that serves at `served`, if it was to serve at `bind`.
    pub(super) fn of(&self, served: &str, bind: Option<&Address>) -> String {
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
        // An address of version 6 has colons of its own, and stands in brackets when a port follows.
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
        // As whoever is to find them will read it.
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
