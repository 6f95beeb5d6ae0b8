//! Both ends of connections, in memory: certificates are real, and so is every handshake.

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
    // From before yesterday, so that it could have issued what has expired since.
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

pub(super) fn recipe(ca: &Authority, own: &IssuedCertificate) -> CredentialSource {
    CredentialSource::new(PemSource::bytes(ca.certificate())).identity(
        PemSource::bytes(&own.certificate),
        PemSource::bytes(&own.key),
    )
}

/// Credentials of a new certificate.
pub(super) fn credentials(ca: &Authority, names: &[&str]) -> WorkerCredentials {
    recipe(ca, &issue(ca, names, a_day())).load().unwrap()
}

/// Files of a CA and of a certificate, and where they are.
pub(super) fn files(directory: &Path, ca: &Authority, own: &IssuedCertificate) -> [PathBuf; 3] {
    let authority = directory.join("ca.pem");
    std::fs::write(&authority, ca.certificate()).unwrap();
    let (certificate, key) = write_pair(directory, "own", own, true).unwrap();
    [authority, certificate, key]
}

pub(super) struct Met {
    pub(super) client: ClientConnection,
    pub(super) server: ServerConnection,
}

/// Why two did not meet: as the worker has it, and as the caller does.
#[derive(Debug)]
pub(super) struct Parted {
    pub(super) worker: Option<HandshakeError>,
    pub(super) caller: Option<HandshakeError>,
}

impl Met {
    /// Who the worker has met.
    pub(super) fn caller(&self) -> Option<Identity> {
        Identity::of_peer(self.server.peer_certificates()).unwrap()
    }
}

/// A handshake of these two, to its end on both sides.
pub(super) fn meet(worker: &WorkerCredentials, caller: &WorkerCredentials) -> Result<Met, Parted> {
    meet_at(worker, caller, HOST)
}

pub(super) fn meet_at(
    worker: &WorkerCredentials,
    caller: &WorkerCredentials,
    host: &str,
) -> Result<Met, Parted> {
    let host: ServerName<'static> = WorkerCredentials::server_name(host).unwrap();
    let client = ClientConnection::new(caller.client_config(PROTOCOLS), host).unwrap();
    let server = ServerConnection::new(worker.server_config(PROTOCOLS).unwrap()).unwrap();
    shake(client, server)
}

pub(super) fn shake(client: ClientConnection, server: ServerConnection) -> Result<Met, Parted> {
    let (mut client, mut server) = (Connection::from(client), Connection::from(server));
    let (mut at_worker, mut at_caller) = (None, None);
    // Until nobody has anything to say. A refusal is heard by the other side, too.
    while client.wants_write() || server.wants_write() {
        pass(&mut client, &mut server, &mut at_worker);
        pass(&mut server, &mut client, &mut at_caller);
    }
    match (client, server, &at_worker, &at_caller) {
        (Connection::Client(client), Connection::Server(server), None, None) => {
            assert!(!client.is_handshaking() && !server.is_handshaking());
            Ok(Met { client, server })
        }
        _ => Err(Parted {
            worker: at_worker,
            caller: at_caller,
        }),
    }
}

/// What one side has to say to the other, and what that thinks of it.
fn pass(from: &mut Connection, to: &mut Connection, refusal: &mut Option<HandshakeError>) {
    let mut said = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut said).unwrap();
    }
    let mut said = &said[..];
    while !said.is_empty() && refusal.is_none() {
        to.read_tls(&mut said).unwrap();
        *refusal = to
            .process_new_packets()
            .err()
            .map(|error| HandshakeError::of_tls(&error));
    }
}

/// Those of a caller who trusts this CA and has nothing to show.
pub(super) fn stranger(ca: &Authority) -> WorkerCredentials {
    CredentialSource::new(PemSource::bytes(ca.certificate()))
        .mutual(false)
        .load()
        .unwrap()
}

/// A certificate that vouches for itself.
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

/// The same configuration for many connections, as a worker has it.
pub(super) fn serve(worker: &WorkerCredentials) -> Arc<rustls::ServerConfig> {
    worker.server_config(PROTOCOLS).unwrap()
}
