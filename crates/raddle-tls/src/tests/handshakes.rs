//! Who is let in, and who is refused and why.

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
    recipe(ca, &issue(ca, &["caller.internal"], a_day()))
        .expecting(expected)
        .load()
        .unwrap()
}

#[test]
fn two_of_the_same_ca_meet_and_know_each_other() {
    let ca = authority();
    let worker = credentials(&ca, &[HOST]);
    let caller = credentials(&ca, &["web.internal", "spiffe://prod/web"]);
    let met = meet(&worker, &caller).unwrap();
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
fn who_has_nothing_to_show_is_refused() {
    let ca = authority();
    let parted = meet(&credentials(&ca, &[HOST]), &stranger(&ca))
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
fn one_way_tls_lets_everybody_in_and_knows_nobody() {
    let ca = authority();
    let own = issue(&ca, &[HOST], a_day());
    let worker = recipe(&ca, &own).mutual(false).load().unwrap();
    assert!(meet(&worker, &stranger(&ca)).unwrap().caller().is_none());
    assert!(
        meet(&worker, &credentials(&ca, &["web.internal"]))
            .unwrap()
            .caller()
            .is_none()
    );
    // The worker is verified all the same.
    let parted = meet(&worker, &stranger(&authority())).err().unwrap();
    assert_eq!(
        parted.caller,
        Some(HandshakeError::Ours(HandshakeErrorKind::UnknownIssuer))
    );
}

#[test]
fn another_ca_is_no_ca() {
    let (ours, theirs) = (authority(), authority());
    // Each trusts the other's CA, so that only one side has something to refuse.
    let worker = credentials(&ours, &[HOST]);
    let own = issue(&theirs, &["web.internal"], a_day());
    let caller = recipe(&ours, &own).load().unwrap();
    let parted = meet(&worker, &caller).err().unwrap();
    assert_eq!(
        parted.worker,
        Some(HandshakeError::Ours(HandshakeErrorKind::UnknownIssuer))
    );
    assert_eq!(
        parted.caller,
        Some(HandshakeError::Theirs(HandshakeErrorKind::UnknownIssuer))
    );
    let parted = meet(&worker, &credentials(&theirs, &["web.internal"]))
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
fn what_has_expired_is_refused_on_either_side() {
    let ca = authority();
    let old = |name| {
        recipe(&ca, &issue(&ca, &[name], yesterday()))
            .load()
            .unwrap()
    };
    let parted = meet(&credentials(&ca, &[HOST]), &old("web.internal"))
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
    let parted = meet(&old(HOST), &credentials(&ca, &["web.internal"]))
        .err()
        .unwrap();
    assert_eq!(
        parted.caller,
        Some(HandshakeError::Ours(HandshakeErrorKind::Expired))
    );
}

#[test]
fn a_worker_of_another_name_is_refused() {
    let ca = authority();
    let worker = credentials(&ca, &["other.internal", "spiffe://prod/other"]);
    let parted = meet(&worker, &credentials(&ca, &["web.internal"]))
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
fn who_vouches_for_himself_is_refused() {
    let ca = authority();
    for (is_ca, reason) in [
        (false, HandshakeErrorKind::UnknownIssuer),
        (true, HandshakeErrorKind::BadCertificate),
    ] {
        let own = |name| recipe(&ca, &self_signed(&[name], is_ca)).load().unwrap();
        let parted = meet(&credentials(&ca, &[HOST]), &own("web.internal"))
            .err()
            .unwrap();
        assert_eq!(parted.worker, Some(HandshakeError::Ours(reason.clone())));
        let parted = meet(&own(HOST), &credentials(&ca, &["web.internal"]))
            .err()
            .unwrap();
        assert_eq!(parted.caller, Some(HandshakeError::Ours(reason)));
    }
}

#[test]
fn whoever_has_our_own_certificate_is_ours_wherever_it_is() {
    let ca = authority();
    let own = credentials(&ca, &["10.0.0.7"]);
    assert!(meet_at(&own, &own, "127.0.0.1").is_ok());
    // The same name is not the same certificate.
    let parted = meet_at(&credentials(&ca, &["10.0.0.7"]), &own, "127.0.0.1")
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
fn workers_may_be_known_by_other_names_than_their_hosts() {
    let ca = authority();
    let worker = credentials(&ca, &["spiffe://prod/render/7"]);
    for names in [
        &["spiffe://prod/render/7"][..],
        &["spiffe://prod/render/*"],
        &["nobody", "spiffe://prod/*"],
    ] {
        assert!(
            meet_at(&worker, &expecting(&ca, names), "10.0.0.7").is_ok(),
            "{names:?}"
        );
    }
    for names in [
        &["spiffe://prod/render"][..],
        &["spiffe://dev/*"],
        &["10.0.0.7"],
        &["prod"],
    ] {
        let parted = meet_at(&worker, &expecting(&ca, names), "10.0.0.7")
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
    // Of hosts as well, within a label; and one that has a star itself is nobody in particular.
    let (worker, star) = (
        credentials(&ca, &["a.pool.internal"]),
        credentials(&ca, &["*.pool.internal"]),
    );
    assert!(meet_at(&worker, &expecting(&ca, &["*.Pool.internal"]), "10.0.0.7").is_ok());
    for (worker, name) in [
        (&worker, "*.other"),
        (&worker, "*.internal"),
        (&star, "*.pool.internal"),
    ] {
        let parted = meet_at(worker, &expecting(&ca, &[name]), "10.0.0.7")
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
    // Where names are expected, the host is none of them by itself.
    let parted = meet(
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
        assert_eq!(meet_at(&many, &caller, host).is_ok(), is_of, "{host}");
    }
}

#[test]
fn a_certificate_is_used_for_what_it_was_issued_for() {
    let ca = Authority::new("test CA", a_day()).unwrap();
    let der = PrivateKeyDer::from_pem_slice(ca.1.key.as_bytes()).unwrap();
    let issuer = rcgen::KeyPair::try_from(&der).unwrap();
    let der = CertificateDer::from_pem_slice(ca.1.certificate.as_bytes()).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_der(&der, issuer).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new([HOST.to_owned()]).unwrap();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let own = issued(&params.signed_by(&key, &issuer).unwrap(), &key);
    let server_only = recipe(&ca.0, &own).load().unwrap();
    assert!(meet(&server_only, &credentials(&ca.0, &["web.internal"])).is_ok());
    let parted = meet(&credentials(&ca.0, &[HOST]), &server_only)
        .err()
        .unwrap();
    assert_eq!(
        parted.worker,
        Some(HandshakeError::Ours(HandshakeErrorKind::WrongPurpose))
    );
}

#[test]
fn nobody_is_let_in_by_what_was_agreed_before() {
    let ca = authority();
    let (worker, caller) = (
        credentials(&ca, &[HOST]),
        credentials(&ca, &["web.internal"]),
    );
    let (server, client) = (serve(&worker), caller.client_config(PROTOCOLS));
    for _ in 0..3 {
        let name = WorkerCredentials::server_name(HOST).unwrap();
        let client = ClientConnection::new(client.clone(), name).unwrap();
        let met = shake(client, ServerConnection::new(server.clone()).unwrap()).unwrap();
        assert_eq!(met.server.handshake_kind(), Some(HandshakeKind::Full));
    }
}

#[test]
fn what_is_no_tls_is_told_from_what_is_wrong_with_it() {
    let ca = authority();
    for said in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\n\r\n",
        &[0; 64],
        &[0xff; 64],
    ] {
        let mut server = ServerConnection::new(serve(&credentials(&ca, &[HOST]))).unwrap();
        server.read_tls(&mut &said[..]).unwrap();
        let refusal = HandshakeError::of_tls(&server.process_new_packets().unwrap_err());
        assert_eq!(
            refusal,
            HandshakeError::Ours(HandshakeErrorKind::NotTls),
            "{said:?}"
        );
    }
}

#[test]
fn there_has_to_be_a_common_version_and_protocol() {
    let ca = authority();
    let (worker, caller) = (
        credentials(&ca, &[HOST]),
        credentials(&ca, &["web.internal"]),
    );
    let connect = |config| {
        ClientConnection::new(config, WorkerCredentials::server_name(HOST).unwrap()).unwrap()
    };
    let other = connect(caller.client_config(&[b"smtp"]));
    let parted = shake(other, ServerConnection::new(serve(&worker)).unwrap())
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
    let parted = shake(old, ServerConnection::new(serve(&worker)).unwrap())
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
fn refusals_have_words_for_people_and_for_metrics() {
    let wrong = HandshakeErrorKind::WrongName(PeerNameMismatch {
        expected: "a".into(),
        shown: "b".into(),
    });
    assert_eq!(
        HandshakeError::Ours(wrong.clone()).to_string(),
        "the peer was refused: the certificate is not the right one: it is that of b, and not of a"
    );
    assert_eq!(wrong.label(), "wrong_name");
    let error = std::io::Error::new(
        std::io::ErrorKind::InvalidData,
        rustls::Error::NoCertificatesPresented,
    );
    assert_eq!(
        HandshakeError::of(&error),
        Some(HandshakeError::Ours(HandshakeErrorKind::NoCertificate))
    );
    assert_eq!(
        HandshakeError::of(&std::io::ErrorKind::ConnectionReset.into()),
        None
    );
}

/// What a worker is told when it is started is all that it needs.
#[test]
fn another_process_can_have_the_same_credentials() {
    let ca = authority();
    let worker = credentials(&ca, &[HOST]);
    let told = serde_json::to_string(worker.recipe()).unwrap();
    let same = serde_json::from_str::<CredentialSource>(&told)
        .unwrap()
        .load()
        .unwrap();
    assert_eq!(same.recipe(), worker.recipe());
    assert!(meet(&same, &credentials(&ca, &["web.internal"])).is_ok());
}

/// How a CA is replaced: for a while both are trusted.
#[test]
fn any_of_several_cas_will_do() {
    let (old, new) = (authority(), authority());
    let both = format!("{}{}", old.certificate(), new.certificate());
    let own = issue(&new, &[HOST], a_day());
    let worker = WorkerCredentials::from_pem(&both, &own.certificate, &own.key).unwrap();
    for ca in [&old, &new] {
        let own = issue(ca, &["web.internal"], a_day());
        let caller = WorkerCredentials::from_pem(&both, &own.certificate, &own.key).unwrap();
        assert!(meet(&worker, &caller).is_ok());
    }
}

/// Between a CA that is kept under lock and key and a worker there may be others.
#[test]
fn a_certificate_may_come_with_those_between() {
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
    assert!(meet(&worker, &load("web.internal", &between.certificate)).is_ok());
    let parted = meet(&worker, &load("web.internal", "")).err().unwrap();
    assert_eq!(
        parted.worker,
        Some(HandshakeError::Ours(HandshakeErrorKind::UnknownIssuer))
    );
}
