//! A worker's process, from its first line to its last.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::fd::AsFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use raddle_discovery::{Address, Encoding, WorkerMetadata};
use raddle_model::routine::{Routines, run_shutdown, run_startup};
use raddle_process::{log::Log, title};
use raddle_tls::CredentialSource;
use raddle_wire::v1::worker_server::WorkerServer;
use tokio::{
    runtime::Handle,
    signal::unix::{Signal, SignalKind, signal},
};
use tokio_rustls::TlsAcceptor;
use tonic::{body::Body, codegen::http::Request, transport::Server};
use tonic_health::server::HealthReporter;
use tower::util::MapRequestLayer;

use super::{
    acceptor::Acceptor,
    authorizer::Authorizer,
    blocking::ReserveThreads,
    config::{ARGUMENT, ASKED, EncodedSeconds, STOP, StartReport, WorkerSettings},
    connection_limiter::ConnectionLimiter,
    executor::{Executor, ExecutorSetup, reserve_threads, routine_runtime},
    link::LinkServer,
    listener::Listener,
    message_limits::LimitedBody,
    panics,
    service::WorkerService,
};
use crate::{
    proxy::{NestedIdentity, NestedProxies},
    stream::{CONNECTION_WINDOW, GRPC, LINK, MAX_MESSAGE, STREAM_WINDOW},
};

/// How long the server may take to end when its calls and links have: for what was answered to be sent, to clients that take their time.
const FAREWELL: Duration = Duration::from_millis(1500);
/// Streams at a time in a connection. More than any client has calls at a time: a client that meets this limit takes the worker for broken.
const STREAMS: u32 = 65_536;
/// The largest piece that a client may send at a time.
const FRAME: u32 = 1024 * 1024;
/// How often a client that says nothing is asked whether it is there, and how long it may take to say so.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// The longest line of settings.
const LONGEST: u64 = 1024 * 1024;

/// What is logged, unless something else is asked for.
const LEVEL: &str = "warn";

/// That this program begins with `main_if_asked`, so that it can be a worker.
static HAS_ENTERED: AtomicBool = AtomicBool::new(false);

/// Becomes a worker, if this process was started to be one: then it does not return. `version` is the program's, for [`WorkerMetadata::version`]. To be
/// called first thing in `main`, while there is one thread; `#[raddle::main]` does.
pub fn main_if_asked(version: &str) {
    HAS_ENTERED.store(true, Ordering::Relaxed);
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == ARGUMENT)
    {
        let code = match run(version) {
            Ok(()) => 0,
            Err(error) => {
                let _ = writeln!(io::stderr(), "raddle: the worker cannot go on: {error}");
                125
            }
        };
        // What is blocked in a thread of a routine is not waited for.
        std::process::exit(code)
    }
}

/// Whether this program can be a worker.
pub(crate) fn has_entered() -> bool {
    HAS_ENTERED.load(Ordering::Relaxed)
}

fn run(version: &str) -> io::Result<()> {
    let leash = take_leash()?;
    let mut line = String::new();
    BufReader::new(&leash).take(LONGEST).read_line(&mut line)?;
    let settings: WorkerSettings = serde_json::from_str(&line).map_err(|error| {
        io::Error::other(format!(
            "only a pool can start a worker, and this is no pool's word: {error}"
        ))
    })?;
    title::init();
    settings.show("starting");
    settings
        .process
        .log
        .clone()
        .unwrap_or_else(|| Log::of_environment(LEVEL))
        .start();
    panics::watch();
    raddle_process::check_descriptors()?;
    let control = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let routines = routine_runtime()?;
    routines.block_on(run_startup()).map_err(io::Error::other)?;
    let served = control.block_on(serve(&settings, version, &leash, routines.handle()));
    for failure in routines.block_on(run_shutdown()) {
        tracing::error!("{failure}");
    }
    // A thread that is blocked is not waited for.
    routines.shutdown_background();
    served
}

/// The socket that the pool holds the other end of, out of the way of routines that read their input.
fn take_leash() -> io::Result<File> {
    let leash = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(File::from(leash))
}

/// Where the pool hears from its worker. More than one thread has something to say.
struct PoolChannel(Mutex<File>);

impl PoolChannel {
    fn tell(&self, report: &StartReport) -> io::Result<()> {
        let mut line = serde_json::to_vec(report)?;
        line.push(b'\n');
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(&line)
    }
}

async fn serve(
    settings: &WorkerSettings,
    version: &str,
    leash: &File,
    threads: &Handle,
) -> io::Result<()> {
    let process = &settings.process;
    let pool = Arc::new(PoolChannel(Mutex::new(leash.try_clone()?)));
    let bound = async {
        let address: Address = process
            .address
            .as_deref()
            .unwrap_or_default()
            .parse()
            .map_err(|error| format!("{error}"))?;
        let routines = Routines::of_this_program().map_err(|clash| clash.to_string())?;
        let credentials = settings
            .credentials
            .clone()
            .map(CredentialSource::load)
            .transpose();
        let credentials = credentials.map_err(|error| error.to_string())?;
        let tls = credentials
            .as_ref()
            .map(|own| own.server_config(&[LINK, GRPC]))
            .transpose();
        let tls = tls
            .map_err(|error| error.to_string())?
            .map(TlsAcceptor::from);
        let may_be_exposed = tls.is_some() || process.insecure;
        let (listener, address) = Listener::bind(&address, may_be_exposed)
            .await
            .map_err(|error| error.to_string())?;
        Ok((routines, listener, address, tls, credentials))
    };
    let (routines, listener, address, tls, credentials) = match bound.await {
        Ok(bound) => bound,
        Err(error) => {
            pool.tell(&StartReport::Failed(error))?;
            return Ok(());
        }
    };
    let gate = Arc::new(Authorizer::new(process.allow.clone()));
    let executor = Executor::new(ExecutorSetup {
        routines,
        threads: threads.clone(),
        reserve: ReserveThreads::new(threads, reserve_threads()),
        control: Handle::current(),
        // Routines that call others do it as this worker.
        proxies: NestedProxies::new(
            process.proxy_pool_ttl,
            NestedIdentity {
                credentials,
                pool_key: settings.pool_key.clone(),
            },
            threads,
        ),
        member: settings.pool_key.clone().map(|key| (key, process.uid)),
        gate: Arc::clone(&gate),
        max_blocking: process.max_blocking,
        max_in_flight: process.max_in_flight,
    });
    let metadata = WorkerMetadata {
        uid: process.uid,
        address: address.to_string(),
        pid: std::process::id(),
        version: version.into(),
        tags: process.tags.clone(),
        extra: process.extra.clone(),
        secure: tls.is_some() && address.host().is_some(),
        encodings: Encoding::ALL.into(),
    };
    let signals = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    // These end with the process.
    let links = LinkServer::new(ConnectionLimiter::within_limits(Arc::clone(&gate)));
    tokio::spawn(Arc::clone(&gate).tell_of_the_rest());
    tokio::spawn(Arc::clone(&executor).watch_for_blocking(Arc::clone(&links)));
    tokio::spawn(obey(signals, Arc::clone(&executor)));
    let (leash, told, counted) = (leash.try_clone()?, Arc::clone(&pool), Arc::clone(&executor));
    let answer = move || told.tell(&StartReport::Done(counted.tally()));
    let (stopping, control) = (Arc::clone(&executor), Handle::current());
    // The pool may stop its worker whatever the worker's rules say, and may become impatient.
    let stop = move |timeout| {
        let executor = Arc::clone(&stopping);
        // Ends with the process.
        drop(control.spawn(async move { executor.stop(timeout).await }));
    };
    thread::Builder::new()
        .name("leash".into())
        .spawn(move || end_with_the_pool(leash, answer, stop))?;
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<WorkerServer<WorkerService>>().await;
    tokio::spawn(say_so(Arc::clone(&executor), settings.clone(), health));
    let clients = Acceptor {
        links: Arc::clone(&links),
        executor: Arc::clone(&executor),
        tls,
    }
    .open(listener);
    let announced = move |request: Request<Body>| {
        let gate = Arc::clone(&gate);
        request.map(|body| Body::new(LimitedBody::new(body, gate)))
    };
    let service = WorkerService {
        executor: Arc::clone(&executor),
        metadata: metadata.clone(),
        began: Instant::now(),
    };
    let service = WorkerServer::new(service)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let server = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS)
        // Large arguments come in few pieces.
        .max_frame_size(FRAME)
        // Who cancels a great deal is not out to harm anybody.
        .http2_max_pending_accept_reset_streams(Some(STREAMS as usize))
        // Who does not even answer whether it is there is not.
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .layer(MapRequestLayer::new(announced))
        .add_service(health_service)
        .add_service(service)
        .serve_with_incoming_shutdown(clients, executor.over());
    let ending_links = async {
        executor.over().await;
        links.leave(FAREWELL).await;
    };
    // Before anybody knows where to look.
    settings.show("listening");
    pool.tell(&StartReport::Serving(Box::new(metadata)))?;
    let ending = async {
        executor.over().await;
        tokio::time::sleep(FAREWELL).await;
    };
    let outcome = tokio::select! {
        (served, ()) = async { tokio::join!(server, ending_links) } => served.map_err(io::Error::other),
        () = ending => Ok(()),
    };
    // For those who keep count. Nobody else can say it any more.
    let _ = pool.tell(&StartReport::Done(executor.tally()));
    if let Address::Unix(path) = &address {
        let _ = std::fs::remove_file(path);
    }
    outcome
}

/// Shows whoever looks that the worker takes no more calls.
async fn say_so(executor: Arc<Executor>, settings: WorkerSettings, health: HealthReporter) {
    executor.stopping().await;
    settings.show("stopping");
    health
        .set_not_serving::<WorkerServer<WorkerService>>()
        .await;
}

/// SIGTERM cancels what is in flight; SIGINT waits for it, unless it comes again.
async fn obey((mut terminate, mut interrupt): (Signal, Signal), executor: Arc<Executor>) {
    let timeout = tokio::select! {
        _ = terminate.recv() => 0.0,
        _ = interrupt.recv() => -1.0,
    };
    tokio::select! {
        _ = executor.stop(timeout) => {}
        _ = terminate.recv() => drop(executor.stop(0.0).await),
        _ = interrupt.recv() => drop(executor.stop(0.0).await),
    }
}

/// Answers the pool that this process was started for, and ends it as soon as that is gone. A thread of its own: nothing can hold it up.
fn end_with_the_pool(mut leash: File, answer: impl Fn() -> io::Result<()>, stop: impl Fn(f64)) {
    let mut word = [0];
    loop {
        match leash.read(&mut word) {
            Ok(1) if word == [STOP] => {
                let mut seconds = EncodedSeconds::default();
                // What is torn is the end of it, which is seen at the next look.
                if leash.read_exact(&mut seconds).is_ok() {
                    stop(f64::from_be_bytes(seconds));
                }
            }
            // If it cannot be told, it is gone, which is seen at the next look.
            Ok(1) if word == [ASKED] => drop(answer()),
            Ok(1) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // And with it all that routines have started.
            _ => {
                let _ = rustix::process::kill_current_process_group(rustix::process::Signal::KILL);
                std::process::abort()
            }
        }
    }
}
