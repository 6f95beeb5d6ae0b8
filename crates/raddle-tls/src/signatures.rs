//! That whoever shows a certificate has its key: the same question at both ends of a connection.

/// The methods of a verifier, of either end, that look at signatures.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &rustls::pki_types::CertificateDer<'_>,
            _: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            // Neither end speaks it.
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
