//! `Authority`: a CA for development.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{SubjectName, Validity, pem::pem};

/// A CA.
pub struct Authority {
    /// PEM.
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
    validity: Validity,
}

/// A certificate and its key as PEM. `Debug` does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// The certificate, which is public.
    pub certificate: String,
    /// The private key.
    pub key: String,
    /// The validity, which is within that of the CA.
    pub validity: Validity,
}

/// Why no certificate was issued. Never contains parts of a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// No name was given.
    #[error("the certificate needs a name: give at least one")]
    NoName,
    /// Several SPIFFE ids were given.
    #[error("a certificate has at most one SPIFFE id: issue one certificate for each")]
    ManySpiffeIds,
    /// The CA's certificate is malformed.
    #[error("the CA's certificate is malformed")]
    BadCertificate,
    /// The CA's certificate is not a CA certificate.
    #[error("the certificate is not that of a CA: peers would refuse what it signs")]
    NoAuthority,
    /// The CA's key is malformed, or does not match its certificate.
    #[error("the CA's key is malformed, or does not match its certificate")]
    BadKey,
    /// The CA has expired.
    #[error("the CA has expired: make another with 'raddle cert ca'")]
    Expired,
    /// The crypto library failed.
    #[error("cannot make the certificate: {0}")]
    Failed(String),
}

const CERTIFICATE: &str = "CERTIFICATE";
const KEY: &str = "PRIVATE KEY";
/// Longest common name in X.509.
const LONGEST_COMMON_NAME: usize = 64;

impl Authority {
    /// Makes a new CA.
    pub fn new(name: &str, validity: Validity) -> Result<(Self, IssuedCertificate), IssueError> {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = params(name, validity);
        // Path length 0: it signs certificates of workers, and no other CA.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = pem(CERTIFICATE, params.self_signed(&key).map_err(failed)?.der());
        let issued = IssuedCertificate {
            certificate: certificate.clone(),
            key: pem(KEY, key.serialized_der()),
            validity,
        };
        Ok((
            Self {
                certificate,
                issuer: Issuer::new(params, key),
                validity,
            },
            issued,
        ))
    }

    /// Loads a CA.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, IssueError> {
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| IssueError::BadKey)?;
        let key = KeyPair::try_from(&key).map_err(|_| IssueError::BadKey)?;
        let bad = |()| IssueError::BadCertificate;
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|_| bad(()))?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|_| bad(()))?;
        if !parsed.is_ca() {
            return Err(IssueError::NoAuthority);
        }
        if parsed.public_key().subject_public_key.data.as_ref()
            != rcgen::PublicKeyData::der_bytes(&key)
        {
            return Err(IssueError::BadKey);
        }
        let at = |time: i64| {
            u64::try_from(time).map(|secs| SystemTime::UNIX_EPOCH + Duration::from_secs(secs))
        };
        let valid = parsed.validity();
        let from = at(valid.not_before.timestamp()).map_err(|_| bad(()))?;
        let until = at(valid.not_after.timestamp()).map_err(|_| bad(()))?;
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(|_| bad(()))?;
        Ok(Self {
            certificate: certificate.to_owned(),
            issuer,
            validity: Validity { from, until },
        })
    }

    /// The CA's certificate as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Issues a certificate for these names, for serving and calling. It ends with the CA at the
    /// latest.
    pub fn issue(
        &self,
        names: &[SubjectName],
        validity: Validity,
    ) -> Result<IssuedCertificate, IssueError> {
        self.sign(
            names,
            validity,
            vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ],
        )
    }

    /// Issues a certificate for calling only: its holder cannot pose as a worker.
    pub fn issue_for_caller(
        &self,
        names: &[SubjectName],
        validity: Validity,
    ) -> Result<IssuedCertificate, IssueError> {
        self.sign(names, validity, vec![ExtendedKeyUsagePurpose::ClientAuth])
    }

    fn sign(
        &self,
        names: &[SubjectName],
        validity: Validity,
        usages: Vec<ExtendedKeyUsagePurpose>,
    ) -> Result<IssuedCertificate, IssueError> {
        let first = names.first().ok_or(IssueError::NoName)?;
        if names.iter().filter(|name| name.is_spiffe()).count() > 1 {
            return Err(IssueError::ManySpiffeIds);
        }
        let validity = validity.within(self.validity);
        if validity.from >= validity.until {
            return Err(IssueError::Expired);
        }
        let first = first.to_string();
        let mut params = params(
            if first.len() <= LONGEST_COMMON_NAME {
                &first
            } else {
                "raddle worker"
            },
            validity,
        );
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        params.use_authority_key_identifier_extension = true;
        params.subject_alt_names = names.iter().map(alternative).collect::<Result<_, _>>()?;
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(IssuedCertificate {
            certificate: pem(CERTIFICATE, certificate.der()),
            key: pem(KEY, key.serialized_der()),
            validity,
        })
    }
}

fn params(common_name: &str, validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    (params.not_before, params.not_after) = validity.bounds();
    params
}

fn alternative(name: &SubjectName) -> Result<SanType, IssueError> {
    Ok(match name {
        SubjectName::Dns(name) => SanType::DnsName(name.as_str().try_into().map_err(failed)?),
        SubjectName::Uri(name) => SanType::URI(name.as_str().try_into().map_err(failed)?),
        SubjectName::Ip(address) => SanType::IpAddress(*address),
    })
}

fn failed(error: rcgen::Error) -> IssueError {
    IssueError::Failed(error.to_string())
}

impl fmt::Debug for IssuedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedCertificate")
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}
