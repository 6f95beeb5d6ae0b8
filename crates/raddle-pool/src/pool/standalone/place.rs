//! Where each of several workers serves, and where others find it. Pure.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use crate::connection::Address;

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
    match bind {
        Address::Tcp(text) => {
            let (host, first) = split(text);
            if first == 0 {
                return Ok(bind.clone());
            }
            let port = u16::try_from(place).ok().and_then(|place| first.checked_add(place));
            let port =
                port.ok_or_else(|| format!("there are not so many ports from {first} on as there are workers"))?;
            Ok(Address::Tcp(format!("{host}:{port}")))
        }
        Address::Unix(_) | Address::Abstract(_) if place == 0 => Ok(bind.clone()),
        Address::Unix(_) | Address::Abstract(_) => {
            Err(format!("only one worker can serve at {bind}: give a port for several, or one worker"))
        }
    }
}

/// Whether other machines reach it, as far as that can be told without asking anybody.
pub(super) fn is_exposed(bind: &Address) -> bool {
    let Address::Tcp(text) = bind else { return false };
    ip(split(text).0).is_some_and(|ip| !ip.to_canonical().is_loopback())
}

/// Where a worker that serves at `served` is found by this user on this machine.
pub(super) fn nearby(served: &str) -> String {
    let Ok(Address::Tcp(text)) = served.parse() else { return served.to_owned() };
    let (host, port) = split(&text);
    match ip(host) {
        Some(IpAddr::V4(ip)) if ip.is_unspecified() => format!("{}:{port}", Ipv4Addr::LOCALHOST),
        Some(IpAddr::V6(ip)) if ip.is_unspecified() => format!("[{}]:{port}", Ipv6Addr::LOCALHOST),
        _ => text,
    }
}

impl Advertise {
    /// The host, without brackets.
    pub fn host(&self) -> &str {
        self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&self.host)
    }

    /// Whether it goes with where they serve.
    pub(super) fn check(&self, bind: Option<&Address>) -> Result<(), String> {
        match (bind, self.port) {
            (Some(Address::Tcp(text)), Some(_)) if split(text).1 == 0 => Err(format!(
                "'{self}' names a port, and those that the workers serve at are any: give the first with the address they serve at, too"
            )),
            (Some(Address::Tcp(_)), _) => Ok(()),
            _ => Err(format!("nobody finds workers at '{self}' that serve at no port: give an address to serve at")),
        }
    }

    /// Where a worker is found that serves at `served`, if it was to serve at `bind`.
    pub(super) fn of(&self, served: &str, bind: Option<&Address>) -> String {
        let (Ok(Address::Tcp(served_at)), Some(Address::Tcp(bind))) = (served.parse(), bind) else {
            return served.to_owned();
        };
        let (served, first) = (split(&served_at).1, split(bind).1);
        let port = self.port.map_or(served, |port| port.saturating_add(served.saturating_sub(first)));
        format!("{}:{port}", self.host)
    }
}

impl FromStr for Advertise {
    type Err = AdvertiseError;

    fn from_str(text: &str) -> Result<Self, AdvertiseError> {
        let wrong = || AdvertiseError(text.to_owned());
        // An address of version 6 has colons of its own, and stands in brackets when a port follows.
        if let Ok(ip) = text.trim_matches(['[', ']']).parse::<Ipv6Addr>() {
            return if ip.is_unspecified() { Err(wrong()) } else { Ok(Self { host: format!("[{ip}]"), port: None }) };
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?)),
            None => (text, None),
        };
        // As whoever is to find them will read it.
        let is_host = matches!(format!("{host}:1").parse(), Ok(Address::Tcp(_)));
        let is_somewhere = ip(host).is_none_or(|ip| !ip.is_unspecified());
        let is_well_formed = ip(host).is_some() || !host.contains(':');
        let is_one = is_host && is_somewhere && is_well_formed;
        if is_one { Ok(Self { host: host.to_owned(), port }) } else { Err(wrong()) }
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

/// Host and port of what was read as an address.
fn split(text: &str) -> (&str, u16) {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, "0"));
    (host, port.parse().unwrap_or(0))
}

fn ip(host: &str) -> Option<IpAddr> {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).parse().ok()
}
