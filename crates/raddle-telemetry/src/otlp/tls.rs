//! TLS to a collector: the certificates of the system, or those that `OTEL_EXPORTER_OTLP_CERTIFICATE` names, and a certificate of our own if
//! `OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE` and `OTEL_EXPORTER_OTLP_CLIENT_KEY` do.

use std::{fmt::Display, fs, sync::Arc};

use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use rustls::{
    ClientConfig, RootCertStore,
    client::WantsClientCert,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::collector::{SetUpError, setting};

/// The text of a file with certificates or a key.
type Pem = Vec<u8>;

/// The text of a file that the environment names.
fn file(name: &str) -> Result<Option<Pem>, SetUpError> {
    let Some((variable, path)) = setting(name) else {
        return Ok(None);
    };
    fs::read(&path)
        .map(Some)
        .map_err(|source| SetUpError::File {
            variable,
            path,
            source,
        })
}

/// Our own certificate and its key.
fn identity() -> Result<Option<(Pem, Pem)>, SetUpError> {
    Ok(file("CLIENT_CERTIFICATE")?.zip(file("CLIENT_KEY")?))
}

pub(super) fn of_tonic() -> Result<ClientTlsConfig, SetUpError> {
    let config = ClientTlsConfig::new();
    let config = match file("CERTIFICATE")? {
        Some(roots) => config.ca_certificate(Certificate::from_pem(roots)),
        None => config.with_native_roots(),
    };
    Ok(match identity()? {
        Some((certificate, key)) => config.identity(Identity::from_pem(certificate, key)),
        None => config,
    })
}

pub(super) fn of_rustls() -> Result<ClientConfig, SetUpError> {
    let mut roots = RootCertStore::empty();
    match file("CERTIFICATE")? {
        Some(text) => {
            for root in CertificateDer::pem_slice_iter(&text) {
                roots.add(root.map_err(unusable)?).map_err(unusable)?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let config = trusting(roots);
    Ok(match identity()? {
        Some((chain, key)) => {
            let chain = CertificateDer::pem_slice_iter(&chain)
                .collect::<Result<_, _>>()
                .map_err(unusable)?;
            let key = PrivateKeyDer::from_pem_slice(&key).map_err(unusable)?;
            config.with_client_auth_cert(chain, key).map_err(unusable)?
        }
        None => config.with_no_client_auth(),
    })
}

/// For a connection that is not encrypted: nothing is read that may not be there.
pub(super) fn without_roots() -> ClientConfig {
    trusting(RootCertStore::empty()).with_no_client_auth()
}

fn trusting(roots: RootCertStore) -> rustls::ConfigBuilder<ClientConfig, WantsClientCert> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has the default versions")
        .with_root_certificates(roots)
}

fn unusable(error: impl Display) -> SetUpError {
    SetUpError::Certificates(error.to_string())
}
