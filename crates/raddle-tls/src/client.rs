//! The caller's TLS configuration: verifies the worker's certificate, and presents its own.

use std::sync::Arc;

use rustls::{
    ClientConfig, Error,
    client::{
        Resumption,
        danger::{ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
    sign::SingleCertAndKey,
};

use super::{
    handshake_error::correct_chain_error, peer_name, provider, reload::CurrentCredentials,
    signatures::signatures,
};

/// Verifies workers.
#[derive(Debug)]
struct ServerPolicy(Arc<CurrentCredentials>);

/// The configuration for one connection, with the current certificate.
pub(super) fn config(current: &Arc<CurrentCredentials>, protocols: &[&[u8]]) -> ClientConfig {
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13]);
    let config = config
        .expect("the provider has what TLS 1.3 needs")
        .dangerous();
    let config =
        config.with_custom_certificate_verifier(Arc::new(ServerPolicy(Arc::clone(current))));
    let mut config = match current
        .get()
        .own
        .clone()
        .filter(|_| current.source().mutual)
    {
        Some(own) => config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own))),
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    // As in `server`: a resumed session would skip the certificates.
    config.resumption = Resumption::disabled();
    config
}

impl ServerCertVerifier for ServerPolicy {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = provider().signature_verification_algorithms.all;
        let set = self.0.get();
        verify_server_cert_signed_by_trust_anchor(&parsed, &set.roots, between, now, algorithms)
            .map_err(correct_chain_error)?;
        // The peer has our own certificate, so it has our key: a pool and its workers share
        // credentials, and the pool need not know their addresses.
        let is_ours = set
            .own
            .as_ref()
            .is_some_and(|own| own.cert.first() == Some(certificate));
        if !is_ours {
            peer_name::check_peer_name(certificate, host, &self.0.source().expected)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}
