//! Why there are no credentials. Says which file it is, and what to do; never what is in a key.

use std::{fmt, io, path::PathBuf};

/// What one of them is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialPart {
    /// Whom to trust.
    Ca,
    /// Who we are.
    Certificate,
    /// What proves it.
    Key,
}

/// What it is, and where it was to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialOrigin {
    /// What it is for.
    pub part: CredentialPart,
    /// Its file, if it was not given as text.
    pub path: Option<PathBuf>,
}

/// Why there are no credentials.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// A file cannot be read.
    #[error("cannot read {place}: {reason}")]
    Unreadable {
        /// Which.
        place: CredentialOrigin,
        /// Why.
        #[source]
        reason: io::Error,
    },
    /// What it has is no PEM.
    #[error("{place} is broken: {reason}; write it again, as PEM")]
    Broken {
        /// Which.
        place: CredentialOrigin,
        /// Why, and nothing of what is in it.
        reason: &'static str,
    },
    /// There is no certificate in it.
    #[error(
        "there is no certificate in {0}: it has to have a part that begins with -----BEGIN CERTIFICATE-----"
    )]
    NoCertificate(CredentialOrigin),
    /// A certificate in it is none.
    #[error(
        "certificate {number} in {place} cannot be used: it is no X.509 certificate of version 3"
    )]
    BadCertificate {
        /// Which file.
        place: CredentialOrigin,
        /// Which of those in it, counted from 1.
        number: usize,
    },
    /// There is no key in it.
    #[error(
        "there is no private key in {0}: it has to have a part that begins with -----BEGIN PRIVATE KEY-----"
    )]
    NoKey(CredentialOrigin),
    /// Its key needs a passphrase.
    #[error(
        "{0} is encrypted, and nobody is there to be asked: decrypt it with 'openssl pkey -in FILE -out PLAIN'"
    )]
    EncryptedKey(CredentialOrigin),
    /// Its key is of a kind that is not supported.
    #[error(
        "{0} is of no kind that is supported: use ECDSA (P-256, P-384), Ed25519, or RSA of 2048 bits and more"
    )]
    UnsupportedKey(CredentialOrigin),
    /// They do not belong together.
    #[error(
        "{key} does not belong to {certificate}: give the key that the certificate was issued for"
    )]
    Mismatch {
        /// The one.
        certificate: CredentialOrigin,
        /// The other.
        key: CredentialOrigin,
    },
    /// Who has to show a certificate has none.
    #[error(
        "a certificate and its key are needed {0}: give both, or make some with 'raddle cert issue'"
    )]
    NoIdentity(&'static str),
    /// No worker can be called that.
    #[error(
        "'{0}' is neither a host name nor an address: give the one that the certificate of the worker has"
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
            None => write!(f, "{what} that was given as text"),
        }
    }
}
