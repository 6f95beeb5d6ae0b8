//! Tests of encoding negotiation and failure detection against gRPC workers served in this process.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_core::Stream;
use futures_util::{StreamExt, stream};
use raddle_discovery::{Address, WorkerUid};
use raddle_model::routine::EncodedArgs;
use raddle_wire::{
    ENCODINGS,
    v1::{self, reply::What, worker_server},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener},
    time::{Sleep, sleep},
};
use tonic::{
    Code, Request, Response, Status,
    transport::{Server, server::Connected},
};

use super::*;

/// A worker that reads one encoding.
struct Reader {
    reads: Encoding,
    style: RefusalStyle,
    /// The encodings of the calls it received.
    called: Arc<Mutex<Vec<Encoding>>>,
}

/// How the worker refuses other encodings.
#[derive(Clone, Copy)]
enum RefusalStyle {
    /// Names the encoding that it reads.
    Helpful,
    /// Names nothing.
    Silent,
    /// Accepts the call first, and then names the encoding.
    Late,
}

type ReplyItems<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl worker_server::Worker for Reader {
    type DispatchStream = ReplyItems<v1::Reply>;

    async fn dispatch(
        &self,
        request: Request<v1::Call>,
    ) -> Result<Response<Self::DispatchStream>, Status> {
        let call = request.into_inner();
        let encoding = encoding::from_number(call.encoding).unwrap();
        self.called.lock().unwrap().push(encoding);
        let ack = Ok(v1::Reply {
            what: Some(What::Ack(v1::Ack {})),
        });
        let result = |value| {
            Ok(v1::Reply {
                what: Some(What::Result(value)),
            })
        };
        let mut refusal = Status::failed_precondition("unsupported encoding");
        if !matches!(self.style, RefusalStyle::Silent) {
            refusal
                .metadata_mut()
                .insert(ENCODINGS, self.reads.name().parse().unwrap());
        }
        match (encoding == self.reads, self.style) {
            (true, _) => Ok(Response::new(
                stream::iter([ack, result(call.arguments)]).boxed(),
            )),
            (false, RefusalStyle::Late) => {
                Ok(Response::new(stream::iter([ack, Err(refusal)]).boxed()))
            }
            (false, _) => Err(refusal),
        }
    }

    async fn stop(&self, _: Request<v1::StopRequest>) -> Result<Response<v1::StopReply>, Status> {
        Err(Status::unimplemented("not implemented"))
    }

    async fn info(&self, _: Request<v1::InfoRequest>) -> Result<Response<v1::InfoReply>, Status> {
        Err(Status::unimplemented("not implemented"))
    }

    async fn idle(&self, _: Request<v1::IdleRequest>) -> Result<Response<v1::IdleReply>, Status> {
        Err(Status::unimplemented("not implemented"))
    }
}

/// A worker, and a connection factory with the encodings that the worker was published with.
struct TestWorker {
    called: Arc<Mutex<Vec<Encoding>>>,
    factory: ConnectionFactory,
}

/// Starts a worker. It ends with the runtime of the test.
fn start_worker(reads: Encoding, style: RefusalStyle, published: &Encodings) -> TestWorker {
    let address = format!("unix-abstract:raddle-reader-{}", WorkerUid::new());
    let listener =
        UnixListener::bind(address.parse::<Address>().unwrap().socket_path().unwrap()).unwrap();
    let called = Arc::<Mutex<Vec<Encoding>>>::default();
    let service = worker_server::WorkerServer::new(Reader {
        reads,
        style,
        called: Arc::clone(&called),
    });
    let incoming = stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    tokio::spawn(
        Server::builder()
            .add_service(service)
            .serve_with_incoming(incoming.boxed()),
    );
    TestWorker {
        called,
        factory: ConnectionFactory::new(&address, LIMIT).encodings(published),
    }
}

impl TestWorker {
    async fn call(&self, argument: f64) -> Result<(Encoding, Bytes), RpcError> {
        let arguments = EncodedArgs::new(1).argument("n", &argument);
        let rewrite = arguments.rewrite();
        let call = v1::Call {
            arguments: arguments.finish().unwrap().into(),
            ..v1::Call::default()
        };
        let call = CallRequest::new(call, rewrite, Default::default(), None).unwrap();
        let mut replies = self.factory.connect().dispatch(call, None).await?;
        loop {
            match replies.next().await {
                CallEvent::Accepted => {}
                CallEvent::Item(value) => return Ok((replies.encoding(), value)),
                CallEvent::Failed(error) => return Err(error),
                other => panic!("{other:?}"),
            }
        }
    }

    /// The encodings of the calls since the last time.
    fn called(&self) -> Vec<Encoding> {
        std::mem::take(&mut *self.called.lock().unwrap())
    }
}

use Encoding::{Json, MessagePack};

#[tokio::test]
async fn negotiates_the_encoding_once_with_an_unknown_worker() {
    let worker = start_worker(Json, RefusalStyle::Helpful, &[].into());
    for called in [vec![MessagePack, Json], vec![Json], vec![Json]] {
        assert_eq!(
            worker.call(1.5).await,
            Ok((Json, Bytes::from_static(b"[1.5]")))
        );
        assert_eq!(worker.called(), called);
    }
}

#[tokio::test]
async fn calls_in_the_published_encoding() {
    let worker = start_worker(Json, RefusalStyle::Silent, &[Json].into());
    assert_eq!(
        worker.call(1.5).await,
        Ok((Json, Bytes::from_static(b"[1.5]")))
    );
    let compact = start_worker(
        MessagePack,
        RefusalStyle::Silent,
        &[Json, MessagePack].into(),
    );
    assert_eq!(compact.call(1.5).await.unwrap().0, MessagePack);
    assert_eq!(
        (worker.called(), compact.called()),
        (vec![Json], vec![MessagePack])
    );
    // The published encodings may be wrong.
    let mistaken = start_worker(MessagePack, RefusalStyle::Helpful, &[Json].into());
    assert_eq!(mistaken.call(1.5).await.unwrap().0, MessagePack);
    assert_eq!(mistaken.called(), [Json, MessagePack]);
}

#[tokio::test]
async fn does_not_retry_when_the_worker_names_no_encoding() {
    let worker = start_worker(Json, RefusalStyle::Silent, &[].into());
    let error = worker.call(1.5).await.unwrap_err();
    assert_eq!(
        (error.code, error.may_have_begun),
        (Code::FailedPrecondition, false)
    );
    assert_eq!(worker.called(), [MessagePack]);
}

#[tokio::test]
async fn does_not_resend_an_accepted_call() {
    let worker = start_worker(Json, RefusalStyle::Late, &[].into());
    let error = worker.call(1.5).await.unwrap_err();
    assert!(error.may_have_begun, "{error:?}");
    assert_eq!(worker.called(), [MessagePack]);
}

#[tokio::test]
async fn reports_arguments_that_the_workers_encoding_cannot_express() {
    let worker = start_worker(Json, RefusalStyle::Helpful, &[Json].into());
    let error = worker.call(f64::NAN).await.unwrap_err();
    assert_eq!(
        (error.code, error.may_have_begun),
        (Code::InvalidArgument, false)
    );
    assert!(error.message.contains("NaN"), "{error}");
    assert_eq!(worker.called(), [], "nothing was sent");
}

/// Drops all packets that arrive at a socket (a BPF filter that returns 0), as if its machine were
/// gone.
fn drop_packets(socket: &impl AsRawFd) {
    let mut drop_all = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: &raw mut drop_all,
    };
    let (value, size) = (
        (&raw const program).cast(),
        size_of_val(&program) as libc::socklen_t,
    );
    // SAFETY: the kernel reads a one-instruction program, which lives on this stack frame, from an
    // open descriptor.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            value,
            size,
        )
    };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

#[tokio::test]
async fn detects_a_lost_machine_over_grpc() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (called, sockets) = (Arc::default(), Arc::<Mutex<Vec<OwnedFd>>>::default());
    let service = worker_server::WorkerServer::new(Reader {
        reads: Json,
        style: RefusalStyle::Helpful,
        called: Arc::clone(&called),
    });
    let accepted = Arc::clone(&sockets);
    let incoming = stream::unfold((listener, accepted), |(listener, accepted)| async {
        let stream = listener.accept().await.map(|(stream, _)| stream);
        accepted.lock().unwrap().extend(
            stream
                .as_ref()
                .ok()
                .map(|stream| stream.as_fd().try_clone_to_owned().unwrap()),
        );
        Some((stream, (listener, accepted)))
    });
    tokio::spawn(
        Server::builder()
            .add_service(service)
            .serve_with_incoming(incoming.boxed()),
    );
    let worker = TestWorker {
        called,
        factory: ConnectionFactory::new(&address, LIMIT).encodings(&[Json].into()),
    };
    assert_eq!(worker.call(1.5).await.unwrap().0, Json);
    let calls = worker.called().len();
    sockets.lock().unwrap().iter().for_each(drop_packets);
    let began = Instant::now();
    let error = worker.call(2.5).await.unwrap_err();
    // HTTP/2 keep-alive alone would take 20 s.
    assert!(
        began.elapsed() < Duration::from_secs(18),
        "{:?}",
        began.elapsed()
    );
    assert!(
        error.may_have_begun && calls == 1 && worker.called().is_empty(),
        "{error:?}"
    );
    // A new connection works.
    assert_eq!(
        worker.call(3.5).await,
        Ok((Json, Bytes::from_static(b"[3.5]")))
    );
}

/// A stream that pauses reading once, after `left` bytes.
struct Stalling {
    stream: TcpStream,
    left: usize,
    pause: Pin<Box<Sleep>>,
}

impl AsyncRead for Stalling {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            ready!(self.pause.as_mut().poll(cx));
        }
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        let read = into.filled().len() - before;
        if self.left > 0 && read >= self.left {
            self.pause = Box::pin(sleep(Duration::from_secs(4)));
        }
        self.left = self.left.saturating_sub(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stalling {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connected for Stalling {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

#[tokio::test]
async fn worker_that_stalls_briefly_keeps_its_connection() {
    const LARGE: usize = 32 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let reader = Reader {
        reads: MessagePack,
        style: RefusalStyle::Silent,
        called: Arc::default(),
    };
    let service = worker_server::WorkerServer::new(reader).max_decoding_message_size(2 * LARGE);
    let incoming = stream::unfold(listener, |listener| async {
        let stream = listener.accept().await.map(|(stream, _)| stream);
        let stalling = |stream| Stalling {
            stream,
            left: 4096,
            pause: Box::pin(sleep(Duration::ZERO)),
        };
        Some((stream.map(stalling), listener))
    });
    // The HTTP/2 windows hold all of it, so TCP is what fills up.
    let room = 2 * LARGE as u32;
    let mut server = Server::builder()
        .initial_stream_window_size(room)
        .initial_connection_window_size(room);
    tokio::spawn(
        server
            .add_service(service)
            .serve_with_incoming(incoming.boxed()),
    );
    let arguments = EncodedArgs::new(1).argument("text", &"x".repeat(LARGE));
    let rewrite = arguments.rewrite();
    let call = v1::Call {
        arguments: arguments.finish().unwrap().into(),
        ..v1::Call::default()
    };
    let call = CallRequest::new(call, rewrite, Default::default(), None).unwrap();
    let factory = ConnectionFactory::new(&address, LIMIT).encodings(&[MessagePack].into());
    let began = Instant::now();
    let mut replies = factory
        .connect()
        .dispatch(call, Some(Duration::from_secs(60)))
        .await
        .unwrap();
    assert!(
        began.elapsed() > Duration::from_secs(3),
        "the worker did not stall: {:?}",
        began.elapsed()
    );
    assert_eq!(replies.next().await, CallEvent::Accepted);
    assert!(matches!(replies.next().await, CallEvent::Item(value) if value.len() > LARGE));
}
