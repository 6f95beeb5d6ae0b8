//! From a name to the addresses that it stands for.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    str::FromStr,
};

use futures_util::{StreamExt, stream};
use raddle_dns::resolver::{Name, RData, Record, RecordType, TokioResolver};

/// More targets of one service are not looked at.
const MOST_TARGETS: usize = 1024;
/// So many targets are looked up at a time.
const AT_ONCE: usize = 16;

/// What is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DnsService {
    /// Fully qualified if it ends with a dot: then it is not looked for below others.
    name: Name,
    /// Where the hosts of this name serve. If there is none, the name is that of a service, and its SRV records say it.
    port: Option<u16>,
}

/// A host and a port of it.
pub(super) type DnsTarget = (Name, u16);

/// What was found.
#[derive(Debug, Default)]
pub(super) struct DnsLookup {
    /// The addresses of all targets. None where the look-up failed.
    pub(super) places: BTreeMap<DnsTarget, Option<Vec<IpAddr>>>,
    /// For how many seconds it holds.
    pub(super) ttl: u32,
    /// Why a look-up failed, of one of them.
    pub(super) doubt: Option<String>,
}

/// Which addresses of a host count. The others count only where there is none of these: a host that has both is one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressPreference {
    V4,
    V6,
}

impl AddressPreference {
    fn kinds(self) -> [RecordType; 2] {
        match self {
            Self::V4 => [RecordType::A, RecordType::AAAA],
            Self::V6 => [RecordType::AAAA, RecordType::A],
        }
    }
}

/// Looks for a service.
pub(super) async fn look(
    resolver: &TokioResolver,
    service: &DnsService,
    prefer: AddressPreference,
) -> Result<DnsLookup, String> {
    let DnsService { name, port } = service;
    if let Some(port) = port {
        let found = addresses(resolver, name, prefer).await?;
        let ttl = found.as_ref().map_or(0, |found| found.ttl);
        let places = found.map(|found| ((name.clone(), *port), Some(found.addresses)));
        return Ok(DnsLookup {
            places: places.into_iter().collect(),
            ttl,
            doubt: None,
        });
    }
    let Some(DnsRecords { records, ttl }) = lookup(resolver, name, RecordType::SRV).await? else {
        return Ok(DnsLookup::default());
    };
    // RFC 2782: the root as the target says that the service is not available.
    let targets = records.into_iter().filter_map(|record| match record.data {
        RData::SRV(service) if !service.target.is_root() => Some((service.target, service.port)),
        _ => None,
    });
    let targets: BTreeSet<DnsTarget> = targets.take(MOST_TARGETS).collect();
    let asking = targets.into_iter().map(|mut target| async move {
        target.0.set_fqdn(true);
        let found = addresses(resolver, &target.0, prefer).await;
        (target, found)
    });
    let mut asking = stream::iter(asking).buffer_unordered(AT_ONCE);
    let mut look = DnsLookup {
        ttl,
        ..DnsLookup::default()
    };
    while let Some((target, found)) = asking.next().await {
        let addresses = match found {
            Ok(Some(HostAddresses { addresses, ttl })) => {
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

/// Records of the kind that was asked for, of which there is one at least.
struct DnsRecords {
    records: Vec<Record>,
    ttl: u32,
}

async fn lookup(
    resolver: &TokioResolver,
    name: &Name,
    kind: RecordType,
) -> Result<Option<DnsRecords>, String> {
    let found = match resolver.lookup(name.clone(), kind).await {
        Ok(found) => found,
        // NXDOMAIN, or no record of this kind.
        Err(error) if error.is_no_records_found() => return Ok(None),
        Err(error) => return Err(format!("{name} {kind}: {error}")),
    };
    // With the aliases that lead there.
    let ttl = found
        .answers()
        .iter()
        .map(|record| record.ttl)
        .min()
        .unwrap_or_default();
    let records: Vec<_> = found
        .answers()
        .iter()
        .filter(|record| record.record_type() == kind)
        .cloned()
        .collect();
    Ok((!records.is_empty()).then_some(DnsRecords { records, ttl }))
}

struct HostAddresses {
    addresses: Vec<IpAddr>,
    ttl: u32,
}

async fn addresses(
    resolver: &TokioResolver,
    name: &Name,
    prefer: AddressPreference,
) -> Result<Option<HostAddresses>, String> {
    for kind in prefer.kinds() {
        if let Some(DnsRecords { records, ttl }) = lookup(resolver, name, kind).await? {
            let addresses = records.iter().filter_map(|record| record.data.ip_addr());
            return Ok(Some(HostAddresses {
                addresses: addresses.filter(|address| is_one_host(*address)).collect(),
                ttl,
            }));
        }
    }
    Ok(None)
}

/// Whether a worker can serve there.
fn is_one_host(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && address != IpAddr::from([255; 4])
}

/// Why something is no name of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ParseServiceError {
    #[error("use host:port, or _service._tcp.name for a name that has SRV records")]
    Form,
    #[error("a service has no port: its SRV records say it")]
    Port,
    #[error("this is an address, and not a name")]
    Address,
}

impl FromStr for DnsService {
    type Err = ParseServiceError;

    fn from_str(text: &str) -> Result<Self, ParseServiceError> {
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (
                name,
                Some(port.parse::<u16>().map_err(|_| ParseServiceError::Form)?),
            ),
            None => (text, None),
        };
        match (name.starts_with('_'), port) {
            (true, Some(_)) => return Err(ParseServiceError::Port),
            (false, None | Some(0)) => return Err(ParseServiceError::Form),
            _ => {}
        }
        if name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
            return Err(ParseServiceError::Address);
        }
        let is_plain = name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        let name = Some(name).filter(|name| is_plain && !name.trim_matches('.').is_empty());
        let name = name.and_then(|name| Name::from_ascii(name.to_ascii_lowercase()).ok());
        Ok(Self {
            name: name.ok_or(ParseServiceError::Form)?,
            port,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_hosts_and_of_services_are_told_apart() {
        for (text, name, port) in [
            ("workers:7070", "workers", Some(7070)),
            (
                "W.ns.svc.cluster.local.:1",
                "w.ns.svc.cluster.local.",
                Some(1),
            ),
            ("_raddle._tcp.workers", "_raddle._tcp.workers", None),
            ("_raddle._tcp.workers.", "_raddle._tcp.workers.", None),
        ] {
            let DnsService {
                name: read,
                port: at,
            } = text.parse().unwrap();
            assert_eq!(
                (read.to_string(), read.is_fqdn(), at),
                (name.into(), name.ends_with('.'), port),
                "{text}"
            );
        }
        for (text, why) in [
            ("", ParseServiceError::Form),
            ("workers", ParseServiceError::Form),
            ("workers:", ParseServiceError::Form),
            ("workers:0", ParseServiceError::Form),
            ("workers:99999", ParseServiceError::Form),
            ("a b:1", ParseServiceError::Form),
            (":1", ParseServiceError::Form),
            ("..:1", ParseServiceError::Form),
            ("a..b:1", ParseServiceError::Form),
            ("_x._tcp.workers:70", ParseServiceError::Port),
            ("10.0.0.1:70", ParseServiceError::Address),
            ("[::1]:70", ParseServiceError::Address),
        ] {
            assert_eq!(text.parse::<DnsService>(), Err(why), "{text}");
        }
    }
}
