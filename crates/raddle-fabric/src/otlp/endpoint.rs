//! Where the collector is.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
};

/// A collector on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub(super) address: SocketAddr,
    /// Where spans are posted to.
    pub(super) path: String,
    text: String,
}

/// Why there is no collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// It is no URL of a collector.
    #[error("'{0}' is not a collector's address: give one like http://127.0.0.1:4318")]
    Malformed(String),
    /// It is elsewhere.
    #[error(
        "'{0}' is not on this machine, and spans are not encrypted here: run a collector on 127.0.0.1, which can send them on with TLS"
    )]
    Elsewhere(String),
}

/// Where collectors take spans, in a URL without a path.
const PATH: &str = "/v1/traces";
/// The port of OTLP over HTTP.
const PORT: u16 = 4318;

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let malformed = || EndpointError::Malformed(without_user(text));
        if text.starts_with("https://") {
            return Err(EndpointError::Elsewhere(without_user(text)));
        }
        let rest = text.strip_prefix("http://").ok_or_else(malformed)?;
        let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        if host.contains('@') || !path.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(malformed());
        }
        let address = address(host).ok_or_else(|| EndpointError::Elsewhere(text.to_owned()))?;
        if !address.ip().to_canonical().is_loopback() {
            return Err(EndpointError::Elsewhere(text.to_owned()));
        }
        let path = if path.trim_end_matches('/').is_empty() { PATH } else { path };
        Ok(Self { address, path: path.to_owned(), text: text.to_owned() })
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Names are not looked up, but for the one that every machine has for itself.
fn address(host: &str) -> Option<SocketAddr> {
    if let Some(port) = host.strip_prefix("localhost") {
        let port = if port.is_empty() { Some(PORT) } else { port.strip_prefix(':')?.parse().ok() };
        return Some((IpAddr::V4(Ipv4Addr::LOCALHOST), port?).into());
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.parse().ok().or_else(|| Some((bare.parse::<IpAddr>().ok()?, PORT).into()))
}

/// A URL may hold a password, which is not to be repeated.
fn without_user(text: &str) -> String {
    match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => format!("{}://…{}", &text[..scheme], &text[at..]),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(String, String), EndpointError> {
        text.parse::<Endpoint>().map(|endpoint| (endpoint.address.to_string(), endpoint.path))
    }

    #[test]
    fn a_collector_is_on_this_machine() {
        let at = |address: &str, path: &str| Ok((address.to_owned(), path.to_owned()));
        assert_eq!(read("http://127.0.0.1:4318"), at("127.0.0.1:4318", "/v1/traces"));
        assert_eq!(read("http://localhost"), at("127.0.0.1:4318", "/v1/traces"));
        assert_eq!(read("http://[::1]:9/x/v1/traces"), at("[::1]:9", "/x/v1/traces"));
        assert_eq!(read("http://127.0.0.1/"), at("127.0.0.1:4318", "/v1/traces"));
        for text in
            ["http://10.0.0.1:4318", "http://collector:4318", "https://127.0.0.1:4318", "http://localhost.evil.org"]
        {
            assert!(matches!(read(text), Err(EndpointError::Elsewhere(_))), "{text}: {:?}", read(text));
        }
        for text in ["", "127.0.0.1:4318", "grpc://127.0.0.1", "http://127.0.0.1/a b", "http://u:geheim@127.0.0.1"] {
            let refused = read(text).unwrap_err();
            assert!(matches!(refused, EndpointError::Malformed(_)), "{text}");
            assert!(!refused.to_string().contains("geheim"), "{refused}");
        }
    }
}
