//! Finding out what a worker reads, with workers that are written by others, served in this process.

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

/// A worker that reads this and nothing else.
struct Reader {
    reads: Encoding,
    manner: Manner,
    /// What it was called in.
    called: Arc<Mutex<Vec<Encoding>>>,
}

/// How it refuses what it does not read.
#[derive(Clone, Copy)]
enum Manner {
    /// It says what it reads.
    Helpful,
    /// It says that it does not read that.
    Curt,
    /// It takes the call, and then says what it reads.
    Late,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl worker_server::Worker for Reader {
    type DispatchStream = Answers<v1::Reply>;

    async fn dispatch(
        &self,
        request: Request<v1::Call>,
    ) -> Result<Response<Self::DispatchStream>, Status> {
        let call = request.into_inner();
        let encoding = encoding::of_number(call.encoding).unwrap();
        self.called.lock().unwrap().push(encoding);
        let ack = Ok(v1::Reply {
            what: Some(What::Ack(v1::Ack {})),
        });
        let result = |value| {
            Ok(v1::Reply {
                what: Some(What::Result(value)),
            })
        };
        let mut refusal = Status::failed_precondition("it does not read that");
        if !matches!(self.manner, Manner::Curt) {
            refusal
                .metadata_mut()
                .insert(ENCODINGS, self.reads.name().parse().unwrap());
        }
        match (encoding == self.reads, self.manner) {
            (true, _) => Ok(Response::new(
                stream::iter([ack, result(call.arguments)]).boxed(),
            )),
            (false, Manner::Late) => Ok(Response::new(stream::iter([ack, Err(refusal)]).boxed())),
            (false, _) => Err(refusal),
        }
    }

    async fn stop(&self, _: Request<v1::StopRequest>) -> Result<Response<v1::StopReply>, Status> {
        Err(Status::unimplemented("it goes on"))
    }

    async fn info(&self, _: Request<v1::InfoRequest>) -> Result<Response<v1::InfoReply>, Status> {
        Err(Status::unimplemented("it says nothing"))
    }

    async fn idle(&self, _: Request<v1::IdleRequest>) -> Result<Response<v1::IdleReply>, Status> {
        Err(Status::unimplemented("it says nothing"))
    }
}

/// A worker, and the way to it for who was told that it reads these.
struct Met {
    called: Arc<Mutex<Vec<Encoding>>>,
    factory: ConnectionFactory,
}

/// Starts one. It ends with the runtime of the test.
fn meet(reads: Encoding, manner: Manner, said: &Encodings) -> Met {
    let address = format!("unix-abstract:raddle-reader-{}", WorkerUid::new());
    let listener =
        UnixListener::bind(address.parse::<Address>().unwrap().socket_path().unwrap()).unwrap();
    let called = Arc::<Mutex<Vec<Encoding>>>::default();
    let service = worker_server::WorkerServer::new(Reader {
        reads,
        manner,
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
    Met {
        called,
        factory: ConnectionFactory::new(&address, LIMIT).encodings(said),
    }
}

impl Met {
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
                CallEvent::Taken => {}
                CallEvent::Item(value) => return Ok((replies.encoding(), value)),
                CallEvent::Refused(error) => return Err(error),
                other => panic!("{other:?}"),
            }
        }
    }

    /// What it was called in since this was asked.
    fn called(&self) -> Vec<Encoding> {
        std::mem::take(&mut *self.called.lock().unwrap())
    }
}

use Encoding::{Json, MessagePack};

#[tokio::test]
async fn a_worker_of_which_nothing_is_known_says_what_it_reads_and_is_asked_once() {
    let worker = meet(Json, Manner::Helpful, &[].into());
    for called in [vec![MessagePack, Json], vec![Json], vec![Json]] {
        assert_eq!(
            worker.call(1.5).await,
            Ok((Json, Bytes::from_static(b"[1.5]")))
        );
        assert_eq!(worker.called(), called);
    }
}

#[tokio::test]
async fn a_worker_is_called_in_what_is_said_of_it() {
    let worker = meet(Json, Manner::Curt, &[Json].into());
    assert_eq!(
        worker.call(1.5).await,
        Ok((Json, Bytes::from_static(b"[1.5]")))
    );
    let compact = meet(MessagePack, Manner::Curt, &[Json, MessagePack].into());
    assert_eq!(compact.call(1.5).await.unwrap().0, MessagePack);
    assert_eq!(
        (worker.called(), compact.called()),
        (vec![Json], vec![MessagePack])
    );
    // What is said may be wrong.
    let mistaken = meet(MessagePack, Manner::Helpful, &[Json].into());
    assert_eq!(mistaken.call(1.5).await.unwrap().0, MessagePack);
    assert_eq!(mistaken.called(), [Json, MessagePack]);
}

#[tokio::test]
async fn who_does_not_say_what_it_reads_is_not_asked_again() {
    let worker = meet(Json, Manner::Curt, &[].into());
    let error = worker.call(1.5).await.unwrap_err();
    assert_eq!(
        (error.code, error.may_have_begun),
        (Code::FailedPrecondition, false)
    );
    assert_eq!(worker.called(), [MessagePack]);
}

#[tokio::test]
async fn a_call_that_was_taken_is_not_made_again() {
    let worker = meet(Json, Manner::Late, &[].into());
    let error = worker.call(1.5).await.unwrap_err();
    assert!(error.may_have_begun, "{error:?}");
    assert_eq!(worker.called(), [MessagePack]);
}

#[tokio::test]
async fn what_cannot_be_written_for_a_worker_is_the_callers_to_know() {
    let worker = meet(Json, Manner::Helpful, &[Json].into());
    let error = worker.call(f64::NAN).await.unwrap_err();
    assert_eq!(
        (error.code, error.may_have_begun),
        (Code::InvalidArgument, false)
    );
    assert!(error.message.contains("NaN"), "{error}");
    assert_eq!(worker.called(), [], "it has not heard of it");
}

/// Has the system drop all that comes for a socket, as if its machine were gone.
fn cut_off(socket: &impl AsRawFd) {
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
    let (place, size) = (
        (&raw const program).cast(),
        size_of_val(&program) as libc::socklen_t,
    );
    // SAFETY: the system reads a program of one step, which is there, from a descriptor that is open.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            place,
            size,
        )
    };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

#[tokio::test]
async fn a_machine_that_is_gone_is_noticed_though_its_worker_has_no_links() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (called, sockets) = (Arc::default(), Arc::<Mutex<Vec<OwnedFd>>>::default());
    let service = worker_server::WorkerServer::new(Reader {
        reads: Json,
        manner: Manner::Helpful,
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
    let worker = Met {
        called,
        factory: ConnectionFactory::new(&address, LIMIT).encodings(&[Json].into()),
    };
    assert_eq!(worker.call(1.5).await.unwrap().0, Json);
    let asks = worker.called().len();
    sockets.lock().unwrap().iter().for_each(cut_off);
    let began = Instant::now();
    let error = worker.call(2.5).await.unwrap_err();
    // HTTP/2 itself would take 20 s.
    assert!(
        began.elapsed() < Duration::from_secs(18),
        "{:?}",
        began.elapsed()
    );
    assert!(
        error.may_have_begun && asks == 1 && worker.called().is_empty(),
        "{error:?}"
    );
    // Another connection is another matter.
    assert_eq!(
        worker.call(3.5).await,
        Ok((Json, Bytes::from_static(b"[3.5]")))
    );
}

/// A connection that is not read for a while, once so much of it was.
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
async fn a_worker_that_reads_nothing_for_a_while_keeps_its_connection() {
    const LARGE: usize = 32 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let reader = Reader {
        reads: MessagePack,
        manner: Manner::Curt,
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
    // HTTP/2 has room for all of it, so that it is TCP that has not.
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
        "it was not read: {:?}",
        began.elapsed()
    );
    assert_eq!(replies.next().await, CallEvent::Taken);
    assert!(matches!(replies.next().await, CallEvent::Item(value) if value.len() > LARGE));
}
