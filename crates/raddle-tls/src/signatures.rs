//! Signature verification, which is equal at both ends: the peer proves that it has the key of its
//! certificate.

/// Implements the signature methods of a certificate verifier.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &rustls::pki_types::CertificateDer<'_>,
            _: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            // Neither end offers TLS 1.2.
            Err(rustls::PeerIncompatible::Tls12NotOffered.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = $crate::provider().signature_verification_algorithms;
            rustls::crypto::verify_tls13_signature(message, certificate, signed, &algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            $crate::provider()
                .signature_verification_algorithms
                .supported_schemes()
        }
    };
}

pub(super) use signatures;
