//! Making connections, to wherever the URL says that the server is at the moment.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, TlsCertificates,
    aio::{MultiplexedConnection, PubSub},
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use super::{
    fault::{Fault, explain, said},
    url::{Address, Place},
};
use crate::Error;

/// A server that can be connected to.
pub(super) struct Target {
    pub(super) address: Address,
    /// The certificate authority's file, read once.
    ca: Option<Vec<u8>>,
    /// The node of a cluster that has the namespace, if the one in the URL has said that it is another. All keys of a namespace are in one
    /// place, so that one node is all there is to know of a cluster.
    node: Mutex<Option<Node>>,
}

/// Host and port.
pub(super) type Node = (String, u16);

impl Target {
    pub(super) fn new(address: Address) -> Result<Arc<Self>, Error> {
        let mut root = None;
        if let Place::Tls { ca, .. } = &address.place {
            // Fails when there is one already: then that one serves.
            let _ = rustls::crypto::ring::default_provider().install_default();
            if let Some(path) = ca {
                root = Some(std::fs::read(path).map_err(|error| Error::io(path, &error))?);
            }
        }
        Ok(Arc::new(Self { address, ca: root, node: Mutex::default() }))
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> String {
        self.address.to_string()
    }

    /// A connection for requests. Without a time for answers, for one that blocks.
    pub(super) async fn connect(&self, answers_within: Option<Duration>) -> Result<MultiplexedConnection, Fault> {
        let timeout = self.address.options.connect_timeout;
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(timeout)).set_response_timeout(answers_within);
        let client = self.client().await?;
        let connected = client.get_multiplexed_async_connection_with_config(&config).await;
        connected.map_err(|error| self.not_connected(&error))
    }

    /// A connection for what others publish.
    pub(super) async fn subscriber(&self) -> Result<PubSub, Fault> {
        let client = self.client().await?;
        let connecting = client.get_async_pubsub();
        match tokio::time::timeout(self.address.options.connect_timeout, connecting).await {
            Ok(connected) => connected.map_err(|error| self.not_connected(&error)),
            Err(_) => Err(Fault::Away("no connection in time".into())),
        }
    }

    async fn client(&self) -> Result<Client, Fault> {
        let addr = match &self.address.place {
            Place::Tcp { host, port } => {
                let (host, port) = self.node().unwrap_or_else(|| (host.clone(), *port));
                ConnectionAddr::Tcp(host, port)
            }
            Place::Tls { host, port, .. } => {
                let (host, port) = self.node().unwrap_or_else(|| (host.clone(), *port));
                ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
            }
            Place::Unix(path) => ConnectionAddr::Unix(path.clone()),
            Place::Sentinel { hosts, master } => self.ask_sentinels(hosts, master).await?,
        };
        let mut settings = RedisConnectionInfo::default()
            .set_db(self.address.database)
            .set_lib_name("raddle", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &self.address.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.address.password {
            settings = settings.set_password(&password.0);
        }
        self.client_at(addr, settings).map_err(|error| self.explain(&error))
    }

    fn client_at(&self, addr: ConnectionAddr, settings: RedisConnectionInfo) -> redis::RedisResult<Client> {
        // A peer that vanished without a word is noticed within half a minute, on connections that are silent by design.
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(10))
            .with_interval(Duration::from_secs(5))
            .with_retries(4);
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        let info = addr.into_connection_info()?.set_tcp_settings(tcp).set_redis_settings(settings);
        match info.addr() {
            ConnectionAddr::TcpTls { .. } => {
                Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert: self.ca.clone() })
            }
            _ => Client::open(info),
        }
    }

    /// Asks one sentinel after another where the master is.
    async fn ask_sentinels(&self, hosts: &[(String, u16)], master: &str) -> Result<ConnectionAddr, Fault> {
        let mut last = Fault::Away("no sentinel is named".into());
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.address.options.connect_timeout))
            .set_response_timeout(Some(self.address.options.response_timeout));
        for (host, port) in hosts {
            let ask = async || -> redis::RedisResult<Option<(String, u16)>> {
                let addr = ConnectionAddr::Tcp(host.clone(), *port);
                let client = self.client_at(addr, RedisConnectionInfo::default())?;
                let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
                redis::cmd("SENTINEL").arg("get-master-addr-by-name").arg(master).query_async(&mut connection).await
            };
            match ask().await {
                Ok(Some((host, port))) => return Ok(ConnectionAddr::Tcp(host, port)),
                Ok(None) => last = Fault::Away(format!("the sentinel {host}:{port} knows no master '{master}'")),
                Err(error) => last = Fault::Away(format!("the sentinel {host}:{port}: {error}")),
            }
        }
        Err(last)
    }

    /// The node that was found to have the namespace.
    pub(super) fn node(&self) -> Option<Node> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What a failure means. One that says where the namespace is now is remembered, and the next connection goes there.
    pub(super) fn explain(&self, error: &redis::RedisError) -> Fault {
        let Some((host, port)) = moved_to(error) else {
            return match explain(error, self.place()) {
                // Where others may stand in for a server, that one is down says little.
                Fault::Down(reason) if !self.is_alone() => Fault::Away(reason),
                fault => fault,
            };
        };
        let (Place::Tcp { host: asked, .. } | Place::Tls { host: asked, .. }) = &self.address.place else {
            let fix = "name a node of the cluster, as in redis://HOST:PORT".into();
            return Error::Refused { place: self.place(), reason: "is one node of a cluster".into(), fix }.into();
        };
        let mut node = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        // A node that does not know its own name leaves it to us.
        let host = match host.as_str() {
            "" | "?" => node.take().map_or_else(|| asked.clone(), |(host, _)| host),
            _ => host,
        };
        let reason = format!("the namespace is at another node of the cluster, {host}:{port}");
        *node = Some((host, port));
        Fault::Away(reason)
    }

    /// Whether there is one server, for all.
    fn is_alone(&self) -> bool {
        !matches!(self.address.place, Place::Sentinel { .. }) && self.node().is_none()
    }

    /// A node that is gone knows nothing: the one in the URL is asked again.
    fn not_connected(&self, error: &redis::RedisError) -> Fault {
        *self.node.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.explain(error)
    }
}

/// Where a node of a cluster says that the namespace is: `MOVED 3999 127.0.0.1:6381`.
fn moved_to(error: &redis::RedisError) -> Option<Node> {
    let (_, detail) = said(error).filter(|(code, _)| code == "MOVED")?;
    let (host, port) = detail.split(' ').nth(1)?.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}
