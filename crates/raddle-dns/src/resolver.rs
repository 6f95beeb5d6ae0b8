//! Configures `hickory-resolver` for Raddle.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

pub use hickory_resolver::{
    TokioResolver,
    lookup::Lookup,
    net::NetError,
    proto::rr::{Name, RData, Record, RecordType},
};
use hickory_resolver::{
    config::{
        ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
        ResolverOpts,
    },
    net::runtime::TokioRuntimeProvider,
    system_conf,
};

/// Whether to read `/etc/hosts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostsFile {
    /// Read it before any server is queried.
    Read,
    /// Do not read it.
    Ignore,
}

/// Creates a resolver that queries the servers of `/etc/resolv.conf`. Without that file it queries
/// the name server on localhost, as the C library does.
pub fn from_system(hosts: HostsFile) -> io::Result<TokioResolver> {
    let (mut config, options) = system_conf::read_system_conf().unwrap_or_else(|error| {
        tracing::debug!(%error, "no usable /etc/resolv.conf: using the name server on localhost");
        let server = NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into());
        (
            ResolverConfig::from_parts(None, Vec::new(), vec![server]),
            ResolverOpts::default(),
        )
    });
    // `hickory-resolver` ignores the option `use-vc`.
    if std::fs::read_to_string("/etc/resolv.conf").is_ok_and(|text| wants_tcp(&text)) {
        let servers = config
            .name_servers()
            .iter()
            .map(|server| NameServerConfig::tcp(server.ip))
            .collect();
        config =
            ResolverConfig::from_parts(config.domain().cloned(), config.search().to_vec(), servers);
    }
    build(config, options, hosts)
}

/// Creates a resolver that queries these servers. It applies no search domains.
pub fn from_servers(servers: impl IntoIterator<Item = SocketAddr>) -> io::Result<TokioResolver> {
    let servers = servers
        .into_iter()
        .map(|server| name_server(server.ip(), server.port()));
    let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
    build(config, ResolverOpts::default(), HostsFile::Ignore)
}

fn name_server(ip: IpAddr, port: u16) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
    let connections = connections.map(|mut connection| {
        connection.port = port;
        connection
    });
    NameServerConfig::new(ip, true, connections.into())
}

fn build(
    config: ResolverConfig,
    mut options: ResolverOpts,
    hosts: HostsFile,
) -> io::Result<TokioResolver> {
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.use_hosts_file = if hosts == HostsFile::Read {
        ResolveHosts::Always
    } else {
        ResolveHosts::Never
    };
    let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    builder
        .with_options(options)
        .build()
        .map_err(io::Error::other)
}

/// Returns whether a `resolv.conf` has the option `use-vc`.
fn wants_tcp(text: &str) -> bool {
    let options = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("options"));
    options
        .flat_map(str::split_ascii_whitespace)
        .any(|option| option == "use-vc")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_use_vc() {
        assert!(wants_tcp("nameserver 10.0.0.1\noptions ndots:5 use-vc\n"));
        assert!(!wants_tcp("# options\nsearch use-vc\noptions ndots:5\n"));
    }
}
