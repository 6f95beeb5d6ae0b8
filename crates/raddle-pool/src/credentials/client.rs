//! The caller's end of a connection: looks at the worker's certificate, and shows its own.

use std::sync::Arc;

use rustls::{
    ClientConfig, Error, SignatureScheme,
    client::{
        ResolvesClientCert, Resumption,
        danger::{ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
    sign::CertifiedKey,
};

use super::{peer, provider, refusal::of_chain, reload::Current, signatures::signatures};

/// What a caller shows.
#[derive(Debug)]
struct Shown(Arc<Current>);

/// Whom a caller talks to.
#[derive(Debug)]
struct Workers(Arc<Current>);

pub(super) fn config(current: &Arc<Current>, protocols: &[&[u8]]) -> ClientConfig {
    let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13]);
    let config = config.expect("the provider has what TLS 1.3 needs").dangerous();
    let config = config.with_custom_certificate_verifier(Arc::new(Workers(Arc::clone(current))));
    let mut config = if current.recipe().mutual {
        config.with_client_cert_resolver(Arc::new(Shown(Arc::clone(current))))
    } else {
        config.with_no_client_auth()
    };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    // See the worker's end: nobody is let in by what was agreed with certificates of before.
    config.resumption = Resumption::disabled();
    config
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.get().own.clone()
    }

    fn has_certs(&self) -> bool {
        self.0.recipe().identity.is_some()
    }
}

impl ServerCertVerifier for Workers {
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
        verify_server_cert_signed_by_trust_anchor(&parsed, &set.roots, between, now, algorithms).map_err(of_chain)?;
        // Whoever has our own key is no stranger: a pool need not know by which of its addresses its own workers are called.
        let is_ours = set.own.as_ref().is_some_and(|own| own.cert.first() == Some(certificate));
        if !is_ours {
            peer::check(certificate, host, &self.0.recipe().expected)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}
