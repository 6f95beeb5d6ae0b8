//! Connections to the server that the URL leads to at the moment.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo,
    ProtocolVersion, PushInfo, RedisConnectionInfo, RedisFuture, TlsCertificates,
    aio::MultiplexedConnection,
    io::AsyncDNSResolver,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use tokio::sync::mpsc::UnboundedSender;

use super::{
    failure::{Fault, explain, said},
    url::{Login, RedisAddress, ServerLocation, Tls},
};
use raddle_broker::Error;

/// A server to connect to.
pub(super) struct ServerTarget {
    pub(super) address: RedisAddress,
    /// The cluster node that holds the namespace, if another than the one in the URL. A namespace
    /// is one hash slot, so one node is all there is to know of a cluster.
    node: Mutex<Option<Node>>,
    /// Since when the server is away, for all connections.
    away: Mutex<Option<ServerAway>>,
}

/// An outage of the server.
struct ServerAway {
    since: Instant,
    /// When it was last logged.
    reported: Option<Instant>,
}

/// How often an outage is logged.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Resolves names like the rest of Raddle.
struct NameResolver;

impl AsyncDNSResolver for NameResolver {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        host: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let found = raddle_dns::lookup_host(host, port).await?;
            Ok(Box::new(found.into_iter()) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}

/// Host and port.
pub(super) type Node = (String, u16);

impl ServerTarget {
    pub(super) fn new(address: RedisAddress) -> Result<Arc<Self>, Error> {
        if let Some(tls) = &address.tls {
            // Fails if a provider is installed already, which will do.
            let _ = rustls::crypto::ring::default_provider().install_default();
            // Read now so that a missing file is reported at once. They are read again for each
            // connection.
            certificates(tls)?;
        }
        Ok(Arc::new(Self {
            address,
            node: Mutex::default(),
            away: Mutex::default(),
        }))
    }

    /// Logs that calls wait for the server: once it has been away for `after`, and then once a
    /// minute.
    pub(super) fn report_away(&self, fault: &Fault, after: Duration) {
        let now = Instant::now();
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        let ServerAway { since, reported } = away.get_or_insert(ServerAway {
            since: now,
            reported: None,
        });
        let is_due = reported.map_or(now - *since >= after, |last| now - last >= REPORT_EVERY);
        if is_due {
            *reported = Some(now);
            let seconds = (now - *since).as_secs();
            tracing::warn!(place = %self.address, seconds, error = %fault, "waiting for the broker, which is away");
        }
    }

    /// Logs that the server is back, if its outage was logged.
    pub(super) fn report_back(&self) {
        let away = self
            .away
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(ServerAway {
            since,
            reported: Some(_),
        }) = away
        {
            tracing::warn!(place = %self.address, seconds = since.elapsed().as_secs(), "the broker is back");
        }
    }

    /// Its name in messages.
    pub(super) fn place(&self) -> String {
        self.address.to_string()
    }

    /// A connection for requests, or for blocking reads if it has no response timeout.
    pub(super) async fn connect(
        &self,
        response_timeout: Option<Duration>,
    ) -> Result<MultiplexedConnection, Fault> {
        let client = self.client(ProtocolVersion::RESP2).await?;
        self.open(
            &client,
            self.config().set_response_timeout(response_timeout),
        )
        .await
    }

    /// A connection for subscriptions.
    pub(super) async fn subscriber(
        &self,
        heard: UnboundedSender<PushInfo>,
    ) -> Result<MultiplexedConnection, Fault> {
        let client = self.client(ProtocolVersion::RESP3).await?;
        self.open(&client, self.config().set_push_sender(heard))
            .await
    }

    async fn open(
        &self,
        client: &Client,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, Fault> {
        let connected = client
            .get_multiplexed_async_connection_with_config(&config)
            .await;
        connected.map_err(|error| self.not_connected(&error))
    }

    fn config(&self) -> AsyncConnectionConfig {
        let options = &self.address.options;
        AsyncConnectionConfig::new()
            .set_dns_resolver(NameResolver)
            .set_connection_timeout(Some(options.connect_timeout))
            .set_response_timeout(Some(options.response_timeout))
    }

    async fn client(&self, protocol: ProtocolVersion) -> Result<Client, Fault> {
        let login = &self.address.login;
        let settings = settings(login)
            .set_db(self.address.database)
            .set_lib_name("raddle", env!("CARGO_PKG_VERSION"))
            .set_protocol(protocol);
        match &self.address.place {
            ServerLocation::Unix(path) => {
                self.client_at(ConnectionAddr::Unix(path.clone()), settings)
            }
            ServerLocation::Tcp { host, port } => self.client_of(
                self.node().unwrap_or_else(|| (host.clone(), *port)),
                settings,
            ),
            ServerLocation::Sentinel {
                hosts,
                master,
                login,
            } => self.client_of(self.ask_sentinels(hosts, master, login).await?, settings),
        }
    }

    /// A client for a server on the network.
    fn client_of(
        &self,
        (host, port): Node,
        settings: RedisConnectionInfo,
    ) -> Result<Client, Fault> {
        let addr = match self.address.tls {
            Some(_) => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            },
            None => ConnectionAddr::Tcp(host, port),
        };
        self.client_at(addr, settings)
    }

    fn client_at(
        &self,
        addr: ConnectionAddr,
        settings: RedisConnectionInfo,
    ) -> Result<Client, Fault> {
        // TCP keep-alive: idle connections notice a vanished peer within half a minute.
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(10))
            .with_interval(Duration::from_secs(5))
            .with_retries(4);
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive);
        let explain = |error| self.explain(&error);
        let info = addr
            .into_connection_info()
            .map_err(explain)?
            .set_tcp_settings(tcp)
            .set_redis_settings(settings);
        let client = match &self.address.tls {
            // A file that is being replaced may be there in a moment.
            Some(tls) => Client::build_with_tls(
                info,
                certificates(tls).map_err(|error| Fault::Away(error.to_string()))?,
            ),
            None => Client::open(info),
        };
        client.map_err(explain)
    }

    /// Whether there are sentinels and one of them knows a master, even if the master is gone.
    pub(super) async fn has_master(&self) -> bool {
        match &self.address.place {
            ServerLocation::Sentinel {
                hosts,
                master,
                login,
            } => self.ask_sentinels(hosts, master, login).await.is_ok(),
            _ => false,
        }
    }

    /// Asks one sentinel after another for the master.
    async fn ask_sentinels(
        &self,
        hosts: &[Node],
        master: &str,
        login: &Login,
    ) -> Result<Node, Fault> {
        let mut last = "no sentinel is named".into();
        for node in hosts {
            let ask = async || -> Result<Option<Node>, Fault> {
                let client = self.client_of(node.clone(), settings(login))?;
                let mut connection = self.open(&client, self.config()).await?;
                let mut command = redis::cmd("SENTINEL");
                command.arg("get-master-addr-by-name").arg(master);
                command
                    .query_async(&mut connection)
                    .await
                    .map_err(|error| self.explain(&error))
            };
            let (host, port) = node;
            match ask().await {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => last = format!("the sentinel {host}:{port} knows no master '{master}'"),
                Err(fault) => last = format!("the sentinel {host}:{port}: {fault}"),
            }
        }
        // Retryable: another sentinel may know the master later, or this one may get its password.
        Err(Fault::Away(last))
    }

    /// The node that holds the namespace.
    pub(super) fn node(&self) -> Option<Node> {
        self.node
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Classifies a failure. A redirection (`MOVED`) is remembered for the next connection.
    pub(super) fn explain(&self, error: &redis::RedisError) -> Fault {
        let Some((host, port)) = moved_to(error) else {
            return match explain(error, self.place()) {
                // With replicas or other nodes, one refused connection does not mean that all
                // clients are cut off.
                Fault::Down(reason) if !self.is_alone() => Fault::Away(reason),
                fault => fault,
            };
        };
        let ServerLocation::Tcp { host: asked, .. } = &self.address.place else {
            let fix = "name a node of the cluster, as in redis://HOST:PORT".into();
            return Error::Refused {
                place: self.place(),
                reason: "is one node of a cluster".into(),
                fix,
            }
            .into();
        };
        let mut node = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        // A node that does not know its own address leaves the host empty.
        let host = match host.as_str() {
            "" | "?" => node.take().map_or_else(|| asked.clone(), |(host, _)| host),
            _ => host,
        };
        let reason = format!("the namespace is on another node of the cluster, {host}:{port}");
        *node = Some((host, port));
        Fault::Away(reason)
    }

    /// Whether there is exactly one server for all clients.
    fn is_alone(&self) -> bool {
        !matches!(self.address.place, ServerLocation::Sentinel { .. }) && self.node().is_none()
    }

    /// Forgets a node that is gone: the one in the URL is asked again.
    fn not_connected(&self, error: &redis::RedisError) -> Fault {
        *self.node.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.explain(error)
    }
}

fn settings(login: &Login) -> RedisConnectionInfo {
    let mut settings = RedisConnectionInfo::default();
    if let Some(user) = &login.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &login.password {
        settings = settings.set_password(&password.0);
    }
    settings
}

/// Reads the certificate files.
fn certificates(tls: &Tls) -> Result<TlsCertificates, Error> {
    let read = |path: &PathBuf| std::fs::read(path).map_err(|error| Error::io(path, &error));
    let client_tls = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => Some(ClientTlsConfig {
            client_cert: read(cert)?,
            client_key: read(key)?,
        }),
        _ => None,
    };
    Ok(TlsCertificates {
        client_tls,
        root_cert: tls.ca.as_ref().map(read).transpose()?,
    })
}

/// Parses a redirection: `MOVED 3999 127.0.0.1:6381`.
fn moved_to(error: &redis::RedisError) -> Option<Node> {
    let (_, detail) = said(error).filter(|(code, _)| code == "MOVED")?;
    let (host, port) = detail.split(' ').nth(1)?.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}
