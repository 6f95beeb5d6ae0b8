//! A consistent set of credentials: trusted CAs, and our certificate with its key. It is loaded
//! completely or not at all.

use std::{fmt, sync::Arc};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::CertifiedKey,
};
use webpki::EndEntityCert;

use super::{
    CredentialPart, CredentialSource, CredentialsError, PemSource, credential_source::OwnIdentity,
    provider,
};

/// A loaded set of credentials.
pub(super) struct CredentialSet {
    pub(super) roots: Arc<RootCertStore>,
    /// Verifies certificates of callers.
    pub(super) callers: Arc<dyn ClientCertVerifier>,
    pub(super) own: Option<Arc<CertifiedKey>>,
    /// All certificates. Sets with equal certificates are equal, because a certificate determines
    /// its key.
    pub(super) certificates: Vec<CertificateDer<'static>>,
}

/// Markers of an encrypted key: in the first line, or in a header line of the old OpenSSL format.
const ENCRYPTED: [&[u8]; 2] = [
    b"-----BEGIN ENCRYPTED PRIVATE KEY-----",
    b"Proc-Type: 4,ENCRYPTED",
];

impl CredentialSet {
    pub(super) fn read(source: &CredentialSource) -> Result<Self, CredentialsError> {
        let mut all = certificates(&source.ca, CredentialPart::Ca)?;
        let mut roots = RootCertStore::empty();
        for (at, authority) in all.iter().enumerate() {
            let bad = |_| CredentialsError::BadCertificate {
                origin: source.ca.origin(CredentialPart::Ca),
                number: at + 1,
            };
            roots.add(authority.clone()).map_err(bad)?;
        }
        let roots = Arc::new(roots);
        let own = source.identity.as_ref().map(certified).transpose()?;
        all.extend(own.iter().flat_map(|own| &own.cert).cloned());
        let callers =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider()).build();
        let callers = callers
            .map_err(|_| CredentialsError::NoCertificate(source.ca.origin(CredentialPart::Ca)))?;
        Ok(Self {
            roots,
            callers,
            own,
            certificates: all,
        })
    }

    /// Why peers with the same CA would refuse our certificate now, if they would.
    pub(super) fn refusal_reason(&self, now: UnixTime) -> Option<&'static str> {
        let (leaf, between) = self.own.as_ref()?.cert.split_first()?;
        let algorithms = provider().signature_verification_algorithms.all;
        let leaf = EndEntityCert::try_from(leaf).ok()?;
        let usage = webpki::KeyUsage::server_auth();
        let checked = leaf.verify_for_usage(
            algorithms,
            &self.roots.roots,
            between,
            now,
            usage,
            None,
            None,
        );
        match checked.err()? {
            webpki::Error::CertExpired { .. } => Some("the certificate has expired"),
            webpki::Error::CertNotValidYet { .. } => Some("the certificate is not valid yet"),
            webpki::Error::CaUsedAsEndEntity => Some("the certificate is that of a CA"),
            // Our issuer may rightly differ from the trusted CA, if workers and callers have
            // different issuers.
            _ => None,
        }
    }
}

fn certificates(
    source: &PemSource,
    part: CredentialPart,
) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let bytes = source.read(part)?;
    let broken = |error| CredentialsError::Broken {
        origin: source.origin(part),
        reason: reason(&error),
    };
    let found = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(broken)?;
    if found.is_empty() {
        Err(CredentialsError::NoCertificate(source.origin(part)))
    } else {
        Ok(found)
    }
}

fn certified(own: &OwnIdentity) -> Result<Arc<CertifiedKey>, CredentialsError> {
    let chain = certificates(&own.certificate, CredentialPart::Certificate)?;
    for (at, certificate) in chain.iter().enumerate() {
        let origin = || own.certificate.origin(CredentialPart::Certificate);
        let bad = |_| CredentialsError::BadCertificate {
            origin: origin(),
            number: at + 1,
        };
        EndEntityCert::try_from(certificate).map_err(bad)?;
    }
    let origin = || own.key.origin(CredentialPart::Key);
    let bytes = own.key.read(CredentialPart::Key)?;
    let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        _ if ENCRYPTED.iter().any(|mark| contains(&bytes, mark)) => {
            CredentialsError::EncryptedKey(origin())
        }
        pem::Error::NoItemsFound => CredentialsError::NoKey(origin()),
        error => CredentialsError::Broken {
            origin: origin(),
            reason: reason(&error),
        },
    })?;
    if contains(&bytes, ENCRYPTED[1]) {
        return Err(CredentialsError::EncryptedKey(origin()));
    }
    // The error of rustls is dropped, in case it contains parts of the key.
    let key = provider()
        .key_provider
        .load_private_key(key)
        .map_err(|_| CredentialsError::UnsupportedKey(origin()))?;
    let certified = CertifiedKey::new(chain, key);
    let mismatch = |_| CredentialsError::Mismatch {
        certificate: own.certificate.origin(CredentialPart::Certificate),
        key: origin(),
    };
    certified.keys_match().map_err(mismatch)?;
    Ok(Arc::new(certified))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Describes a PEM error. The library's own message quotes lines of the file.
fn reason(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "it ends in the middle of a section",
        pem::Error::IllegalSectionStart { .. } => "a line that starts with -----BEGIN is malformed",
        pem::Error::Base64Decode(_) => "the content of a section is not Base64",
        _ => "it is not PEM",
    }
}

impl fmt::Debug for CredentialSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialSet").finish_non_exhaustive()
    }
}
