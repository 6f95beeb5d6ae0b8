//! The worker's TLS configuration: presents the current certificate, and verifies the caller's.

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
    handshake_error::correct_chain_error, provider, reload::CurrentCredentials,
    signatures::signatures,
};

/// Presents the worker's current certificate.
#[derive(Debug)]
struct ServerIdentity(Arc<CurrentCredentials>);

/// Verifies callers.
#[derive(Debug)]
struct ClientPolicy(Arc<CurrentCredentials>);

pub(super) fn config(current: &Arc<CurrentCredentials>, protocols: &[&[u8]]) -> ServerConfig {
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13]);
    let config = config.expect("the provider has what TLS 1.3 needs");
    let config = if current.source().mutual {
        config.with_client_cert_verifier(Arc::new(ClientPolicy(Arc::clone(current))))
    } else {
        config.with_no_client_auth()
    };
    let mut config = config.with_cert_resolver(Arc::new(ServerIdentity(Arc::clone(current))));
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    // No session resumption: a resumed session skips the certificates, so an expired one, or a CA
    // that is no longer trusted, would go unnoticed.
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
    /// No hints: a caller has one certificate, and the CAs may have just been reloaded.
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
            .map_err(correct_chain_error)
    }

    signatures!();
}
