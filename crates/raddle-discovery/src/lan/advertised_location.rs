//! The location to publish for a worker, and the address to use of a published one. Pure.

use std::net::{IpAddr, SocketAddr};

use crate::Address;

/// Largest number of addresses of a worker; a record with more is refused.
const MAX_ADDRESSES: usize = 32;

/// The host that the user has set for published workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AdvertisedHost {
    pub(super) ip: IpAddr,
    /// Default: the port of the worker.
    pub(super) port: Option<u16>,
}

/// The published location of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AdvertisedLocation {
    pub(super) port: u16,
    pub(super) at: LocationKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LocationKind {
    /// All current addresses of the selected interfaces; without `v6`, only IPv4.
    Interfaces { v6: bool },
    /// This address of a selected interface.
    Address(IpAddr),
    /// An address of another machine, such as a NAT gateway.
    External(IpAddr),
}

/// Why a worker cannot be published.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LocationError {
    #[error(
        "it listens on {0}, which other machines cannot reach: listen on an address of the network, such as 0.0.0.0:0"
    )]
    Unreachable(String),
    #[error("it listens on {0}, and only an IP address can be published: set one with `advertise`")]
    HostName(String),
    #[error("it listens on {0}, and no selected interface has that address ({1})")]
    NotSelected(IpAddr, String),
    #[error(
        "others cannot reach '{0}': give an IP address that they can reach, with or without a port"
    )]
    InvalidLiteral(String),
}

impl AdvertisedHost {
    /// Parses `10.0.0.1`, `10.0.0.1:7000`, `fd00::1` or `[fd00::1]:7000`.
    pub(super) fn parse(text: &str) -> Result<Self, LocationError> {
        let wrong = || LocationError::InvalidLiteral(text.to_owned());
        let (ip, port) = match text.parse() {
            Ok(ip) => (ip, None),
            Err(_) => {
                let place: SocketAddr = text.parse().map_err(|_| wrong())?;
                (place.ip(), Some(place.port()))
            }
        };
        let is_good = is_reachable(ip, false) && port != Some(0);
        if is_good {
            Ok(Self { ip, port })
        } else {
            Err(wrong())
        }
    }
}

impl AdvertisedLocation {
    /// The location of a worker that listens on `address`, on a host whose selected interfaces have
    /// the addresses `local_ips`.
    pub(super) fn resolve(
        address: &str,
        literal: Option<AdvertisedHost>,
        local_ips: &[IpAddr],
    ) -> Result<Self, LocationError> {
        let hidden = || LocationError::Unreachable(address.to_owned());
        let bound = match address.parse() {
            Ok(Address::Tcp(place)) => place,
            _ => return Err(hidden()),
        };
        let (host, port) = bound.rsplit_once(':').ok_or_else(hidden)?;
        let port = port
            .parse()
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(hidden)?;
        if let Some(literal) = literal {
            let at = if local_ips.contains(&literal.ip) {
                LocationKind::Address(literal.ip)
            } else {
                LocationKind::External(literal.ip)
            };
            return Ok(Self {
                port: literal.port.unwrap_or(port),
                at,
            });
        }
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let ip: IpAddr = host
            .parse()
            .map_err(|_| LocationError::HostName(address.to_owned()))?;
        let at = match ip {
            // An IPv6 wildcard socket accepts IPv4 too.
            ip if ip.is_unspecified() => LocationKind::Interfaces { v6: ip.is_ipv6() },
            ip if local_ips.contains(&ip) => LocationKind::Address(ip),
            ip if ip.is_loopback() => return Err(hidden()),
            ip => {
                let listed: Vec<_> = local_ips.iter().map(ToString::to_string).collect();
                return Err(LocationError::NotSelected(ip, listed.join(", ")));
            }
        };
        Ok(Self { port, at })
    }

    /// Whether the address of a selected interface is published.
    pub(super) fn includes(&self, ip: IpAddr) -> bool {
        match self.at {
            LocationKind::Address(one) => ip == one,
            // For `External` the address is wrong, but a service must have one. Readers use the
            // address in the TXT record.
            LocationKind::Interfaces { v6: false } => ip.is_ipv4(),
            LocationKind::Interfaces { v6: true } | LocationKind::External(_) => {
                ip.is_ipv4() || !needs_scope(ip)
            }
        }
    }

    /// The address in the TXT record, if the worker is on another host.
    pub(super) fn external_address(&self) -> Option<SocketAddr> {
        match self.at {
            LocationKind::External(ip) => Some(SocketAddr::new(ip, self.port)),
            _ => None,
        }
    }
}

/// The address to call a published worker at. Each address comes with whether it was received from
/// this machine. The address in use is kept; otherwise an IPv4 one is preferred.
pub(super) fn select_address(
    received: impl IntoIterator<Item = (IpAddr, bool)>,
    port: u16,
    external: Option<SocketAddr>,
    in_use: Option<SocketAddr>,
) -> Option<SocketAddr> {
    if let Some(address) = external {
        return Some(address)
            .filter(|address| address.port() > 0 && is_reachable(address.ip(), false));
    }
    let mut received: Vec<_> = received.into_iter().take(MAX_ADDRESSES + 1).collect();
    if port == 0 || received.len() > MAX_ADDRESSES {
        return None;
    }
    received.retain(|(ip, is_local)| is_reachable(*ip, *is_local));
    let candidates = received
        .into_iter()
        .map(|(ip, _)| SocketAddr::new(ip.to_canonical(), port));
    // IPv4 addresses sort first.
    candidates.min_by_key(|address| (in_use != Some(*address), *address))
}

/// Whether an address means the same host to its reader. A loopback address means the reader's own
/// machine, so it must come from this machine.
fn is_reachable(ip: IpAddr, is_local: bool) -> bool {
    // `::ffff:127.0.0.1` is 127.0.0.1.
    let ip = ip.to_canonical();
    let is_nowhere = match ip {
        IpAddr::V4(ip) => ip.octets()[0] == 0 || ip.is_broadcast() || ip.octets()[0] >= 240,
        IpAddr::V6(ip) => ip.is_unspecified() || needs_scope(ip.into()),
    };
    !is_nowhere && !ip.is_multicast() && (is_local || !ip.is_loopback())
}

/// Whether the address needs a scope id (IPv6 link-local). Addresses are passed on to other
/// processes and machines, where interface numbers differ, and no certificate can contain a scope.
pub(super) fn needs_scope(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn location_follows_the_interfaces_or_the_literal() {
        let here = [ip("10.0.0.1"), ip("fd00::1"), ip("fe80::1")];
        let of = |address: &str| {
            AdvertisedLocation::resolve(address, None, &here).map(|place| (place.port, place.at))
        };
        assert_eq!(
            of("0.0.0.0:7"),
            Ok((7, LocationKind::Interfaces { v6: false }))
        );
        assert_eq!(of("[::]:7"), Ok((7, LocationKind::Interfaces { v6: true })));
        assert_eq!(
            of("10.0.0.1:7"),
            Ok((7, LocationKind::Address(ip("10.0.0.1"))))
        );
        assert_eq!(
            of("[fd00::1]:7"),
            Ok((7, LocationKind::Address(ip("fd00::1"))))
        );
        for hidden in [
            "unix:/run/x",
            "unix-abstract:x",
            "127.0.0.1:7",
            "[::1]:7",
            "0.0.0.0:0",
        ] {
            assert_eq!(of(hidden), Err(LocationError::Unreachable(hidden.into())));
        }
        assert_eq!(
            of("host.example:7"),
            Err(LocationError::HostName("host.example:7".into()))
        );
        assert!(matches!(
            of("10.0.0.2:7"),
            Err(LocationError::NotSelected(..))
        ));
        // A selected loopback is intended.
        let place = AdvertisedLocation::resolve("127.0.0.1:7", None, &[ip("127.0.0.1")]);
        assert_eq!(
            place,
            Ok(AdvertisedLocation {
                port: 7,
                at: LocationKind::Address(ip("127.0.0.1"))
            })
        );

        let literal = |text: &str| {
            AdvertisedLocation::resolve(
                "0.0.0.0:7",
                Some(AdvertisedHost::parse(text).unwrap()),
                &here,
            )
            .unwrap()
        };
        assert_eq!(
            literal("10.0.0.1"),
            AdvertisedLocation {
                port: 7,
                at: LocationKind::Address(ip("10.0.0.1"))
            }
        );
        assert_eq!(
            literal("192.0.2.1:80"),
            AdvertisedLocation {
                port: 80,
                at: LocationKind::External(ip("192.0.2.1"))
            }
        );
        assert_eq!(
            literal("192.0.2.1").external_address(),
            Some("192.0.2.1:7".parse().unwrap())
        );
        assert_eq!(literal("10.0.0.1").external_address(), None);
        for wrong in [
            "",
            "host",
            "host:80",
            "127.0.0.1",
            "[::1]:80",
            "0.0.0.0:80",
            "10.0.0.1:0",
            "fe80::1",
            "224.0.0.1",
        ] {
            assert_eq!(
                AdvertisedHost::parse(wrong),
                Err(LocationError::InvalidLiteral(wrong.into())),
                "{wrong}"
            );
        }
    }

    #[test]
    fn only_usable_addresses_are_published() {
        let all = ["10.0.0.1", "fd00::1", "fe80::1"].map(ip);
        let said = |at: LocationKind| all.map(|ip| AdvertisedLocation { port: 7, at }.includes(ip));
        assert_eq!(
            said(LocationKind::Interfaces { v6: true }),
            [true, true, false]
        );
        assert_eq!(
            said(LocationKind::Interfaces { v6: false }),
            [true, false, false]
        );
        assert_eq!(said(LocationKind::Address(all[1])), [false, true, false]);
        assert_eq!(
            said(LocationKind::External(ip("192.0.2.1"))),
            [true, true, false]
        );
    }

    #[test]
    fn unusable_addresses_are_ignored() {
        let one =
            |text: &str, is_local: bool| select_address([(ip(text), is_local)], 7, None, None);
        for good in ["10.0.0.1", "169.254.3.4", "fd00::1", "2001:db8::1"] {
            assert_eq!(one(good, false), Some(SocketAddr::new(ip(good), 7)));
        }
        let bad = [
            "127.0.0.1",
            "127.1.2.3",
            "::1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "::ffff:0.0.0.0",
            "224.0.0.251",
            "255.255.255.255",
            "240.0.0.1",
            "ff02::fb",
            "fe80::1",
        ];
        for bad in bad {
            assert_eq!(one(bad, false), None, "{bad}");
        }
        assert_eq!(one("127.0.0.1", true), Some("127.0.0.1:7".parse().unwrap()));
        assert_eq!(
            select_address([(ip("10.0.0.1"), false)], 0, None, None),
            None
        );
        let beyond = |text: &str| {
            select_address(
                [(ip("10.0.0.1"), true)],
                7,
                Some(text.parse().unwrap()),
                None,
            )
        };
        assert_eq!(
            beyond("192.0.2.1:80"),
            Some("192.0.2.1:80".parse().unwrap())
        );
        for bad in [
            "127.0.0.1:80",
            "[::1]:80",
            "192.0.2.1:0",
            "[::ffff:127.0.0.1]:80",
        ] {
            assert_eq!(beyond(bad), None, "{bad}");
        }
        let flood = (0..100).map(|n| (IpAddr::from([10, 0, 0, n]), false));
        assert_eq!(select_address(flood, 7, None, None), None);
    }

    #[test]
    fn address_in_use_is_kept() {
        let two = [(ip("fd00::1"), false), (ip("10.0.0.2"), false)];
        let first = select_address(two, 7, None, None);
        assert_eq!(first, Some("10.0.0.2:7".parse().unwrap()));
        let three = || two.into_iter().chain([(ip("10.0.0.1"), false)]);
        assert_eq!(select_address(three(), 7, None, first), first);
        assert_eq!(
            select_address(three(), 7, None, None),
            Some("10.0.0.1:7".parse().unwrap())
        );
        assert_eq!(
            select_address(three(), 8, None, first),
            Some("10.0.0.1:8".parse().unwrap()),
            "the port has changed"
        );
    }
}
