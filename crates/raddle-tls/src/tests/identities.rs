//! What a certificate says of who shows it.

use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use rustls::pki_types::CertificateDer;

use super::super::{CertificateName, Identity, IdentityError};

fn of(names: Vec<SanType>) -> Identity {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "admin.internal");
    params.subject_alt_names = names;
    let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
    Identity::of(certificate.der()).unwrap()
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().unwrap())
}

#[test]
fn names_are_those_that_were_vouched_for() {
    let identity = of(vec![
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
fn the_common_name_is_not_a_name() {
    let identity = of(vec![]);
    assert_eq!(
        (identity.names(), identity.to_string().as_str()),
        (&[][..], "nobody by name")
    );
}

#[test]
fn names_that_are_many_or_could_deceive_are_none() {
    assert!(of(vec![dns("*.internal")]).names().is_empty());
    for name in [
        "spiffe://prod/*",
        "spiffe://prod/a\nb",
        "spiffe://prod/a\u{7f}",
        "spiffe://prod/a b",
    ] {
        assert!(of(vec![uri(name)]).names().is_empty(), "{name:?}");
    }
}

#[test]
fn without_a_certificate_there_is_nobody() {
    assert_eq!(Identity::of_peer(None), Ok(None));
    assert_eq!(Identity::of_peer(Some(&[])), Ok(None));
    assert_eq!(
        Identity::of(&CertificateDer::from(vec![1, 2, 3])),
        Err(IdentityError)
    );
}
