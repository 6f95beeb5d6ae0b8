//! The worker's end of a connection: shows the certificate of now, and looks at that of the caller.

use std::sync::Arc;

use rustls::{
    DistinguishedName, Error, ServerConfig,
    pki_types::{CertificateDer, UnixTime},
    server::{
        ClientHello, NoServerSessionStorage, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};

use super::{
    handshake_error::of_chain, provider, reload::CurrentCredentials, signatures::signatures,
};

/// What a worker shows.
#[derive(Debug)]
struct ServerIdentity(Arc<CurrentCredentials>);

/// Whom a worker lets in.
#[derive(Debug)]
struct ClientPolicy(Arc<CurrentCredentials>);

pub(super) fn config(current: &Arc<CurrentCredentials>, protocols: &[&[u8]]) -> ServerConfig {
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13]);
    let config = config.expect("the provider has what TLS 1.3 needs");
    let config = if current.recipe().mutual {
        config.with_client_cert_verifier(Arc::new(ClientPolicy(Arc::clone(current))))
    } else {
        config.with_no_client_auth()
    };
    let mut config = config.with_cert_resolver(Arc::new(ServerIdentity(Arc::clone(current))));
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    // A session that is taken up again skips the certificates: one that has expired since, or a CA that is trusted no longer, would go unnoticed.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config
}

impl ResolvesServerCert for ServerIdentity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.get().own.clone()
    }
}

impl ClientCertVerifier for ClientPolicy {
    /// None: whoever calls has one certificate, and the CAs of now may be others than those of a moment ago.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0
            .get()
            .callers
            .verify_client_cert(certificate, between, now)
            .map_err(of_chain)
    }

    signatures!();
}
