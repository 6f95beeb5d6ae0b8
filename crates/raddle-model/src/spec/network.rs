//! Network policy of an isolated attempt: nothing, everything its host reaches, or a list of
//! endpoints.
//!
//! This module only decides. It must not resolve names or open connections.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, SeqAccess, Visitor},
};

/// Maximum number of endpoints. Each connection is compared with all of them.
const MAX_ENDPOINTS: usize = 256;
/// Maximum length of a DNS name.
const MAX_NAME_LENGTH: usize = 253;

/// Network endpoints that an attempt can reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkPolicy {
    /// Nothing but its own loopback interface.
    #[default]
    None,
    /// Everything its host reaches.
    Host,
    /// These endpoints, through a proxy. Never empty.
    Only(Vec<NetworkEndpoint>),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkEndpoint {
    host: Host,
    port: u16,
}

/// A host: a name in lower case, or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Name(String),
    Address(IpAddr),
}

/// The text is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a network endpoint: write HOST:PORT, as example.org:443")]
pub struct ParseEndpointError(String);

/// The text is not a network policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseNetworkError {
    /// An endpoint is invalid.
    #[error(transparent)]
    Endpoint(#[from] ParseEndpointError),
    /// The list is empty.
    #[error("names no endpoint: say 'none' for no network")]
    Empty,
    /// The list is too long.
    #[error("names more than {MAX_ENDPOINTS} endpoints")]
    TooMany,
}

impl NetworkPolicy {
    /// Returns whether nothing is reachable.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// Creates a policy that allows these endpoints.
    pub fn only(endpoints: Vec<NetworkEndpoint>) -> Result<Self, ParseNetworkError> {
        match endpoints.len() {
            0 => Err(ParseNetworkError::Empty),
            1..=MAX_ENDPOINTS => Ok(Self::Only(endpoints)),
            _ => Err(ParseNetworkError::TooMany),
        }
    }

    /// Returns the listed endpoints.
    pub fn endpoints(&self) -> &[NetworkEndpoint] {
        match self {
            Self::Only(endpoints) => endpoints,
            Self::None | Self::Host => &[],
        }
    }

    /// Returns whether an endpoint is listed.
    pub fn allows(&self, endpoint: &NetworkEndpoint) -> bool {
        self.endpoints().contains(endpoint)
    }

    /// Returns whether a connection to an address that a listed name resolved to is allowed. The
    /// owner of a name can point it at any address, including one of the host's own network, so a
    /// private address must be listed itself.
    pub fn allows_address(&self, address: SocketAddr) -> bool {
        is_public(address.ip())
            || self.allows(&NetworkEndpoint {
                host: Host::Address(address.ip()),
                port: address.port(),
            })
    }
}

impl NetworkEndpoint {
    /// Creates the endpoint of a host and a port.
    pub fn new(host: &str, port: u16) -> Result<Self, ParseEndpointError> {
        let wrong = || ParseEndpointError(format!("{host}:{port}"));
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = match (bare, host.parse()) {
            (Some(bare), _) => Host::Address(IpAddr::V6(bare.parse().map_err(|_| wrong())?)),
            (None, Ok(address)) => Host::Address(address),
            (None, Err(_)) => {
                let name = host.strip_suffix('.').unwrap_or(host);
                let is_name_byte = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
                let is_label = |part: &str| !part.is_empty() && part.bytes().all(is_name_byte);
                if name.len() > MAX_NAME_LENGTH || !name.split('.').all(is_label) {
                    return Err(wrong());
                }
                Host::Name(name.to_ascii_lowercase())
            }
        };
        if port == 0 {
            Err(wrong())
        } else {
            Ok(Self { host, port })
        }
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the host, in the form that resolvers take.
    pub fn host(&self) -> String {
        match &self.host {
            Host::Name(name) => name.clone(),
            Host::Address(address) => address.to_string(),
        }
    }

    /// Returns the address, if the endpoint has one instead of a name.
    pub fn address(&self) -> Option<IpAddr> {
        match self.host {
            Host::Name(_) => None,
            Host::Address(address) => Some(address),
        }
    }
}

/// Returns whether an address is globally routable: not of the host, its local network or its
/// provider.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, d] = address.octets();
    let reserved = match (a, b) {
        // "This network", private, loopback, multicast and reserved.
        (0 | 10 | 127 | 224.., _) => true,
        // Carrier-grade NAT; link-local; private; private; benchmarking.
        (100, 64..=127) | (169, 254) | (172, 16..=31) | (192, 168) | (198, 18 | 19) => true,
        (192, 0) => c == 0 || c == 2,
        (198, 51) => c == 100,
        // Azure's platform address (WireServer), which serves the agents of virtual machines.
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
        // IPv4-mapped, NAT64 and 6to4 addresses.
        (0, 0) if (c, d, e) == (0, 0, 0) && f == 0xffff => embedded(g, h),
        (0x64, 0xff9b) if (c, d, e, f) == (0, 0, 0, 0) => embedded(g, h),
        (0x2002, _) => embedded(b, c),
        // Teredo tunnels hide an address, and documentation addresses denote none.
        (0x2001, 0 | 0xdb8) => false,
        // Global unicast.
        _ => (0x2000..0x4000).contains(&a),
    }
}

impl FromStr for NetworkEndpoint {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Self, ParseEndpointError> {
        let wrong = || ParseEndpointError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        // An IPv6 address must be in brackets; otherwise its end is ambiguous.
        let is_digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        if !is_digits || (host.contains(':') && !host.starts_with('[')) {
            return Err(wrong());
        }
        Self::new(host, port.parse().map_err(|_| wrong())?).map_err(|_| wrong())
    }
}

impl fmt::Display for NetworkEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Name(name) => write!(f, "{name}:{}", self.port),
            Host::Address(address) => SocketAddr::new(*address, self.port).fmt(f),
        }
    }
}

impl FromStr for NetworkPolicy {
    type Err = ParseNetworkError;

    /// Parses the command-line form: `none`, `host`, or comma-separated endpoints.
    fn from_str(text: &str) -> Result<Self, ParseNetworkError> {
        match text {
            "none" => Ok(Self::None),
            "host" => Ok(Self::Host),
            _ => Self::only(
                text.split(',')
                    .map(|endpoint| endpoint.trim().parse())
                    .collect::<Result<_, _>>()?,
            ),
        }
    }
}

impl Serialize for NetworkPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("none"),
            Self::Host => serializer.serialize_str("host"),
            Self::Only(endpoints) => {
                serializer.collect_seq(endpoints.iter().map(ToString::to_string))
            }
        }
    }
}

impl<'de> Deserialize<'de> for NetworkPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NetworkVisitor)
    }
}

struct NetworkVisitor;

impl<'de> Visitor<'de> for NetworkVisitor {
    type Value = NetworkPolicy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"none\", \"host\", or a list of endpoints as [\"example.org:443\"]")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<NetworkPolicy, E> {
        match text {
            "none" => Ok(NetworkPolicy::None),
            "host" => Ok(NetworkPolicy::Host),
            // A single endpoint without a list is more likely a misspelled keyword.
            other => Err(de::Error::invalid_value(de::Unexpected::Str(other), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<NetworkPolicy, A::Error> {
        let mut endpoints = Vec::new();
        while let Some(text) = list.next_element::<String>()? {
            if endpoints.len() == MAX_ENDPOINTS {
                return Err(de::Error::custom(ParseNetworkError::TooMany));
            }
            endpoints.push(text.parse().map_err(de::Error::custom)?);
        }
        NetworkPolicy::only(endpoints).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> NetworkEndpoint {
        text.parse().unwrap()
    }

    #[test]
    fn parses_host_and_port() {
        for (text, shown) in [
            ("example.org:443", "example.org:443"),
            ("Example.ORG.:80", "example.org:80"),
            ("10.0.0.1:5432", "10.0.0.1:5432"),
            ("[::1]:80", "[::1]:80"),
            ("[0:0::1]:80", "[::1]:80"),
        ] {
            assert_eq!(endpoint(text).to_string(), shown);
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
            assert!(text.parse::<NetworkEndpoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn compares_endpoints_in_canonical_form() {
        let network: NetworkPolicy = "example.org:443, 10.0.0.1:80".parse().unwrap();
        assert!(
            network.allows(&endpoint("EXAMPLE.org.:443"))
                && network.allows(&endpoint("10.0.0.1:80"))
        );
        for other in [
            "example.org:80",
            "www.example.org:443",
            "xexample.org:443",
            "10.0.0.1:443",
        ] {
            assert!(!network.allows(&endpoint(other)), "{other}");
        }
    }

    #[test]
    fn names_cannot_resolve_to_private_addresses() {
        let network: NetworkPolicy = "example.org:80,10.0.0.1:80".parse().unwrap();
        let allows_address = |address: &str| network.allows_address(address.parse().unwrap());
        assert!(
            allows_address("93.184.215.14:80")
                && allows_address("[2606:2800::1]:80")
                && allows_address("10.0.0.1:80")
        );
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
            assert!(!allows_address(address), "{address}");
        }
    }

    #[test]
    fn endpoint_lists_are_bounded() {
        let many = |n: usize| vec!["a:1".to_owned(); n].join(",");
        assert!(many(MAX_ENDPOINTS).parse::<NetworkPolicy>().is_ok());
        assert_eq!(
            many(MAX_ENDPOINTS + 1).parse::<NetworkPolicy>(),
            Err(ParseNetworkError::TooMany)
        );
        assert_eq!(
            NetworkPolicy::only(Vec::new()),
            Err(ParseNetworkError::Empty)
        );
    }
}
