//! DNS lookups: from a name to addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    str::FromStr,
};

use futures_util::{StreamExt, stream};
use raddle_dns::resolver::{Name, RData, Record, RecordType, TokioResolver};

/// Largest number of SRV targets.
const MAX_TARGETS: usize = 1024;
/// Concurrent lookups of targets.
const MAX_CONCURRENT: usize = 16;

/// The name to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DnsService {
    /// Fully qualified if it ends with a dot: then search domains are not used.
    name: Name,
    /// The port of the hosts with this name. `None`: the name is a service with SRV records.
    port: Option<u16>,
}

/// A host name and port.
pub(super) type DnsTarget = (Name, u16);

/// The result of a lookup.
#[derive(Debug, Default)]
pub(super) struct DnsLookup {
    /// The addresses of all targets. `None` where the lookup failed.
    pub(super) targets: BTreeMap<DnsTarget, Option<Vec<IpAddr>>>,
    /// The TTL in seconds.
    pub(super) ttl: u32,
    /// The error of one of the failed lookups.
    pub(super) error: Option<String>,
}

/// The preferred address family of a host. The other one is used only if there is no address of
/// this one: a host with both is one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressPreference {
    V4,
    V6,
}

impl AddressPreference {
    fn record_types(self) -> [RecordType; 2] {
        match self {
            Self::V4 => [RecordType::A, RecordType::AAAA],
            Self::V6 => [RecordType::AAAA, RecordType::A],
        }
    }
}

/// Looks a service up.
pub(super) async fn lookup_service(
    resolver: &TokioResolver,
    service: &DnsService,
    prefer: AddressPreference,
) -> Result<DnsLookup, String> {
    let DnsService { name, port } = service;
    if let Some(port) = port {
        let found = lookup_addresses(resolver, name, prefer).await?;
        let ttl = found.as_ref().map_or(0, |found| found.ttl);
        let targets = found.map(|found| ((name.clone(), *port), Some(found.addresses)));
        return Ok(DnsLookup {
            targets: targets.into_iter().collect(),
            ttl,
            error: None,
        });
    }
    let Some(DnsRecords { records, ttl }) = lookup_records(resolver, name, RecordType::SRV).await?
    else {
        return Ok(DnsLookup::default());
    };
    // RFC 2782: the root as target means that the service is not available.
    let targets = records.into_iter().filter_map(|record| match record.data {
        RData::SRV(service) if !service.target.is_root() => Some((service.target, service.port)),
        _ => None,
    });
    let targets: BTreeSet<DnsTarget> = targets.take(MAX_TARGETS).collect();
    let lookups = targets.into_iter().map(|mut target| async move {
        target.0.set_fqdn(true);
        let found = lookup_addresses(resolver, &target.0, prefer).await;
        (target, found)
    });
    let mut lookups = stream::iter(lookups).buffer_unordered(MAX_CONCURRENT);
    let mut result = DnsLookup {
        ttl,
        ..DnsLookup::default()
    };
    while let Some((target, found)) = lookups.next().await {
        let addresses = match found {
            Ok(Some(HostAddresses { addresses, ttl })) => {
                result.ttl = result.ttl.min(ttl);
                Some(addresses)
            }
            Ok(None) => Some(Vec::new()),
            Err(fault) => {
                result.error = Some(fault);
                None
            }
        };
        result.targets.insert(target, addresses);
    }
    Ok(result)
}

/// At least one record of the requested type.
struct DnsRecords {
    records: Vec<Record>,
    ttl: u32,
}

async fn lookup_records(
    resolver: &TokioResolver,
    name: &Name,
    kind: RecordType,
) -> Result<Option<DnsRecords>, String> {
    let found = match resolver.lookup(name.clone(), kind).await {
        Ok(found) => found,
        // NXDOMAIN, or no record of this type.
        Err(error) if error.is_no_records_found() => return Ok(None),
        Err(error) => return Err(format!("{name} {kind}: {error}")),
    };
    // Includes the TTLs of CNAME records.
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

async fn lookup_addresses(
    resolver: &TokioResolver,
    name: &Name,
    prefer: AddressPreference,
) -> Result<Option<HostAddresses>, String> {
    for kind in prefer.record_types() {
        if let Some(DnsRecords { records, ttl }) = lookup_records(resolver, name, kind).await? {
            let addresses = records.iter().filter_map(|record| record.data.ip_addr());
            return Ok(Some(HostAddresses {
                addresses: addresses
                    .filter(|address| is_host_address(*address))
                    .collect(),
                ttl,
            }));
        }
    }
    Ok(None)
}

/// Whether the address can be that of a worker.
fn is_host_address(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && address != IpAddr::from([255; 4])
}

/// Why a name is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ParseServiceError {
    #[error("use host:port, or _service._tcp.name for a name with SRV records")]
    Form,
    #[error("a service name has no port: its SRV records do")]
    Port,
    #[error("this is an address, not a name")]
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
    fn host_and_service_names_are_distinguished() {
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
