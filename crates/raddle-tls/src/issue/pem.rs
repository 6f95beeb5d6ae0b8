//! PEM encoding.

use data_encoding::BASE64;

/// Characters per line.
const LINE: usize = 64;

/// Encodes a section with this label.
pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, next) = rest.split_at(LINE.min(rest.len()));
        pem.extend([line, "\n"]);
        rest = next;
    }
    pem + &format!("-----END {label}-----\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustls::pki_types::{CertificateDer, pem::PemObject};

    proptest! {
        #[test]
        fn encoded_pem_can_be_decoded(der in prop::collection::vec(any::<u8>(), 0..300)) {
            let pem = super::pem("CERTIFICATE", &der);
            let read = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
            prop_assert_eq!(read.as_ref(), &der[..]);
            prop_assert!(pem.lines().all(|line| line.len() <= 64 && !line.is_empty()));
        }
    }
}
