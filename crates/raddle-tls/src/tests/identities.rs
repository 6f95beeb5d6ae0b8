//! Tests of the identity in a certificate.

use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use rustls::pki_types::CertificateDer;

use super::super::{CertificateName, Identity, IdentityError};

fn identity_of(names: Vec<SanType>) -> Identity {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "admin.internal");
    params.subject_alt_names = names;
    let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
    Identity::from_certificate(certificate.der()).unwrap()
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().unwrap())
}

#[test]
fn identity_has_the_subject_alternative_names() {
    let identity = identity_of(vec![
        dns("Web.Internal"),
        uri("spiffe://prod/web"),
        SanType::IpAddress([10, 0, 0, 1].into()),
    ]);
    let names = [
        CertificateName::Dns("web.internal".into()),
        CertificateName::Uri("spiffe://prod/web".into()),
    ];
    assert_eq!(identity.names(), names);
}

#[test]
fn common_name_is_ignored() {
    let identity = identity_of(vec![]);
    assert_eq!(
        (identity.names(), identity.to_string().as_str()),
        (&[][..], "a peer without a name")
    );
}

#[test]
fn wildcard_and_non_ascii_names_are_ignored() {
    assert!(identity_of(vec![dns("*.internal")]).names().is_empty());
    for name in [
        "spiffe://prod/*",
        "spiffe://prod/a\nb",
        "spiffe://prod/a\u{7f}",
        "spiffe://prod/a b",
    ] {
        assert!(identity_of(vec![uri(name)]).names().is_empty(), "{name:?}");
    }
}

#[test]
fn no_certificate_is_no_identity() {
    assert_eq!(Identity::from_peer_chain(None), Ok(None));
    assert_eq!(Identity::from_peer_chain(Some(&[])), Ok(None));
    assert_eq!(
        Identity::from_certificate(&CertificateDer::from(vec![1, 2, 3])),
        Err(IdentityError)
    );
}
