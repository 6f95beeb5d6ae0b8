//! Tests of which handshakes succeed, and why others fail.

use rustls::{
    ClientConnection, HandshakeKind, ServerConnection,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::{
    super::{
        CredentialSource, HandshakeError, HandshakeErrorKind, PeerName, PeerNameMismatch,
        WorkerCredentials, issue::Authority,
    },
    *,
};

fn expecting(ca: &Authority, names: &[&str]) -> WorkerCredentials {
    let expected = names.iter().map(|name| name.parse::<PeerName>().unwrap());
    source(ca, &issue(ca, &["caller.internal"], a_day()))
        .expecting(expected)
        .load()
        .unwrap()
}

#[test]
fn mutual_tls_verifies_both_peers() {
    let ca = authority();
    let worker = credentials(&ca, &[HOST]);
    let caller = credentials(&ca, &["web.internal", "spiffe://prod/web"]);
    let met = handshake(&worker, &caller).unwrap();
    assert_eq!(
        met.caller().unwrap().to_string(),
        "web.internal, spiffe://prod/web"
    );
    assert_eq!(met.client.alpn_protocol(), Some(PROTOCOLS[0]));
    assert_eq!(met.server.alpn_protocol(), Some(PROTOCOLS[0]));
    assert_eq!(
        met.client.protocol_version(),
        Some(rustls::ProtocolVersion::TLSv1_3)
    );
}

#[test]
fn caller_without_certificate_is_refused() {
    let ca = authority();
    let parted = handshake(&credentials(&ca, &[HOST]), &anonymous_credentials(&ca))
        .err()
        .unwrap();
    assert_eq!(
        parted.worker,
        Some(HandshakeError::Ours(HandshakeErrorKind::NoCertificate))
    );
    assert_eq!(
        parted.caller,
        Some(HandshakeError::Theirs(HandshakeErrorKind::NoCertificate))
    );
}

#[test]
fn one_way_tls_accepts_anonymous_callers() {
    let ca = authority();
    let own = issue(&ca, &[HOST], a_day());
    let worker = source(&ca, &own).mutual(false).load().unwrap();
    assert!(
        handshake(&worker, &anonymous_credentials(&ca))
            .unwrap()
            .caller()
            .is_none()
    );
    assert!(
        handshake(&worker, &credentials(&ca, &["web.internal"]))
            .unwrap()
            .caller()
            .is_none()
    );
    // The worker is verified nevertheless.
    let parted = handshake(&worker, &anonymous_credentials(&authority()))
        .err()
        .unwrap();
    assert_eq!(
        parted.caller,
        Some(HandshakeError::Ours(HandshakeErrorKind::UnknownIssuer))
    );
}

#[test]
fn certificate_of_another_ca_is_refused() {
    let (ours, theirs) = (authority(), authority());
    // Each side trusts the other's CA, so that only one side refuses.
    let worker = credentials(&ours, &[HOST]);
    let own = issue(&theirs, &["web.internal"], a_day());
    let caller = source(&ours, &own).load().unwrap();
    let parted = handshake(&worker, &caller).err().unwrap();
    assert_eq!(
        parted.worker,
        Some(HandshakeError::Ours(HandshakeErrorKind::UnknownIssuer))
    );
    assert_eq!(
        parted.caller,
        Some(HandshakeError::Theirs(HandshakeErrorKind::UnknownIssuer))
    );
    let parted = handshake(&worker, &credentials(&theirs, &["web.internal"]))
        .err()
        .unwrap();
    assert_eq!(
        parted.caller,
        Some(HandshakeError::Ours(HandshakeErrorKind::UnknownIssuer))
    );
    assert_eq!(
        parted.worker,
        Some(HandshakeError::Theirs(HandshakeErrorKind::UnknownIssuer))
    );
}

#[test]
fn expired_certificate_is_refused_on_either_side() {
    let ca = authority();
    let old = |name| {
        source(&ca, &issue(&ca, &[name], yesterday()))
            .load()
            .unwrap()
    };
    let parted = handshake(&credentials(&ca, &[HOST]), &old("web.internal"))
        .err()
        .unwrap();
    assert_eq!(
        parted.worker,
        Some(HandshakeError::Ours(HandshakeErrorKind::Expired))
    );
    assert_eq!(
        parted.caller,
        Some(HandshakeError::Theirs(HandshakeErrorKind::Expired))
    );
    let parted = handshake(&old(HOST), &credentials(&ca, &["web.internal"]))
        .err()
        .unwrap();
    assert_eq!(
        parted.caller,
        Some(HandshakeError::Ours(HandshakeErrorKind::Expired))
    );
}

#[test]
fn worker_with_another_name_is_refused() {
    let ca = authority();
    let worker = credentials(&ca, &["other.internal", "spiffe://prod/other"]);
    let parted = handshake(&worker, &credentials(&ca, &["web.internal"]))
        .err()
        .unwrap();
    let shown = "other.internal, spiffe://prod/other".into();
    let wrong = PeerNameMismatch {
        expected: HOST.into(),
        shown,
    };
    assert_eq!(
        parted.caller,
        Some(HandshakeError::Ours(HandshakeErrorKind::WrongName(wrong)))
    );
    assert_eq!(
        parted.worker,
        Some(HandshakeError::Theirs(HandshakeErrorKind::BadCertificate))
    );
}

#[test]
fn self_signed_certificate_is_refused() {
    let ca = authority();
    for (is_ca, reason) in [
        (false, HandshakeErrorKind::UnknownIssuer),
        (true, HandshakeErrorKind::BadCertificate),
    ] {
        let own = |name| source(&ca, &self_signed(&[name], is_ca)).load().unwrap();
        let parted = handshake(&credentials(&ca, &[HOST]), &own("web.internal"))
            .err()
            .unwrap();
        assert_eq!(parted.worker, Some(HandshakeError::Ours(reason.clone())));
        let parted = handshake(&own(HOST), &credentials(&ca, &["web.internal"]))
            .err()
            .unwrap();
        assert_eq!(parted.caller, Some(HandshakeError::Ours(reason)));
    }
}

#[test]
fn worker_with_our_own_certificate_is_accepted_at_any_address() {
    let ca = authority();
    let own = credentials(&ca, &["10.0.0.7"]);
    assert!(handshake_with(&own, &own, "127.0.0.1").is_ok());
    // An equal name is not the same certificate.
    let parted = handshake_with(&credentials(&ca, &["10.0.0.7"]), &own, "127.0.0.1")
        .err()
        .unwrap();
    assert!(
        matches!(
            parted.caller,
            Some(HandshakeError::Ours(HandshakeErrorKind::WrongName(_)))
        ),
        "{parted:?}"
    );
}

#[test]
fn expected_names_replace_the_host_name() {
    let ca = authority();
    let worker = credentials(&ca, &["spiffe://prod/render/7"]);
    for names in [
        &["spiffe://prod/render/7"][..],
        &["spiffe://prod/render/*"],
        &["nobody", "spiffe://prod/*"],
    ] {
        assert!(
            handshake_with(&worker, &expecting(&ca, names), "10.0.0.7").is_ok(),
            "{names:?}"
        );
    }
    for names in [
        &["spiffe://prod/render"][..],
        &["spiffe://dev/*"],
        &["10.0.0.7"],
        &["prod"],
    ] {
        let parted = handshake_with(&worker, &expecting(&ca, names), "10.0.0.7")
            .err()
            .unwrap();
        assert!(
            matches!(
                parted.caller,
                Some(HandshakeError::Ours(HandshakeErrorKind::WrongName(_)))
            ),
            "{names:?}: {parted:?}"
        );
    }
    // Host patterns match within a label, and a wildcard certificate matches none.
    let (worker, star) = (
        credentials(&ca, &["a.pool.internal"]),
        credentials(&ca, &["*.pool.internal"]),
    );
    assert!(handshake_with(&worker, &expecting(&ca, &["*.Pool.internal"]), "10.0.0.7").is_ok());
    for (worker, name) in [
        (&worker, "*.other"),
        (&worker, "*.internal"),
        (&star, "*.pool.internal"),
    ] {
        let parted = handshake_with(worker, &expecting(&ca, &[name]), "10.0.0.7")
            .err()
            .unwrap();
        assert!(
            matches!(
                parted.caller,
                Some(HandshakeError::Ours(HandshakeErrorKind::WrongName(_)))
            ),
            "{name}: {parted:?}"
        );
    }
    // Expected names replace the host name.
    let parted = handshake(
        &credentials(&ca, &[HOST]),
        &expecting(&ca, &["spiffe://prod/*"]),
    )
    .err()
    .unwrap();
    assert!(
        matches!(
            parted.caller,
            Some(HandshakeError::Ours(HandshakeErrorKind::WrongName(_)))
        ),
        "{parted:?}"
    );
    let (many, caller) = (
        credentials(&ca, &["*.pool.internal", "127.0.0.1"]),
        expecting(&ca, &[]),
    );
    for (host, is_of) in [
        ("a.pool.internal", true),
        ("127.0.0.1", true),
        ("pool.internal", false),
        ("127.0.0.2", false),
    ] {
        assert_eq!(
            handshake_with(&many, &caller, host).is_ok(),
            is_of,
            "{host}"
        );
    }
}

#[test]
fn certificate_usages_are_enforced() {
    let ca = Authority::new("test CA", a_day()).unwrap();
    let der = PrivateKeyDer::from_pem_slice(ca.1.key.as_bytes()).unwrap();
    let issuer = rcgen::KeyPair::try_from(&der).unwrap();
    let der = CertificateDer::from_pem_slice(ca.1.certificate.as_bytes()).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_der(&der, issuer).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new([HOST.to_owned()]).unwrap();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let own = issued(&params.signed_by(&key, &issuer).unwrap(), &key);
    let server_only = source(&ca.0, &own).load().unwrap();
    assert!(handshake(&server_only, &credentials(&ca.0, &["web.internal"])).is_ok());
    let parted = handshake(&credentials(&ca.0, &[HOST]), &server_only)
        .err()
        .unwrap();
    assert_eq!(
        parted.worker,
        Some(HandshakeError::Ours(HandshakeErrorKind::WrongPurpose))
    );
}

#[test]
fn sessions_are_not_resumed() {
    let ca = authority();
    let (worker, caller) = (
        credentials(&ca, &[HOST]),
        credentials(&ca, &["web.internal"]),
    );
    let (server, client) = (serve(&worker), caller.client_config(PROTOCOLS));
    for _ in 0..3 {
        let name = WorkerCredentials::server_name(HOST).unwrap();
        let client = ClientConnection::new(client.clone(), name).unwrap();
        let met = run_handshake(client, ServerConnection::new(server.clone()).unwrap()).unwrap();
        assert_eq!(met.server.handshake_kind(), Some(HandshakeKind::Full));
    }
}

#[test]
fn plain_text_is_distinguished_from_bad_tls() {
    let ca = authority();
    for log in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\n\r\n",
        &[0; 64],
        &[0xff; 64],
    ] {
        let mut server = ServerConnection::new(serve(&credentials(&ca, &[HOST]))).unwrap();
        server.read_tls(&mut &log[..]).unwrap();
        let refusal = HandshakeError::from_rustls(&server.process_new_packets().unwrap_err());
        assert_eq!(
            refusal,
            HandshakeError::Ours(HandshakeErrorKind::NotTls),
            "{log:?}"
        );
    }
}

#[test]
fn common_version_and_protocol_are_required() {
    let ca = authority();
    let (worker, caller) = (
        credentials(&ca, &[HOST]),
        credentials(&ca, &["web.internal"]),
    );
    let connect = |config| {
        ClientConnection::new(config, WorkerCredentials::server_name(HOST).unwrap()).unwrap()
    };
    let other = connect(caller.client_config(&[b"smtp"]));
    let parted = run_handshake(other, ServerConnection::new(serve(&worker)).unwrap())
        .err()
        .unwrap();
    assert_eq!(
        parted.worker,
        Some(HandshakeError::Ours(HandshakeErrorKind::Protocol))
    );
    assert_eq!(
        parted.caller,
        Some(HandshakeError::Theirs(HandshakeErrorKind::Protocol))
    );
    let roots = rustls::RootCertStore::empty();
    let old = rustls::ClientConfig::builder_with_provider(super::super::provider());
    let old = old
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots);
    let old = connect(std::sync::Arc::new(old.with_no_client_auth()));
    let parted = run_handshake(old, ServerConnection::new(serve(&worker)).unwrap())
        .err()
        .unwrap();
    assert_eq!(
        parted.worker,
        Some(HandshakeError::Ours(HandshakeErrorKind::Version))
    );
    assert_eq!(
        parted.caller,
        Some(HandshakeError::Theirs(HandshakeErrorKind::Version))
    );
}

#[test]
fn failures_have_messages_and_metric_labels() {
    let wrong = HandshakeErrorKind::WrongName(PeerNameMismatch {
        expected: "a".into(),
        shown: "b".into(),
    });
    assert_eq!(
        HandshakeError::Ours(wrong.clone()).to_string(),
        "the certificate has the wrong name: it is for b, expected a"
    );
    assert_eq!(wrong.label(), "wrong_name");
    let error = std::io::Error::new(
        std::io::ErrorKind::InvalidData,
        rustls::Error::NoCertificatesPresented,
    );
    assert_eq!(
        HandshakeError::from_io(&error),
        Some(HandshakeError::Ours(HandshakeErrorKind::NoCertificate))
    );
    assert_eq!(
        HandshakeError::from_io(&std::io::ErrorKind::ConnectionReset.into()),
        None
    );
}

/// The settings of a worker process carry everything that its credentials need.
#[test]
fn credential_source_round_trips_to_another_process() {
    let ca = authority();
    let worker = credentials(&ca, &[HOST]);
    let told = serde_json::to_string(worker.source()).unwrap();
    let same = serde_json::from_str::<CredentialSource>(&told)
        .unwrap()
        .load()
        .unwrap();
    assert_eq!(same.source(), worker.source());
    assert!(handshake(&same, &credentials(&ca, &["web.internal"])).is_ok());
}

/// To replace a CA, both are trusted for a while.
#[test]
fn several_cas_are_trusted() {
    let (old, new) = (authority(), authority());
    let both = format!("{}{}", old.certificate(), new.certificate());
    let own = issue(&new, &[HOST], a_day());
    let worker = WorkerCredentials::from_pem(&both, &own.certificate, &own.key).unwrap();
    for ca in [&old, &new] {
        let own = issue(ca, &["web.internal"], a_day());
        let caller = WorkerCredentials::from_pem(&both, &own.certificate, &own.key).unwrap();
        assert!(handshake(&worker, &caller).is_ok());
    }
}

/// An offline CA signs intermediates, which sign workers.
#[test]
fn certificate_chain_with_intermediates_is_accepted() {
    let root_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "root");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = issued(&params.self_signed(&root_key).unwrap(), &root_key);
    let issuer = rcgen::Issuer::new(params.clone(), root_key);
    let key = rcgen::KeyPair::generate().unwrap();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "between");
    let between = issued(&params.signed_by(&key, &issuer).unwrap(), &key);
    let issuing = Authority::from_pem(&between.certificate, &between.key).unwrap();
    let load = |name: &str, between: &str| {
        let own = issue(&issuing, &[name], a_day());
        WorkerCredentials::from_pem(&root.certificate, own.certificate + between, own.key).unwrap()
    };
    let worker = load(HOST, &between.certificate);
    assert!(handshake(&worker, &load("web.internal", &between.certificate)).is_ok());
    let parted = handshake(&worker, &load("web.internal", "")).err().unwrap();
    assert_eq!(
        parted.worker,
        Some(HandshakeError::Ours(HandshakeErrorKind::UnknownIssuer))
    );
}
