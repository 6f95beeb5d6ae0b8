//! DNS lookups.
//!
//! A statically linked glibc loads the NSS modules of the host at run time, which is only safe with
//! the same glibc (<https://github.com/rust-lang/rust/issues/100711>). With the feature `resolver`,
//! `hickory-resolver` looks names up: in `/etc/hosts`, then at the servers of `/etc/resolv.conf`.
//! Both files are read for each lookup. Without the feature, the resolver of the C library does.
//!
//! Addresses and `localhost` need no lookup.

#[cfg(feature = "resolver")]
pub mod resolver;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::net::TcpStream;

/// Returns the addresses of a host, each with this port, and at least one. IPv6 addresses may be in
/// brackets.
pub async fn lookup_host(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found: Vec<IpAddr> = match local_addresses(host) {
        Some(known) => known,
        None => lookup(host).await?,
    };
    if found.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{host} has no address"),
        ));
    }
    Ok(found
        .into_iter()
        .map(|ip| SocketAddr::new(ip, port))
        .collect())
}

/// Like [`lookup_host`], for a thread without a runtime.
pub fn lookup_host_blocking(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(lookup_host(host, port))
}

/// Connects to the first address of a host that accepts. The error is that of the first address.
pub async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut first_error = None;
    for address in lookup_host(host, port).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => _ = first_error.get_or_insert(error),
        }
    }
    Err(first_error.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// Returns the addresses of a host that needs no lookup (RFC 6761, section 6.3).
fn local_addresses(host: &str) -> Option<Vec<IpAddr>> {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    if let Ok(ip) = bare.parse() {
        return Some(vec![ip]);
    }
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let is_local = name == "localhost" || name.ends_with(".localhost");
    is_local.then(|| vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()])
}

#[cfg(feature = "resolver")]
async fn lookup(host: &str) -> io::Result<Vec<IpAddr>> {
    let resolver = resolver::from_system(resolver::HostsFile::Read)?;
    let found = resolver.lookup_ip(host).await;
    let found = found.map_err(|error| {
        let kind = if error.is_no_records_found() {
            io::ErrorKind::NotFound
        } else {
            io::ErrorKind::Other
        };
        io::Error::new(kind, format!("cannot look up {host}: {error}"))
    })?;
    Ok(found.iter().collect())
}

#[cfg(not(feature = "resolver"))]
async fn lookup(host: &str) -> io::Result<Vec<IpAddr>> {
    Ok(tokio::net::lookup_host((host, 0))
        .await?
        .map(|address| address.ip())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn resolves_addresses_and_localhost_locally() {
        for (host, shown) in [
            ("10.0.0.1", &["10.0.0.1:7"][..]),
            ("::1", &["[::1]:7"]),
            ("[fd00::1]", &["[fd00::1]:7"]),
            ("localhost", &["127.0.0.1:7", "[::1]:7"]),
            ("a.LocalHost.", &["127.0.0.1:7", "[::1]:7"]),
        ] {
            let found = lookup_host(host, 7).await.unwrap();
            assert_eq!(
                found.iter().map(ToString::to_string).collect::<Vec<_>>(),
                shown,
                "{host}"
            );
        }
    }

    #[test]
    fn blocking_lookup_needs_no_runtime() {
        assert_eq!(
            lookup_host_blocking("127.0.0.1", 1).unwrap(),
            ["127.0.0.1:1".parse().unwrap()]
        );
    }

    #[tokio::test]
    async fn reports_the_error_of_the_first_address() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let error = connect("localhost", port).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
