//! Mutual TLS for workers and callers: credentials, their reload, identities, and rules for what a
//! peer may do.
//!
//! [`WorkerCredentials`] are a CA, a certificate and its key; they make the rustls configuration of
//! either end of a connection, and follow changes of their files. [`Identity`] holds the names in a
//! caller's certificate, and [`AllowRules`] decide what a caller may do. A [`HandshakeError`] says
//! why a handshake failed.
//!
//! This crate opens no sockets. Keys never appear in `Debug` output, errors or logs.

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
mod peer_name;
mod pem_source;
mod reload;
mod server;
mod signatures;
#[cfg(test)]
mod tests;
mod worker_credentials;

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

pub use self::{
    allow::{Action, AllowError, AllowRules, Rule},
    credential_source::CredentialSource,
    error::{CredentialOrigin, CredentialPart, CredentialsError},
    handshake_error::{HandshakeError, HandshakeErrorKind},
    identity::{CertificateName, Identity, IdentityError},
    pattern::PatternError,
    peer_name::{PeerName, PeerNameError, PeerNameMismatch},
    pem_source::PemSource,
    worker_credentials::WorkerCredentials,
};

/// The crypto provider, passed explicitly: the process default is up to the program.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
