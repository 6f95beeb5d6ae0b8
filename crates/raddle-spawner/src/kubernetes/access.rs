//! `ClusterAccess`: the address of the API server, and the credentials for it.

use std::{
    env, fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use hyper::{Uri, http::uri::Authority};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};

use super::super::ClusterConfig;

/// Address of and credentials for the API server.
#[derive(Clone)]
pub struct ClusterAccess {
    pub(super) server: ApiServer,
    /// Read for each call: a cluster issues tokens for an hour, and replaces the file in time.
    token: Option<PathBuf>,
    pub(super) namespace: String,
}

#[derive(Clone)]
pub(super) struct ApiServer {
    pub(super) authority: Authority,
    pub(super) port: u16,
    /// TLS configuration and expected name, unless the connection is unencrypted.
    pub(super) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// Where a pod finds the credentials for its cluster.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";
const DEFAULT_NAMESPACE: &str = "default";
/// No token is nearly as long.
const MAX_TOKEN: usize = 64 << 10;

impl ClusterAccess {
    /// Access as configured, or as for a pod of the cluster. Relative paths start at `base`. The
    /// error names the key and what is wrong.
    pub fn find(cluster: &ClusterConfig, base: &Path) -> Result<Self, String> {
        let account = Path::new(ACCOUNT);
        let given = |path: &Option<PathBuf>| path.as_ref().map(|path| base.join(path));
        let (url, ca, token) = match &cluster.server {
            Some(url) => (
                url.clone(),
                given(&cluster.ca_file),
                given(&cluster.token_file),
            ),
            None => (
                cluster_url()?,
                Some(given(&cluster.ca_file).unwrap_or_else(|| account.join("ca.crt"))),
                Some(given(&cluster.token_file).unwrap_or_else(|| account.join("token"))),
            ),
        };
        let own = || {
            fs::read_to_string(account.join("namespace"))
                .ok()
                .filter(|_| cluster.server.is_none())
        };
        let own = || own().map(|name| name.trim().to_owned());
        let namespace = cluster
            .namespace
            .clone()
            .or_else(own)
            .unwrap_or_else(|| DEFAULT_NAMESPACE.into());
        Ok(Self {
            server: ApiServer::parse(&url, ca.as_deref(), token.is_some())?,
            token,
            namespace,
        })
    }

    /// The token, if there is one.
    pub(super) fn token(&self) -> io::Result<Option<String>> {
        let Some(path) = &self.token else {
            return Ok(None);
        };
        let wrong =
            |reason: &str| io::Error::other(format!("the token in {}: {reason}", path.display()));
        let token = fs::read_to_string(path).map_err(|error| wrong(&error.to_string()))?;
        let token = token.trim();
        if token.is_empty()
            || token.len() > MAX_TOKEN
            || !token.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(wrong("the file has no token"));
        }
        Ok(Some(token.to_owned()))
    }
}

fn cluster_url() -> Result<String, String> {
    let var = |name| env::var(name).ok().filter(|value| !value.is_empty());
    match (var(HOST), var(PORT)) {
        (Some(host), port) => {
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            Ok(format!("https://{host}:{}", port.unwrap_or_else(|| "443".into())))
        }
        _ => Err("at 'spawner.kubernetes.server': this is no pod of a cluster, and no API server is configured: 'kubectl proxy' makes \
                  one at http://127.0.0.1:8001"
            .into()),
    }
}

impl ApiServer {
    fn parse(url: &str, ca: Option<&Path>, has_token: bool) -> Result<Self, String> {
        let wrong = |reason: &str| format!("at 'spawner.kubernetes.server': {reason}");
        let no_url = || wrong("it is no URL: give https://HOST:PORT");
        let uri: Uri = url.parse().map_err(|_| no_url())?;
        let (scheme, authority) = uri.scheme_str().zip(uri.authority()).ok_or_else(no_url)?;
        if authority.as_str().contains('@') || uri.path_and_query().is_some_and(|path| path != "/")
        {
            return Err(wrong(
                "give https://HOST:PORT and nothing else; credentials go into token_file",
            ));
        }
        let (host, port) = (
            authority.host().trim_matches(['[', ']']),
            authority.port_u16(),
        );
        if port.is_none() && authority.as_str() != authority.host() {
            return Err(wrong("it names no host and port"));
        }
        let tls = match scheme {
            "https" => Some(tls_config(host, ca)?),
            "http" if has_token => {
                return Err(wrong("a token must not be sent unencrypted: use https"));
            }
            "http" if is_loopback(host) => None,
            "http" => {
                return Err(wrong(
                    "http is for a server on this machine, as 'kubectl proxy' is: use https",
                ));
            }
            _ => return Err(wrong("it is no URL: give https://HOST:PORT")),
        };
        let port = port.unwrap_or(if tls.is_some() { 443 } else { 80 });
        Ok(Self {
            authority: authority.clone(),
            port,
            tls,
        })
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// TLS configuration that trusts the CA certificate in this file only.
fn tls_config(
    host: &str,
    ca: Option<&Path>,
) -> Result<(Arc<ClientConfig>, ServerName<'static>), String> {
    let wrong =
        |reason: &dyn std::fmt::Display| format!("at 'spawner.kubernetes.ca_file': {reason}");
    let path = ca.ok_or_else(|| wrong(&"it is needed to verify the server"))?;
    let wrong_file =
        |reason: &dyn std::fmt::Display| wrong(&format_args!("{}: {reason}", path.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong_file(&error))? {
        roots
            .add(certificate.map_err(|error| wrong_file(&error))?)
            .map_err(|error| wrong_file(&error))?;
    }
    if roots.is_empty() {
        return Err(wrong_file(&"there is no certificate in it"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config
        .map_err(|error| wrong(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| "at 'spawner.kubernetes.server': it names no host".to_owned())?;
    Ok((Arc::new(config), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allows_unencrypted_connections_to_this_machine_only() {
        let parse = |url| {
            ApiServer::parse(url, None, false)
                .map(|server| (server.authority.to_string(), server.port))
        };
        assert_eq!(
            parse("http://127.0.0.1:8001").unwrap(),
            ("127.0.0.1:8001".into(), 8001)
        );
        assert_eq!(
            parse("http://[::1]:8001/").unwrap(),
            ("[::1]:8001".into(), 8001)
        );
        assert_eq!(parse("http://localhost").unwrap(), ("localhost".into(), 80));
        for (url, words) in [
            ("http://10.0.0.1:6443", "use https"),
            ("https://10.0.0.1:6443", "ca_file"),
            ("https://me:secret@host", "token_file"),
            ("http://localhost:port", "host and port"),
            ("http://", "https://HOST:PORT"),
            ("http://localhost:8001/api", "nothing else"),
            ("ftp://localhost", "https://HOST:PORT"),
            ("localhost:8001", "https://HOST:PORT"),
        ] {
            let error = parse(url).unwrap_err();
            assert!(
                error.contains(words) && !error.contains("secret"),
                "{url}: {error}"
            );
        }
        assert!(
            ApiServer::parse("http://localhost", None, true)
                .is_err_and(|error| error.contains("unencrypted"))
        );
    }

    #[test]
    fn reads_the_token_for_each_call() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let cluster = ClusterConfig {
            server: Some("http://localhost".into()),
            ..ClusterConfig::default()
        };
        let access = ClusterAccess {
            token: Some(path.clone()),
            ..ClusterAccess::find(&cluster, directory.path()).unwrap()
        };
        assert!(access.token().is_err());
        fs::write(&path, "one\n").unwrap();
        assert_eq!(access.token().unwrap().as_deref(), Some("one"));
        fs::write(&path, "two").unwrap();
        assert_eq!(access.token().unwrap().as_deref(), Some("two"));
        fs::write(&path, "a\r\nX: y").unwrap();
        assert!(
            access
                .token()
                .is_err_and(|error| !error.to_string().contains("X:"))
        );
    }
}
