//! What is in certificates, for people. What is in keys is not looked at.

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

/// What is in a PEM file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemContents {
    /// Its certificates, in order.
    pub certificates: Vec<CertificateDescription>,
    /// How many private keys there are beside them.
    pub keys: usize,
}

/// What is in a certificate. Texts are as they stand there, whoever wrote them: what shows them has to make them harmless.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CertificateDescription {
    /// Whom it is for, as it was called by hand.
    pub subject: String,
    /// Who has issued it.
    pub issuer: String,
    /// Its number, in hexadecimal.
    pub serial: String,
    /// The names that count.
    pub names: Vec<String>,
    /// From when it is valid, in seconds since 1970.
    pub not_before: i64,
    /// Until when.
    pub not_after: i64,
    /// Whether it is that of a CA.
    pub is_ca: bool,
    /// What it may be used for, if it says so: `server`, `client` and `other`.
    pub usages: Vec<&'static str>,
    /// Of what kind its key is.
    pub key: String,
    /// The SHA-256 of all of it, in hexadecimal.
    pub sha256: String,
}

/// Nothing can be said about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescribeError {
    /// It is no PEM.
    #[error("it is no PEM, or ends in the middle of it")]
    Pem,
    /// There is nothing in it that can be shown.
    #[error("there is no certificate in it")]
    Empty,
    /// There is a key in it and nothing else.
    #[error("there is a private key in it and no certificate: keys are not shown")]
    OnlyKey,
    /// A certificate is none.
    #[error("certificate {0} in it is broken")]
    Certificate(usize),
}

/// What is in a PEM file.
pub fn describe(pem: &[u8]) -> Result<PemContents, DescribeError> {
    let (mut certificates, mut keys) = (Vec::new(), 0);
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
        match section.map_err(|_| DescribeError::Pem)? {
            (SectionKind::Certificate, der) => {
                let broken = DescribeError::Certificate(certificates.len() + 1);
                certificates.push(of(&der.into()).ok_or(broken)?);
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

fn of(der: &CertificateDer<'_>) -> Option<CertificateDescription> {
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
                _ => "an address of a strange length".into(),
            }
        }
        _ => "a name of another kind".into(),
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
