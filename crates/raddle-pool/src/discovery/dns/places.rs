//! From a name to the addresses that it stands for.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    str::FromStr,
};

use futures_util::{StreamExt, stream};

use super::{
    conf::Conf,
    lookup::{Fault, Found, lookup, told},
    message::{Data, Kind},
    name::Name,
};

/// More targets of one service are not looked at.
const MOST_TARGETS: usize = 1024;
/// So many of them are asked for at a time.
const AT_ONCE: usize = 16;

/// What is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Service {
    name: Name,
    /// It is not below any other.
    is_absolute: bool,
    /// Where they serve who have this name. If there is none, the name is that of a service, and says it of each.
    port: Option<u16>,
}

/// A host and a port of it.
pub(super) type Target = (Name, u16);

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// The addresses of all targets. None where nobody could tell.
    pub(super) places: BTreeMap<Target, Option<Vec<IpAddr>>>,
    /// For how many seconds it holds.
    pub(super) ttl: u32,
    /// Why nobody could tell, of one of them.
    pub(super) doubt: Option<Fault>,
}

/// Looks for a service. Of the two kinds of addresses the other one counts only where there is none of the first: who has both would be called twice.
pub(super) async fn look(conf: &Conf, service: &Service, first: Kind) -> Result<Look, Fault> {
    let Service { name, is_absolute, port } = service;
    if let Some(port) = port {
        let found = addresses(conf, name, *is_absolute, first).await?;
        let ttl = found.as_ref().map_or(0, |found| found.ttl);
        let places = found.map(|found| ((name.clone(), *port), Some(found.addresses)));
        return Ok(Look { places: places.into_iter().collect(), ttl, doubt: None });
    }
    let Some(Found { data, ttl, besides }) = lookup(conf, name, *is_absolute, Kind::Service).await? else {
        return Ok(Look::default());
    };
    // A root for a target says that there is none.
    let targets = data.into_iter().filter_map(|data| match data {
        Data::Service { port, target } if !target.is_root() => Some((target, port)),
        _ => None,
    });
    let targets: BTreeSet<Target> = targets.take(MOST_TARGETS).collect();
    let besides = &besides;
    let asking = targets.into_iter().map(|target| async move {
        let found = match told(besides, &target.0, first) {
            Some(told) => Ok(Some(told.into())),
            None => addresses(conf, &target.0, true, first).await,
        };
        (target, found)
    });
    let mut asking = stream::iter(asking).buffer_unordered(AT_ONCE);
    let mut look = Look { ttl, ..Look::default() };
    while let Some((target, found)) = asking.next().await {
        let addresses = match found {
            Ok(Some(Addresses { addresses, ttl })) => {
                look.ttl = look.ttl.min(ttl);
                Some(addresses)
            }
            Ok(None) => Some(Vec::new()),
            Err(fault) => {
                look.doubt = Some(fault);
                None
            }
        };
        look.places.insert(target, addresses);
    }
    Ok(look)
}

struct Addresses {
    addresses: Vec<IpAddr>,
    ttl: u32,
}

async fn addresses(conf: &Conf, name: &Name, is_absolute: bool, first: Kind) -> Result<Option<Addresses>, Fault> {
    let other = if first == Kind::V4 { Kind::V6 } else { Kind::V4 };
    for kind in [first, other] {
        if let Some(found) = lookup(conf, name, is_absolute, kind).await? {
            return Ok(Some(found.into()));
        }
    }
    Ok(None)
}

impl From<Found> for Addresses {
    fn from(found: Found) -> Self {
        let addresses = found.data.into_iter().filter_map(|data| match data {
            Data::Address(address) if is_one_host(address) => Some(address),
            _ => None,
        });
        Self { addresses: addresses.collect(), ttl: found.ttl }
    }
}

/// Nobody serves at the others.
fn is_one_host(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && address != IpAddr::from([255; 4])
}

/// Why something is no name of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotAService {
    #[error("use host:port, or _service._tcp.name for a name that has SRV records")]
    Form,
    #[error("a service has no port: its SRV records say it")]
    Port,
    #[error("this is an address, and not a name")]
    Address,
}

impl FromStr for Service {
    type Err = NotAService;

    fn from_str(text: &str) -> Result<Self, NotAService> {
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (name, Some(port.parse::<u16>().map_err(|_| NotAService::Form)?)),
            None => (text, None),
        };
        match (name.starts_with('_'), port) {
            (true, Some(_)) => return Err(NotAService::Port),
            (false, None | Some(0)) => return Err(NotAService::Form),
            _ => {}
        }
        if name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
            return Err(NotAService::Address);
        }
        let (name, is_absolute) = name.strip_suffix('.').map_or((name, false), |name| (name, true));
        let name = name.parse().map_err(|_| NotAService::Form)?;
        Ok(Self { name, is_absolute, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_hosts_and_of_services_are_told_apart() {
        for (text, name, is_absolute, port) in [
            ("workers:7070", "workers", false, Some(7070)),
            ("w.ns.svc.cluster.local.:1", "w.ns.svc.cluster.local", true, Some(1)),
            ("_raddle._tcp.workers", "_raddle._tcp.workers", false, None),
            ("_raddle._tcp.workers.", "_raddle._tcp.workers", true, None),
        ] {
            assert_eq!(text.parse(), Ok(Service { name: name.parse().unwrap(), is_absolute, port }), "{text}");
        }
        for (text, why) in [
            ("", NotAService::Form),
            ("workers", NotAService::Form),
            ("workers:", NotAService::Form),
            ("workers:0", NotAService::Form),
            ("workers:99999", NotAService::Form),
            ("a b:1", NotAService::Form),
            (":1", NotAService::Form),
            ("..:1", NotAService::Form),
            ("_x._tcp.workers:70", NotAService::Port),
            ("10.0.0.1:70", NotAService::Address),
            ("[::1]:70", NotAService::Address),
        ] {
            assert_eq!(text.parse::<Service>(), Err(why), "{text}");
        }
    }
}
