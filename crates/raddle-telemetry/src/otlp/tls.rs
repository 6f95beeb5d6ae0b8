//! TLS to a collector: system certificates or `OTEL_EXPORTER_OTLP_CERTIFICATE`, and a client
//! certificate from `OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE` and `OTEL_EXPORTER_OTLP_CLIENT_KEY`.

use std::{fmt::Display, fs, sync::Arc};

use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use rustls::{
    ClientConfig, RootCertStore,
    client::WantsClientCert,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::collector::{SetUpError, read_setting};

/// Contents of a file with certificates or a key.
type Pem = Vec<u8>;

/// Reads the file that a variable names.
fn read_file(name: &str) -> Result<Option<Pem>, SetUpError> {
    let Some((variable, path)) = read_setting(name) else {
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

/// The client certificate and its key.
fn identity() -> Result<Option<(Pem, Pem)>, SetUpError> {
    Ok(read_file("CLIENT_CERTIFICATE")?.zip(read_file("CLIENT_KEY")?))
}

pub(super) fn tonic_config() -> Result<ClientTlsConfig, SetUpError> {
    let config = ClientTlsConfig::new();
    let config = match read_file("CERTIFICATE")? {
        Some(roots) => config.ca_certificate(Certificate::from_pem(roots)),
        None => config.with_native_roots(),
    };
    Ok(match identity()? {
        Some((certificate, key)) => config.identity(Identity::from_pem(certificate, key)),
        None => config,
    })
}

pub(super) fn rustls_config() -> Result<ClientConfig, SetUpError> {
    let mut roots = RootCertStore::empty();
    match read_file("CERTIFICATE")? {
        Some(text) => {
            for root in CertificateDer::pem_slice_iter(&text) {
                roots
                    .add(root.map_err(invalid_certificate)?)
                    .map_err(invalid_certificate)?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let config = config_with_roots(roots);
    Ok(match identity()? {
        Some((chain, key)) => {
            let chain = CertificateDer::pem_slice_iter(&chain)
                .collect::<Result<_, _>>()
                .map_err(invalid_certificate)?;
            let key = PrivateKeyDer::from_pem_slice(&key).map_err(invalid_certificate)?;
            config
                .with_client_auth_cert(chain, key)
                .map_err(invalid_certificate)?
        }
        None => config.with_no_client_auth(),
    })
}

/// For an unencrypted connection: reads no files.
pub(super) fn plain_config() -> ClientConfig {
    config_with_roots(RootCertStore::empty()).with_no_client_auth()
}

fn config_with_roots(roots: RootCertStore) -> rustls::ConfigBuilder<ClientConfig, WantsClientCert> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has the default versions")
        .with_root_certificates(roots)
}

fn invalid_certificate(error: impl Display) -> SetUpError {
    SetUpError::Certificates(error.to_string())
}
