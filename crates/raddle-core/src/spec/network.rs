//! What an attempt that is kept apart reaches of the network: nothing, all that its host does, or a few places by name.
//!
//! Only decisions: nobody is asked for an address here, and nothing is connected.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, SeqAccess, Visitor},
};

/// More than a person lists. Each costs a look for every connection.
const MOST: usize = 256;
/// The longest name that there can be.
const LONGEST_NAME: usize = 253;

/// What an attempt reaches of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Network {
    /// Nothing but itself.
    #[default]
    None,
    /// What its host reaches.
    Host,
    /// These places, through a proxy. Never empty.
    Only(Vec<Place>),
}

/// A place in the network: a host, and a port of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    host: Host,
    port: u16,
}

/// A host, by its name in lower case, or by its address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Name(String),
    Address(IpAddr),
}

/// Why a text names no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a place in the network: write HOST:PORT, as example.org:443")]
pub struct ParsePlaceError(String);

/// Why a text says nothing about the network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseNetworkError {
    /// A place that is none.
    #[error(transparent)]
    Place(#[from] ParsePlaceError),
    /// A list without places.
    #[error("names no place: say 'none' for no network")]
    Empty,
    /// A list that is too long.
    #[error("names more than {MOST} places")]
    TooMany,
}

impl Network {
    /// Whether it is nothing.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// These places.
    pub fn only(places: Vec<Place>) -> Result<Self, ParseNetworkError> {
        match places.len() {
            0 => Err(ParseNetworkError::Empty),
            1..=MOST => Ok(Self::Only(places)),
            _ => Err(ParseNetworkError::TooMany),
        }
    }

    /// Those that are listed.
    pub fn places(&self) -> &[Place] {
        match self {
            Self::Only(places) => places,
            Self::None | Self::Host => &[],
        }
    }

    /// Whether a place is listed.
    pub fn lists(&self, place: &Place) -> bool {
        self.places().contains(place)
    }

    /// Whether an address that a listed name has turned out to mean may be connected to. Whoever owns a name can let it mean any address,
    /// also one of the host's own network. Such an address has to be listed itself.
    pub fn admits(&self, address: SocketAddr) -> bool {
        is_public(address.ip()) || self.lists(&Place { host: Host::Address(address.ip()), port: address.port() })
    }
}

impl Place {
    /// The place of a host and a port.
    pub fn new(host: &str, port: u16) -> Result<Self, ParsePlaceError> {
        let wrong = || ParsePlaceError(format!("{host}:{port}"));
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match (bare, host.parse()) {
            (Some(bare), _) => Host::Address(IpAddr::V6(bare.parse().map_err(|_| wrong())?)),
            (None, Ok(address)) => Host::Address(address),
            (None, Err(_)) => {
                let name = host.strip_suffix('.').unwrap_or(host);
                let of_names = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
                let is_part = |part: &str| !part.is_empty() && part.bytes().all(of_names);
                if name.len() > LONGEST_NAME || !name.split('.').all(is_part) {
                    return Err(wrong());
                }
                Host::Name(name.to_ascii_lowercase())
            }
        };
        if port == 0 { Err(wrong()) } else { Ok(Self { host, port }) }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its host, as those take it who look up addresses.
    pub fn host(&self) -> String {
        match &self.host {
            Host::Name(name) => name.clone(),
            Host::Address(address) => address.to_string(),
        }
    }

    /// Its address, if it is named by one.
    pub fn address(&self) -> Option<IpAddr> {
        match self.host {
            Host::Name(_) => None,
            Host::Address(address) => Some(address),
        }
    }
}

/// Whether an address is one of the public network, and not of a host, its neighbours or its provider.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, d] = address.octets();
    let reserved = match (a, b) {
        // This network, the host itself, and what is not given out or has many readers.
        (0 | 10 | 127 | 224.., _) => true,
        // Shared by customers of a provider; links; private; the providers' own services; measuring.
        (100, 64..=127) | (169, 254) | (172, 16..=31) | (192, 168) | (198, 18 | 19) => true,
        (192, 0) => c == 0 || c == 2,
        (198, 51) => c == 100,
        // What a provider serves its guests' agents at.
        (168, 63) => (c, d) == (129, 16),
        (203, 0) => c == 113,
        _ => false,
    };
    !reserved
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([p, q], [r, s]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(p, q, r, s))
    };
    match (a, b) {
        // Addresses of the older kind, by themselves or behind something that translates.
        (0, 0) if (c, d, e) == (0, 0, 0) && f == 0xffff => embedded(g, h),
        (0x64, 0xff9b) if (c, d, e, f) == (0, 0, 0, 0) => embedded(g, h),
        (0x2002, _) => embedded(b, c),
        // Tunnels hide an address, and documents name none.
        (0x2001, 0 | 0xdb8) => false,
        // All that is given out.
        _ => (0x2000..0x4000).contains(&a),
    }
}

impl FromStr for Place {
    type Err = ParsePlaceError;

    fn from_str(text: &str) -> Result<Self, ParsePlaceError> {
        let wrong = || ParsePlaceError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        // An address with colons stands in brackets: without, nobody can tell where it ends.
        let is_digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        if !is_digits || (host.contains(':') && !host.starts_with('[')) {
            return Err(wrong());
        }
        Self::new(host, port.parse().map_err(|_| wrong())?).map_err(|_| wrong())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Name(name) => write!(f, "{name}:{}", self.port),
            Host::Address(address) => SocketAddr::new(*address, self.port).fmt(f),
        }
    }
}

impl FromStr for Network {
    type Err = ParseNetworkError;

    /// As on a command line: `none`, `host`, or places with commas between them.
    fn from_str(text: &str) -> Result<Self, ParseNetworkError> {
        match text {
            "none" => Ok(Self::None),
            "host" => Ok(Self::Host),
            _ => Self::only(text.split(',').map(|place| place.trim().parse()).collect::<Result<_, _>>()?),
        }
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("none"),
            Self::Host => serializer.serialize_str("host"),
            Self::Only(places) => serializer.collect_seq(places.iter().map(ToString::to_string)),
        }
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NetworkVisitor)
    }
}

struct NetworkVisitor;

impl<'de> Visitor<'de> for NetworkVisitor {
    type Value = Network;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"none\", \"host\", or a list of places as [\"example.org:443\"]")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Network, E> {
        match text {
            "none" => Ok(Network::None),
            "host" => Ok(Network::Host),
            // One place without a list around it is more likely a wrong word.
            other => Err(de::Error::invalid_value(de::Unexpected::Str(other), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Network, A::Error> {
        let mut places = Vec::new();
        while let Some(text) = list.next_element::<String>()? {
            if places.len() == MOST {
                return Err(de::Error::custom(ParseNetworkError::TooMany));
            }
            places.push(text.parse().map_err(de::Error::custom)?);
        }
        Network::only(places).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Place {
        text.parse().unwrap()
    }

    #[test]
    fn a_place_is_a_host_and_a_port() {
        for (text, shown) in [
            ("example.org:443", "example.org:443"),
            ("Example.ORG.:80", "example.org:80"),
            ("10.0.0.1:5432", "10.0.0.1:5432"),
            ("[::1]:80", "[::1]:80"),
            ("[0:0::1]:80", "[::1]:80"),
        ] {
            assert_eq!(place(text).to_string(), shown);
        }
        for text in [
            "",
            "example.org",
            ":80",
            "a:0",
            "a:65536",
            "a:+1",
            "a b:1",
            "::1:80",
            "[a]:1",
            "a/b:1",
            "a:",
            "*:1",
            ".:1",
            "a..b:1",
        ] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_listed_is_listed_however_it_is_written() {
        let network: Network = "example.org:443, 10.0.0.1:80".parse().unwrap();
        assert!(network.lists(&place("EXAMPLE.org.:443")) && network.lists(&place("10.0.0.1:80")));
        for other in ["example.org:80", "www.example.org:443", "xexample.org:443", "10.0.0.1:443"] {
            assert!(!network.lists(&place(other)), "{other}");
        }
    }

    #[test]
    fn a_name_does_not_lead_into_the_hosts_own_network() {
        let network: Network = "example.org:80,10.0.0.1:80".parse().unwrap();
        let admits = |address: &str| network.admits(address.parse().unwrap());
        assert!(admits("93.184.215.14:80") && admits("[2606:2800::1]:80") && admits("10.0.0.1:80"));
        for address in [
            "10.0.0.1:81",
            "10.0.0.2:80",
            "127.0.0.1:80",
            "0.0.0.0:80",
            "169.254.169.254:80",
            "172.16.0.1:80",
            "172.31.255.255:80",
            "192.168.1.1:80",
            "100.64.0.1:80",
            "192.0.0.192:80",
            "224.0.0.1:80",
            "255.255.255.255:80",
            "[::]:80",
            "[::1]:80",
            "[::127.0.0.1]:80",
            "[::ffff:127.0.0.1]:80",
            "[::ffff:10.0.0.2]:80",
            "[64:ff9b::a00:2]:80",
            "[2002:a00:2::1]:80",
            "[2001::1]:80",
            "[fc00::1]:80",
            "[fd12::1]:80",
            "[fe80::1]:80",
            "[ff02::1]:80",
        ] {
            assert!(!admits(address), "{address}");
        }
    }

    #[test]
    fn a_list_has_bounds() {
        let many = |n: usize| vec!["a:1".to_owned(); n].join(",");
        assert!(many(MOST).parse::<Network>().is_ok());
        assert_eq!(many(MOST + 1).parse::<Network>(), Err(ParseNetworkError::TooMany));
        assert_eq!(Network::only(Vec::new()), Err(ParseNetworkError::Empty));
    }
}
