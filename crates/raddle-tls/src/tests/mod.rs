//! Tests with real certificates and handshakes, in memory.

mod allow;
mod handshakes;
mod identities;
mod loading;
mod reloading;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use rustls::{ClientConnection, Connection, ServerConnection, pki_types::ServerName};

use super::{
    CredentialSource, HandshakeError, Identity, PemSource, WorkerCredentials,
    issue::{Authority, IssuedCertificate, Validity, pem, write_pair},
};

pub(super) const PROTOCOLS: &[&[u8]] = &[b"raddle/1", b"h2"];
pub(super) const HOST: &str = "worker.internal";

pub(super) fn a_day() -> Validity {
    Validity::days(SystemTime::now(), 1)
}

pub(super) fn yesterday() -> Validity {
    let now = SystemTime::now();
    let ago = |hours: u64| now - Duration::from_secs(hours * 3600);
    Validity {
        from: ago(48),
        until: ago(24),
    }
}

pub(super) fn authority() -> Authority {
    let now = SystemTime::now();
    // Older than `yesterday`, so that it can issue certificates that have expired.
    let validity = Validity {
        from: now - Duration::from_secs(96 * 3600),
        ..Validity::days(now, 30)
    };
    Authority::new("test CA", validity).unwrap().0
}

pub(super) fn issue(
    authority: &Authority,
    names: &[&str],
    validity: Validity,
) -> IssuedCertificate {
    let names: Vec<_> = names.iter().map(|name| name.parse().unwrap()).collect();
    authority.issue(&names, validity).unwrap()
}

pub(super) fn source(ca: &Authority, own: &IssuedCertificate) -> CredentialSource {
    CredentialSource::new(PemSource::bytes(ca.certificate())).identity(
        PemSource::bytes(&own.certificate),
        PemSource::bytes(&own.key),
    )
}

/// Credentials with a new certificate.
pub(super) fn credentials(ca: &Authority, names: &[&str]) -> WorkerCredentials {
    source(ca, &issue(ca, names, a_day())).load().unwrap()
}

/// Writes a CA and a certificate, and returns their paths.
pub(super) fn files(directory: &Path, ca: &Authority, own: &IssuedCertificate) -> [PathBuf; 3] {
    let authority = directory.join("ca.pem");
    std::fs::write(&authority, ca.certificate()).unwrap();
    let (certificate, key) = write_pair(directory, "own", own, true).unwrap();
    [authority, certificate, key]
}

pub(super) struct Connected {
    pub(super) client: ClientConnection,
    pub(super) server: ServerConnection,
}

/// How a failed handshake looks to the worker and to the caller.
#[derive(Debug)]
pub(super) struct FailedHandshake {
    pub(super) worker: Option<HandshakeError>,
    pub(super) caller: Option<HandshakeError>,
}

impl Connected {
    /// The caller's identity.
    pub(super) fn caller(&self) -> Option<Identity> {
        Identity::from_peer_chain(self.server.peer_certificates()).unwrap()
    }
}

/// Performs a complete handshake.
pub(super) fn handshake(
    worker: &WorkerCredentials,
    caller: &WorkerCredentials,
) -> Result<Connected, FailedHandshake> {
    handshake_with(worker, caller, HOST)
}

pub(super) fn handshake_with(
    worker: &WorkerCredentials,
    caller: &WorkerCredentials,
    host: &str,
) -> Result<Connected, FailedHandshake> {
    let host: ServerName<'static> = WorkerCredentials::server_name(host).unwrap();
    let client = ClientConnection::new(caller.client_config(PROTOCOLS), host).unwrap();
    let server = ServerConnection::new(worker.server_config(PROTOCOLS).unwrap()).unwrap();
    run_handshake(client, server)
}

pub(super) fn run_handshake(
    client: ClientConnection,
    server: ServerConnection,
) -> Result<Connected, FailedHandshake> {
    let (mut client, mut server) = (Connection::from(client), Connection::from(server));
    let (mut at_worker, mut at_caller) = (None, None);
    // Until neither side has data. A refusal is delivered to the other side too.
    while client.wants_write() || server.wants_write() {
        deliver(&mut client, &mut server, &mut at_worker);
        deliver(&mut server, &mut client, &mut at_caller);
    }
    match (client, server, &at_worker, &at_caller) {
        (Connection::Client(client), Connection::Server(server), None, None) => {
            assert!(!client.is_handshaking() && !server.is_handshaking());
            Ok(Connected { client, server })
        }
        _ => Err(FailedHandshake {
            worker: at_worker,
            caller: at_caller,
        }),
    }
}

/// Passes pending data to the other side.
fn deliver(from: &mut Connection, to: &mut Connection, refusal: &mut Option<HandshakeError>) {
    let mut log = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut log).unwrap();
    }
    let mut log = &log[..];
    while !log.is_empty() && refusal.is_none() {
        to.read_tls(&mut log).unwrap();
        *refusal = to
            .process_new_packets()
            .err()
            .map(|error| HandshakeError::from_rustls(&error));
    }
}

/// Credentials of a caller without a certificate.
pub(super) fn anonymous_credentials(ca: &Authority) -> WorkerCredentials {
    CredentialSource::new(PemSource::bytes(ca.certificate()))
        .mutual(false)
        .load()
        .unwrap()
}

/// A self-signed certificate.
pub(super) fn self_signed(names: &[&str], is_ca: bool) -> IssuedCertificate {
    let key = rcgen::KeyPair::generate().unwrap();
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = rcgen::CertificateParams::new(names).unwrap();
    if is_ca {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    }
    issued(&params.self_signed(&key).unwrap(), &key)
}

pub(super) fn issued(certificate: &rcgen::Certificate, key: &rcgen::KeyPair) -> IssuedCertificate {
    let certificate = pem("CERTIFICATE", certificate.der());
    IssuedCertificate {
        certificate,
        key: pem("PRIVATE KEY", key.serialized_der()),
        validity: a_day(),
    }
}

/// The configuration of a worker, for several connections.
pub(super) fn serve(worker: &WorkerCredentials) -> Arc<rustls::ServerConfig> {
    worker.server_config(PROTOCOLS).unwrap()
}
