//! One HTTP request to the API server, on its own connection: a dead connection affects no other
//! request.

use std::{io, time::Duration};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use raddle_container::one_line;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::AbortHandle,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{
    access::ClusterAccess,
    error::{ApiError, ApiStatus},
};

/// A response whose body is not read yet.
pub(super) struct HttpResponse {
    pub(super) body: Incoming,
    status: u16,
    retry_after: Option<Duration>,
    /// Dropping this closes the connection.
    _connection: HttpConnection,
}

struct HttpConnection(AbortHandle);

impl Drop for HttpConnection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for the head of a response, and for a whole short response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of a response: a list of ten thousand pods.
const MAX_BYTES: usize = 128 << 20;
const AGENT: &str = concat!("raddle/", env!("CARGO_PKG_VERSION"));

trait HttpStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> HttpStream for T {}

/// Sends a request, and reads the whole response.
pub(super) async fn request(
    access: &ClusterAccess,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Bytes, ApiError> {
    let talk = async {
        let answer = open(access, method, path, body).await?;
        let HttpResponse {
            body, _connection, ..
        } = answer;
        Ok(Limited::new(body, MAX_BYTES)
            .collect()
            .await
            .map_err(|error| unreachable(access, &error))?
            .to_bytes())
    };
    timeout(RESPONSE_TIMEOUT, talk)
        .await
        .map_err(|_| no_answer(access))?
}

/// Sends a request, and returns the response when it has begun, if it is a success.
pub(super) async fn open(
    access: &ClusterAccess,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<HttpResponse, ApiError> {
    let answer = timeout(RESPONSE_TIMEOUT, send(access, method, path, body))
        .await
        .map_err(|_| no_answer(access))??;
    if (200..300).contains(&answer.status) {
        return Ok(answer);
    }
    let HttpResponse {
        body,
        status,
        retry_after,
        _connection,
    } = answer;
    let said = timeout(RESPONSE_TIMEOUT, Limited::new(body, MAX_BYTES).collect()).await;
    let said = said
        .ok()
        .and_then(Result::ok)
        .map(|body| body.to_bytes())
        .unwrap_or_default();
    // A proxy may answer with other text.
    let said: ApiStatus = serde_json::from_slice(&said).unwrap_or_else(|_| ApiStatus {
        message: String::from_utf8_lossy(&said).into_owned(),
        ..ApiStatus::default()
    });
    Err(ApiError::refused(
        ApiStatus {
            code: status,
            ..said
        },
        retry_after,
    ))
}

async fn send(
    access: &ClusterAccess,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<HttpResponse, ApiError> {
    let request = build_request(access, method, path, body)?;
    let wire = connect(access)
        .await
        .map_err(|error| unreachable(access, &error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(wire))
        .await
        .map_err(|error| unreachable(access, &error))?;
    // Ends with the response, or is aborted with it.
    let connection = HttpConnection(tokio::spawn(async { drop(connection.await) }).abort_handle());
    let response = sender
        .send_request(request)
        .await
        .map_err(|error| unreachable(access, &error))?;
    let retry_after = retry_after(&response);
    let status = response.status().as_u16();
    Ok(HttpResponse {
        body: response.into_body(),
        status,
        retry_after,
        _connection: connection,
    })
}

fn build_request(
    access: &ClusterAccess,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Request<Full<Bytes>>, ApiError> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, access.server.authority.as_str())
        .header(USER_AGENT, AGENT)
        .header(ACCEPT, "application/json");
    if let Some(token) = access
        .token()
        .map_err(|error| ApiError::Credentials(error.to_string()))?
    {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    if body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let body = body.map(Value::to_string).unwrap_or_default();
    request
        .body(Full::new(body.into()))
        .map_err(|error| ApiError::Credentials(error.to_string()))
}

async fn connect(access: &ClusterAccess) -> io::Result<Box<dyn HttpStream>> {
    let server = &access.server;
    let stream = timeout(
        CONNECT_TIMEOUT,
        raddle_dns::connect(server.authority.host(), server.port),
    )
    .await??;
    stream.set_nodelay(true)?;
    Ok(match &server.tls {
        Some((config, name)) => Box::new(
            TlsConnector::from(config.clone())
                .connect(name.clone(), stream)
                .await?,
        ),
        None => Box::new(stream),
    })
}

/// Parses `Retry-After` in seconds, as the API sends it. For a date, our own pause applies.
fn retry_after(response: &Response<Incoming>) -> Option<Duration> {
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

pub(super) fn unreachable(access: &ClusterAccess, error: &dyn std::fmt::Display) -> ApiError {
    ApiError::Unreachable {
        server: access.server.authority.to_string(),
        reason: one_line(&error.to_string()),
    }
}

fn no_answer(access: &ClusterAccess) -> ApiError {
    unreachable(
        access,
        &format_args!("it has not answered for {} s", RESPONSE_TIMEOUT.as_secs()),
    )
}

#[cfg(test)]
mod tests {
    use std::{
        path::Path,
        process::{Command, Stdio},
        sync::Arc,
    };

    use rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    };
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };
    use tokio_rustls::TlsAcceptor;

    use super::{super::super::ClusterConfig, *};

    /// Makes a certificate for 127.0.0.1 and its CA.
    fn certify(directory: &Path) {
        let script = "openssl ecparam -name prime256v1 -genkey -noout -out ca.key
            openssl req -x509 -new -key ca.key -days 2 -subj /CN=stranger -out ca.crt
            openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout server.key -subj /CN=server -out server.csr
            echo subjectAltName=IP:127.0.0.1 > extensions
            openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out server.crt
            openssl ecparam -name prime256v1 -genkey -noout -out other.key
            openssl req -x509 -new -key other.key -days 2 -subj /CN=another -out other.crt";
        let mut shell = Command::new("sh");
        shell
            .args(["-ec", script])
            .current_dir(directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        assert!(shell.status().unwrap().success());
    }

    /// Answers requests with themselves.
    async fn echo(listener: TcpListener, directory: &Path) {
        let chain = CertificateDer::pem_file_iter(directory.join("server.crt"))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        let key = PrivateKeyDer::from_pem_file(directory.join("server.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(
            config
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .unwrap(),
        ));
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(stream.read_u8().await.unwrap());
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", asked.len());
            stream
                .write_all(&[head.as_bytes(), &asked].concat())
                .await
                .unwrap();
            stream.shutdown().await.unwrap();
        }
    }

    #[tokio::test]
    async fn verifies_the_server_and_sends_the_current_token() {
        let directory = tempfile::tempdir().unwrap();
        certify(directory.path());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let access = |ca: &str| {
            let cluster = ClusterConfig {
                server: Some(format!("https://127.0.0.1:{port}")),
                ca_file: Some(ca.into()),
                token_file: Some("token".into()),
                ..ClusterConfig::default()
            };
            ClusterAccess::find(&cluster, directory.path()).unwrap()
        };
        let own_ids = access("ca.crt");
        let talk = async {
            for token in ["one", "two"] {
                std::fs::write(directory.path().join("token"), token).unwrap();
                let asked = request(&own_ids, Method::GET, "/api", None).await.unwrap();
                let asked = String::from_utf8_lossy(&asked).to_lowercase();
                assert!(asked.starts_with("get /api http/1.1\r\n"), "{asked}");
                assert!(
                    asked.contains(&format!("authorization: bearer {token}\r\n")),
                    "{asked}"
                );
                assert!(
                    asked.contains(&format!("host: 127.0.0.1:{port}\r\n")),
                    "{asked}"
                );
            }
            let stranger = request(&access("other.crt"), Method::GET, "/api", None).await;
            assert!(
                matches!(stranger, Err(ApiError::Unreachable { .. })),
                "{stranger:?}"
            );
            std::fs::remove_file(directory.path().join("token")).unwrap();
            assert!(matches!(
                request(&own_ids, Method::GET, "/api", None).await,
                Err(ApiError::Credentials(_))
            ));
        };
        tokio::select! {
            () = talk => {}
            () = echo(listener, directory.path()) => {}
        }
    }
}
