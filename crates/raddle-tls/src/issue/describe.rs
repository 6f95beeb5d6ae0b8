//! Describes certificates for people. Keys are only counted.

use std::net::IpAddr;

use ring::digest::{SHA256, digest};
use rustls::pki_types::{
    CertificateDer,
    pem::{PemObject, SectionKind},
};
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
    public_key::PublicKey,
};

/// The contents of a PEM file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemContents {
    /// Its certificates, in order.
    pub certificates: Vec<CertificateDescription>,
    /// Number of private keys.
    pub keys: usize,
}

/// The contents of a certificate. Texts are verbatim, and come from its issuer: escape them before
/// showing them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CertificateDescription {
    /// The subject.
    pub subject: String,
    /// The issuer.
    pub issuer: String,
    /// The serial number, in hexadecimal.
    pub serial: String,
    /// The subject alternative names.
    pub names: Vec<String>,
    /// Start of validity, in seconds since 1970.
    pub not_before: i64,
    /// End of validity, in seconds since 1970.
    pub not_after: i64,
    /// Whether it is a CA certificate.
    pub is_ca: bool,
    /// The extended key usages, if any: `server`, `client` and `other`.
    pub usages: Vec<&'static str>,
    /// Type and size of the key.
    pub key: String,
    /// The SHA-256 fingerprint, in hexadecimal.
    pub sha256: String,
}

/// Why a file cannot be described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescribeError {
    /// It is not PEM.
    #[error("it is not PEM, or ends in the middle of a section")]
    Pem,
    /// It contains neither certificates nor keys.
    #[error("there is no certificate in it")]
    Empty,
    /// It contains only keys.
    #[error("it contains a private key and no certificate: keys are not shown")]
    OnlyKey,
    /// A certificate is malformed.
    #[error("certificate {0} in it is malformed")]
    Certificate(usize),
}

/// Describes the contents of a PEM file.
pub fn describe(pem: &[u8]) -> Result<PemContents, DescribeError> {
    let (mut certificates, mut keys) = (Vec::new(), 0);
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
        match section.map_err(|_| DescribeError::Pem)? {
            (SectionKind::Certificate, der) => {
                let broken = DescribeError::Certificate(certificates.len() + 1);
                certificates.push(describe_certificate(&der.into()).ok_or(broken)?);
            }
            (
                SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey,
                _,
            ) => keys += 1,
            _ => {}
        }
    }
    match (certificates.is_empty(), keys) {
        (true, 0) => Err(DescribeError::Empty),
        (true, _) => Err(DescribeError::OnlyKey),
        (false, keys) => Ok(PemContents { certificates, keys }),
    }
}

fn describe_certificate(der: &CertificateDer<'_>) -> Option<CertificateDescription> {
    let (rest, parsed) = X509Certificate::from_der(der).ok()?;
    if !rest.is_empty() {
        return None;
    }
    let names = parsed.subject_alternative_name().ok()?;
    let names = names
        .iter()
        .flat_map(|names| &names.value.general_names)
        .map(name)
        .collect();
    let uses = parsed.extended_key_usage().ok()?;
    let usages = uses.map(|uses| {
        let uses = uses.value;
        let is_other =
            uses.code_signing || uses.email_protection || uses.time_stamping || uses.ocsp_signing;
        let all = [
            ("server", uses.any || uses.server_auth),
            ("client", uses.any || uses.client_auth),
            ("other", uses.any || is_other || !uses.other.is_empty()),
        ];
        all.into_iter()
            .filter(|(_, has)| *has)
            .map(|(use_, _)| use_)
            .collect()
    });
    Some(CertificateDescription {
        subject: parsed.subject().to_string(),
        issuer: parsed.issuer().to_string(),
        serial: hex(parsed.raw_serial()),
        names,
        not_before: parsed.validity().not_before.timestamp(),
        not_after: parsed.validity().not_after.timestamp(),
        is_ca: parsed.is_ca(),
        usages: usages.unwrap_or_default(),
        key: key(&parsed),
        sha256: hex(digest(&SHA256, der).as_ref()),
    })
}

fn name(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) | GeneralName::RFC822Name(name) => {
            (*name).to_owned()
        }
        GeneralName::IPAddress(octets) => {
            match (<[u8; 4]>::try_from(*octets), <[u8; 16]>::try_from(*octets)) {
                (Ok(octets), _) => IpAddr::from(octets).to_string(),
                (_, Ok(octets)) => IpAddr::from(octets).to_string(),
                _ => "an address of invalid length".into(),
            }
        }
        _ => "a name of another type".into(),
    }
}

fn key(certificate: &X509Certificate<'_>) -> String {
    let key = certificate.public_key();
    match (
        key.algorithm.algorithm.to_id_string().as_str(),
        key.parsed(),
    ) {
        ("1.3.101.112", _) => "Ed25519".into(),
        (_, Ok(PublicKey::RSA(rsa))) => format!("RSA, {} bits", rsa.key_size()),
        (_, Ok(PublicKey::EC(point))) => format!("ECDSA, {} bits", point.key_size()),
        (oid, _) => oid.to_owned(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
