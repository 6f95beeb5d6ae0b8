//! Errors of loading credentials. They name the file and the fix, and never contain parts of a key.

use std::{fmt, io, path::PathBuf};

/// A part of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialPart {
    /// The trusted CA.
    Ca,
    /// Our certificate.
    Certificate,
    /// Our private key.
    Key,
}

/// A part of credentials, and where it was loaded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialOrigin {
    /// The part.
    pub part: CredentialPart,
    /// The file, unless the part was given as text.
    pub path: Option<PathBuf>,
}

/// Why credentials cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// A file cannot be read.
    #[error("cannot read {origin}: {reason}")]
    Unreadable {
        /// The part and file.
        origin: CredentialOrigin,
        /// The cause.
        #[source]
        reason: io::Error,
    },
    /// The PEM is malformed.
    #[error("{origin} is malformed: {reason}; write it again, as PEM")]
    Broken {
        /// The part and file.
        origin: CredentialOrigin,
        /// The cause, without any content of the file.
        reason: &'static str,
    },
    /// The file contains no certificate.
    #[error(
        "there is no certificate in {0}: expected a section that starts with -----BEGIN CERTIFICATE-----"
    )]
    NoCertificate(CredentialOrigin),
    /// A certificate is malformed.
    #[error(
        "certificate {number} in {origin} is malformed: expected an X.509 certificate of version 3"
    )]
    BadCertificate {
        /// The part and file.
        origin: CredentialOrigin,
        /// The index of the certificate in the file, from 1.
        number: usize,
    },
    /// The file contains no private key.
    #[error(
        "there is no private key in {0}: expected a section that starts with -----BEGIN PRIVATE KEY-----"
    )]
    NoKey(CredentialOrigin),
    /// The key is encrypted.
    #[error(
        "{0} is encrypted, and there is no passphrase prompt: decrypt it with 'openssl pkey -in FILE -out PLAIN'"
    )]
    EncryptedKey(CredentialOrigin),
    /// The key type is not supported.
    #[error(
        "the type of {0} is not supported: use ECDSA (P-256, P-384), Ed25519, or RSA with at least 2048 bits"
    )]
    UnsupportedKey(CredentialOrigin),
    /// Certificate and key do not match.
    #[error("{key} does not match {certificate}: give the key that the certificate was issued for")]
    Mismatch {
        /// The certificate.
        certificate: CredentialOrigin,
        /// The key.
        key: CredentialOrigin,
    },
    /// A certificate and key are required, and not given.
    #[error(
        "a certificate and its key are required {0}: give both, or make them with 'raddle cert issue'"
    )]
    NoIdentity(&'static str),
    /// The host is invalid.
    #[error(
        "'{0}' is neither a host name nor an address: give the one in the worker's certificate"
    )]
    NoHost(String),
}

impl fmt::Display for CredentialOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.part {
            CredentialPart::Ca => "the CA",
            CredentialPart::Certificate => "the certificate",
            CredentialPart::Key => "the key",
        };
        match &self.path {
            Some(path) => write!(f, "{what} in {}", path.display()),
            None => write!(f, "{what} given as text"),
        }
    }
}
