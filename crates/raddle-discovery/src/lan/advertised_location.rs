//! Where a worker is said to be, and where one is believed to be. Pure.

use std::net::{IpAddr, SocketAddr};

use crate::Address;

/// So many addresses of one worker are looked at. Whoever has more has something else in mind.
const MANY: usize = 32;

/// What the user says is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AdvertisedHost {
    pub(super) ip: IpAddr,
    /// That of the worker, if nothing is said.
    pub(super) port: Option<u16>,
}

/// Where a worker is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AdvertisedLocation {
    pub(super) port: u16,
    pub(super) at: LocationKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LocationKind {
    /// At all addresses that the chosen interfaces have, whatever becomes of them; if not `v6`, only those of the old kind.
    Interfaces { v6: bool },
    /// At this one of theirs.
    One(IpAddr),
    /// At one that is not ours.
    Beyond(IpAddr),
}

/// Why nobody on the network can be told where a worker is.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoAddress {
    #[error(
        "it serves at {0}, which other machines cannot reach: have it serve at a port of the network, such as 0.0.0.0:0"
    )]
    Here(String),
    #[error(
        "it serves at {0}, and only an IP address can be published: say which with `advertise`"
    )]
    Name(String),
    #[error("it serves at {0}, and no interface that was chosen has that address ({1})")]
    Unchosen(IpAddr, String),
    #[error(
        "'{0}' cannot be reached by others: use an IP address that is theirs to reach, with or without a port"
    )]
    Literal(String),
}

impl AdvertisedHost {
    /// Reads `10.0.0.1`, `10.0.0.1:7000`, `fd00::1` or `[fd00::1]:7000`.
    pub(super) fn read(text: &str) -> Result<Self, NoAddress> {
        let wrong = || NoAddress::Literal(text.to_owned());
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
    /// Where a worker that serves at this address is to be said to be, on a host whose chosen interfaces have these.
    pub(super) fn of(
        address: &str,
        literal: Option<AdvertisedHost>,
        here: &[IpAddr],
    ) -> Result<Self, NoAddress> {
        let hidden = || NoAddress::Here(address.to_owned());
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
            let at = if here.contains(&literal.ip) {
                LocationKind::One(literal.ip)
            } else {
                LocationKind::Beyond(literal.ip)
            };
            return Ok(Self {
                port: literal.port.unwrap_or(port),
                at,
            });
        }
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let ip: IpAddr = host
            .parse()
            .map_err(|_| NoAddress::Name(address.to_owned()))?;
        let at = match ip {
            // A socket of the new kind is reached by the old as well.
            ip if ip.is_unspecified() => LocationKind::Interfaces { v6: ip.is_ipv6() },
            ip if here.contains(&ip) => LocationKind::One(ip),
            ip if ip.is_loopback() => return Err(hidden()),
            ip => {
                let listed: Vec<_> = here.iter().map(ToString::to_string).collect();
                return Err(NoAddress::Unchosen(ip, listed.join(", ")));
            }
        };
        Ok(Self { port, at })
    }

    /// Whether it is said to be at this address of a chosen interface.
    pub(super) fn has(&self, ip: IpAddr) -> bool {
        match self.at {
            LocationKind::One(one) => ip == one,
            // Whoever is at the end of this road is not there either; but a record has to have some address.
            LocationKind::Interfaces { v6: false } => ip.is_ipv4(),
            LocationKind::Interfaces { v6: true } | LocationKind::Beyond(_) => {
                ip.is_ipv4() || !needs_scope(ip)
            }
        }
    }

    /// Where it is, if that is not where its host is.
    pub(super) fn beyond(&self) -> Option<SocketAddr> {
        match self.at {
            LocationKind::Beyond(ip) => Some(SocketAddr::new(ip, self.port)),
            _ => None,
        }
    }
}

/// Where to call a worker that is said to be there. Each address is said with whether it was heard from this very machine. One that is in use is
/// kept; else it is one of the old kind, if there is one.
pub(super) fn believed(
    said: impl IntoIterator<Item = (IpAddr, bool)>,
    port: u16,
    beyond: Option<SocketAddr>,
    in_use: Option<SocketAddr>,
) -> Option<SocketAddr> {
    if let Some(place) = beyond {
        return Some(place).filter(|place| place.port() > 0 && is_reachable(place.ip(), false));
    }
    let mut said: Vec<_> = said.into_iter().take(MANY + 1).collect();
    if port == 0 || said.len() > MANY {
        return None;
    }
    said.retain(|(ip, is_from_here)| is_reachable(*ip, *is_from_here));
    let places = said
        .into_iter()
        .map(|(ip, _)| SocketAddr::new(ip.to_canonical(), port));
    // Those of the old kind sort first.
    places.min_by_key(|place| (in_use != Some(*place), *place))
}

/// Whether an address means the same place to whoever reads it. To itself each machine is at its own loopback; so who says that he is there
/// has to be this machine.
fn is_reachable(ip: IpAddr, is_from_here: bool) -> bool {
    // `::ffff:127.0.0.1` is 127.0.0.1.
    let ip = ip.to_canonical();
    let is_nowhere = match ip {
        IpAddr::V4(ip) => ip.octets()[0] == 0 || ip.is_broadcast() || ip.octets()[0] >= 240,
        IpAddr::V6(ip) => ip.is_unspecified() || needs_scope(ip.into()),
    };
    !is_nowhere && !ip.is_multicast() && (is_from_here || !ip.is_loopback())
}

/// Whether an address means nothing without the interface that it is at. What is said of workers is passed on, to other processes and machines, where
/// interfaces have other numbers; and no certificate can name such an address.
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
    fn a_worker_is_where_its_interfaces_are_or_where_it_says() {
        let here = [ip("10.0.0.1"), ip("fd00::1"), ip("fe80::1")];
        let of = |address: &str| {
            AdvertisedLocation::of(address, None, &here).map(|place| (place.port, place.at))
        };
        assert_eq!(
            of("0.0.0.0:7"),
            Ok((7, LocationKind::Interfaces { v6: false }))
        );
        assert_eq!(of("[::]:7"), Ok((7, LocationKind::Interfaces { v6: true })));
        assert_eq!(of("10.0.0.1:7"), Ok((7, LocationKind::One(ip("10.0.0.1")))));
        assert_eq!(of("[fd00::1]:7"), Ok((7, LocationKind::One(ip("fd00::1")))));
        for hidden in [
            "unix:/run/x",
            "unix-abstract:x",
            "127.0.0.1:7",
            "[::1]:7",
            "0.0.0.0:0",
        ] {
            assert_eq!(of(hidden), Err(NoAddress::Here(hidden.into())));
        }
        assert_eq!(
            of("host.example:7"),
            Err(NoAddress::Name("host.example:7".into()))
        );
        assert!(matches!(of("10.0.0.2:7"), Err(NoAddress::Unchosen(..))));
        // Who chooses the loopback means it.
        let place = AdvertisedLocation::of("127.0.0.1:7", None, &[ip("127.0.0.1")]);
        assert_eq!(
            place,
            Ok(AdvertisedLocation {
                port: 7,
                at: LocationKind::One(ip("127.0.0.1"))
            })
        );

        let literal = |text: &str| {
            AdvertisedLocation::of(
                "0.0.0.0:7",
                Some(AdvertisedHost::read(text).unwrap()),
                &here,
            )
            .unwrap()
        };
        assert_eq!(
            literal("10.0.0.1"),
            AdvertisedLocation {
                port: 7,
                at: LocationKind::One(ip("10.0.0.1"))
            }
        );
        assert_eq!(
            literal("192.0.2.1:80"),
            AdvertisedLocation {
                port: 80,
                at: LocationKind::Beyond(ip("192.0.2.1"))
            }
        );
        assert_eq!(
            literal("192.0.2.1").beyond(),
            Some("192.0.2.1:7".parse().unwrap())
        );
        assert_eq!(literal("10.0.0.1").beyond(), None);
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
                AdvertisedHost::read(wrong),
                Err(NoAddress::Literal(wrong.into())),
                "{wrong}"
            );
        }
    }

    #[test]
    fn only_what_others_can_use_is_said() {
        let all = ["10.0.0.1", "fd00::1", "fe80::1"].map(ip);
        let said = |at: LocationKind| all.map(|ip| AdvertisedLocation { port: 7, at }.has(ip));
        assert_eq!(
            said(LocationKind::Interfaces { v6: true }),
            [true, true, false]
        );
        assert_eq!(
            said(LocationKind::Interfaces { v6: false }),
            [true, false, false]
        );
        assert_eq!(said(LocationKind::One(all[1])), [false, true, false]);
        assert_eq!(
            said(LocationKind::Beyond(ip("192.0.2.1"))),
            [true, true, false]
        );
    }

    #[test]
    fn what_cannot_be_meant_is_not_believed() {
        let one =
            |text: &str, is_from_here: bool| believed([(ip(text), is_from_here)], 7, None, None);
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
        assert_eq!(believed([(ip("10.0.0.1"), false)], 0, None, None), None);
        let beyond = |text: &str| {
            believed(
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
        assert_eq!(believed(flood, 7, None, None), None);
    }

    #[test]
    fn an_address_that_is_in_use_is_kept() {
        let two = [(ip("fd00::1"), false), (ip("10.0.0.2"), false)];
        let first = believed(two, 7, None, None);
        assert_eq!(first, Some("10.0.0.2:7".parse().unwrap()));
        let three = || two.into_iter().chain([(ip("10.0.0.1"), false)]);
        assert_eq!(believed(three(), 7, None, first), first);
        assert_eq!(
            believed(three(), 7, None, None),
            Some("10.0.0.1:7".parse().unwrap())
        );
        assert_eq!(
            believed(three(), 8, None, first),
            Some("10.0.0.1:8".parse().unwrap()),
            "it is another now"
        );
    }
}
