//! The interface over TLS.

use std::{fs, sync::Arc};

use raddle_broker_connect::connect;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{client::Answer, world::OWNER};
use crate::{Acceptor, App, Options, SignIn, TlsFileError, WebServer, auth::hash_token};

/// As OpenSSL writes it, in lines of 64 characters.
fn to_pem(label: &str, der: &[u8]) -> String {
    let text = data_encoding::BASE64.encode(der);
    let lines: Vec<&str> = (0..text.len())
        .step_by(64)
        .map(|at| &text[at..text.len().min(at + 64)])
        .collect();
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        lines.join("\n")
    )
}

async fn connect_tls(
    port: u16,
    root: &CertificateDer<'static>,
    protocol: &[u8],
) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await.unwrap()
}

#[tokio::test]
async fn browsers_get_http_2_and_a_secure_cookie() {
    let directory = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (
        directory.path().join("cert.pem"),
        directory.path().join("key.pem"),
    );
    fs::write(&certificate, to_pem("CERTIFICATE", made.cert.der())).unwrap();
    fs::write(
        &key,
        to_pem("PRIVATE KEY", &made.signing_key.serialize_der()),
    )
    .unwrap();
    assert!(matches!(
        Acceptor::from_files(&certificate, &directory.path().join("absent")),
        Err(TlsFileError::Unreadable { .. })
    ));
    let acceptor = Acceptor::from_files(&certificate, &key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = format!("sqlite:{}", directory.path().join("raddle.db").display());
    let options = Options {
        port: Some(port),
        is_secure: true,
        sign_in: SignIn::Tokens {
            owner: Some(hash_token(OWNER)),
        },
        ..Options::default()
    };
    let app = App::new(connect(&url.parse().unwrap()).await.unwrap(), options);
    let (stop, stopped) = oneshot::channel::<()>();
    let server = WebServer::tcp(listener, Some(acceptor));
    let serving = tokio::spawn(server.run(app, async {
        let _ = stopped.await;
    }));
    let root = made.cert.der().clone();
    let h2 = connect_tls(port, &root, b"h2").await;
    assert_eq!(h2.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut stream = connect_tls(port, &root, b"http/1.1").await;
    let body = serde_json::json!({ "token": OWNER }).to_string();
    let request = format!(
        "POST /login HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let answer = Answer::parse(&bytes).expect(303);
    let cookie = answer.header("set-cookie").unwrap();
    assert!(cookie.ends_with("; Secure"), "{cookie}");
    // Plain text to the port is no request.
    let mut plain = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    plain
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    drop(h2);
    stop.send(()).unwrap();
    serving.await.unwrap();
}
