//! A collector: takes spans over gRPC and over HTTP at one address, plain or with TLS, and keeps
//! them with the headers of their requests.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, mpsc},
    thread,
};

use axum::{body::Bytes, http::HeaderMap, routing::post};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value},
    trace::v1::Span,
};
use prost::Message;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tonic::{Request, Response, Status, service::Routes};

/// One export.
pub(super) struct Received {
    /// Whether it came by gRPC.
    pub(super) is_grpc: bool,
    pub(super) headers: HeaderMap,
    pub(super) request: ExportTraceServiceRequest,
}

pub(super) struct Collector {
    pub(super) address: SocketAddr,
    kept: Kept,
}

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Received>>>);

#[tonic::async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        self.0.lock().unwrap().push(Received {
            is_grpc: true,
            headers: metadata.into_headers(),
            request,
        });
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Without TLS.
    pub(super) fn start() -> Self {
        Self::serve(None)
    }

    /// With the certificate and key of a server, for clients that have a certificate of this CA.
    pub(super) fn start_tls(
        ca: &Path,
        (certificate, key): &(impl AsRef<Path>, impl AsRef<Path>),
    ) -> Self {
        let read = |path: &Path| {
            CertificateDer::pem_file_iter(path)
                .unwrap()
                .map(Result::unwrap)
                .collect::<Vec<_>>()
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(read(ca));
        let provider = Arc::new(ring::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
                .build()
                .unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(
                read(certificate.as_ref()),
                PrivateKeyDer::from_pem_file(key).unwrap(),
            )
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self::serve(Some(Arc::new(config).into()))
    }

    /// It ends with the process of the test.
    fn serve(tls: Option<TlsAcceptor>) -> Self {
        let (kept, (told, address)) = (Kept::default(), mpsc::channel());
        let shared = kept.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(listener.local_addr().unwrap()).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    tokio::spawn(converse(stream, tls.clone(), shared.clone()));
                }
            })
        });
        Self {
            address: address.recv().unwrap(),
            kept,
        }
    }

    pub(super) fn spans(&self) -> Vec<Span> {
        let received = self.kept.0.lock().unwrap();
        let scopes = received
            .iter()
            .flat_map(|one| &one.request.resource_spans)
            .flat_map(|of| &of.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    /// Looks at the first export.
    pub(super) fn first<T>(&self, look: impl FnOnce(&Received) -> T) -> T {
        look(&self.kept.0.lock().unwrap()[0])
    }
}

async fn converse(stream: TcpStream, tls: Option<TlsAcceptor>, kept: Kept) {
    let over_http = {
        let kept = kept.clone();
        async move |headers: HeaderMap, body: Bytes| {
            let request = ExportTraceServiceRequest::decode(body).unwrap();
            kept.0.lock().unwrap().push(Received {
                is_grpc: false,
                headers,
                request,
            });
            ExportTraceServiceResponse::default().encode_to_vec()
        }
    };
    let grpc = Routes::new(TraceServiceServer::new(kept))
        .prepare()
        .into_axum_router();
    let service = TowerToHyperService::new(grpc.route("/v1/traces", post(over_http)));
    let http = auto::Builder::new(TokioExecutor::new());
    // A client that breaks off, or is not trusted, is what some tests are about.
    let _ = match tls {
        Some(tls) => match tls.accept(stream).await {
            Ok(stream) => http.serve_connection(TokioIo::new(stream), service).await,
            Err(_) => return,
        },
        None => http.serve_connection(TokioIo::new(stream), service).await,
    };
}

pub(super) fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> &'a str {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text,
        other => panic!("{key} is {other:?} in {attributes:?}"),
    }
}

pub(super) fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
