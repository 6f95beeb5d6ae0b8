//! Who a worker is, whom it trusts, and who may ask what of it: TLS with certificates on both sides.
//!
//! [`WorkerCredentials`] are a CA, a certificate and its key, and give what rustls needs for either end of a connection. Files are looked at again
//! when they have changed. [`Identity`] is what the certificate of a caller says of him, and [`AllowRules`] what he may do. Why a handshake came to
//! nothing is a [`HandshakeError`].
//!
//! Nothing here opens a socket or waits for one. What is in a key is never shown: not by `Debug`, not in an error, not in a log.

mod allow;
mod client;
mod credential_set;
mod credential_source;
mod error;
mod handshake_error;
mod identity;
#[cfg(any(feature = "issue", test))]
pub mod issue;
mod pattern;
mod peer;
mod pem_source;
mod reload;
mod server;
mod signatures;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

pub use self::{
    allow::{Action, AllowError, AllowRules, Rule},
    credential_source::CredentialSource,
    error::{CredentialOrigin, CredentialPart, CredentialsError},
    handshake_error::{HandshakeError, HandshakeErrorKind},
    identity::{CertificateName, Identity, IdentityError},
    pattern::PatternError,
    peer::{PeerName, PeerNameError, PeerNameMismatch},
    pem_source::PemSource,
    worker::WorkerCredentials,
};

/// The one provider of cryptography there is, named where it is used: what a program has installed as its default is its own affair.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
