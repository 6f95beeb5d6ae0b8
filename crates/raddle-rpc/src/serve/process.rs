//! The worker process: start, serve, stop.

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
    sync::oneshot,
};
use tokio_rustls::TlsAcceptor;
use tonic::{body::Body, codegen::http::Request, transport::Server};
use tonic_health::server::HealthReporter;
use tower::util::MapRequestLayer;

use super::{
    acceptor::Acceptor,
    authorizer::Authorizer,
    blocking::ReserveThreads,
    config::{ARGUMENT, EncodedSeconds, QUERY_COUNTS, STOP, StartReport, WorkerSettings},
    connection_limiter::ConnectionLimiter,
    executor::{Executor, ExecutorSetup, reserve_threads, routine_runtime},
    host::{HostProcess, become_host_if_asked, end_worker},
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

/// How long the gRPC server and the links may take to send the last replies to slow clients.
const STOP_TIMEOUT: Duration = Duration::from_millis(1500);
/// HTTP/2 streams per connection. More than any client has calls: a client that meets this limit
/// takes the worker for broken.
const MAX_STREAMS: u32 = 65_536;
/// Largest HTTP/2 frame.
const MAX_FRAME: u32 = 1024 * 1024;
/// HTTP/2 keep-alive interval and timeout.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Longest settings line.
const MAX_SETTINGS: u64 = 1024 * 1024;

/// Default log level.
const DEFAULT_LOG_LEVEL: &str = "warn";

/// `main_if_asked` has run, so this program can become a worker.
static HAS_ENTERED: AtomicBool = AtomicBool::new(false);

/// Becomes a worker if this process was started as one, and then does not return. `version` is that
/// of the program, for [`WorkerMetadata::version`]. Call this first in `main`, while there is one
/// thread; `#[raddle::main]` does so.
pub fn main_if_asked(version: &str) {
    become_host_if_asked();
    HAS_ENTERED.store(true, Ordering::Relaxed);
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == ARGUMENT)
    {
        let code = match run(version) {
            Ok(()) => 0,
            Err(error) => {
                let _ = writeln!(io::stderr(), "raddle: the worker failed: {error}");
                125
            }
        };
        // Exits without waiting for threads that a routine blocks.
        std::process::exit(code)
    }
}

/// Whether this program can become a worker.
pub(crate) fn has_entered() -> bool {
    HAS_ENTERED.load(Ordering::Relaxed)
}

fn run(version: &str) -> io::Result<()> {
    let parent_link = take_parent_link()?;
    let mut line = String::new();
    BufReader::new(&parent_link)
        .take(MAX_SETTINGS)
        .read_line(&mut line)?;
    let settings: WorkerSettings = serde_json::from_str(&line).map_err(|error| {
        io::Error::other(format!(
            "invalid worker settings, and only a pool can start a worker: {error}"
        ))
    })?;
    title::init();
    settings.set_title("starting");
    settings
        .process
        .log
        .clone()
        .unwrap_or_else(|| Log::of_environment(DEFAULT_LOG_LEVEL))
        .start();
    panics::install_hook();
    raddle_process::check_descriptors()?;
    let control = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let routines = routine_runtime()?;
    routines.block_on(run_startup()).map_err(io::Error::other)?;
    let served = control.block_on(serve(&settings, version, &parent_link, routines.handle()));
    for failure in routines.block_on(run_shutdown()) {
        tracing::error!("{failure}");
    }
    // Does not wait for blocked threads.
    routines.shutdown_background();
    served
}

/// Takes the parent link from standard input, and replaces that by `/dev/null`, so that routines
/// cannot read the link.
fn take_parent_link() -> io::Result<File> {
    let parent_link = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(File::from(parent_link))
}

/// The sending end of the parent link. Several threads report.
struct PoolChannel(Mutex<File>);

impl PoolChannel {
    fn send(&self, report: &StartReport) -> io::Result<()> {
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
    parent_link: &File,
    threads: &Handle,
) -> io::Result<()> {
    let process = &settings.process;
    let pool = Arc::new(PoolChannel(Mutex::new(parent_link.try_clone()?)));
    let bound = async {
        let address: Address = process
            .address
            .as_deref()
            .unwrap_or_default()
            .parse()
            .map_err(|error| format!("{error}"))?;
        let host = match &process.host {
            Some(command) => Some(HostProcess::start(command, threads).await?),
            None => None,
        };
        let routines = match &host {
            Some(host) => host.routines.clone(),
            None => Routines::of_this_program().map_err(|clash| clash.to_string())?,
        };
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
        Ok((host, routines, listener, address, tls, credentials))
    };
    let (host, routines, listener, address, tls, credentials) = match bound.await {
        Ok(bound) => bound,
        Err(error) => {
            pool.send(&StartReport::Failed(error))?;
            return Ok(());
        }
    };
    let authorizer = Arc::new(Authorizer::new(process.allow.clone()));
    let executor = Executor::new(ExecutorSetup {
        routines,
        host: host.as_ref().map(|host| Arc::clone(&host.relay)),
        runtime: threads.clone(),
        reserve: ReserveThreads::new(threads, reserve_threads()),
        control: Handle::current(),
        // Nested calls are made under the identity of this worker.
        proxies: NestedProxies::new(
            process.proxy_pool_ttl,
            NestedIdentity {
                credentials,
                pool_key: settings.pool_key.clone(),
            },
            threads,
        ),
        membership: settings.pool_key.clone().map(|key| (key, process.uid)),
        authorizer: Arc::clone(&authorizer),
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
    // These tasks end with the process.
    let links = LinkServer::new(ConnectionLimiter::within_limits(Arc::clone(&authorizer)));
    tokio::spawn(Arc::clone(&authorizer).log_suppressed());
    tokio::spawn(Arc::clone(&executor).watch_for_blocking(Arc::clone(&links)));
    tokio::spawn(handle_signals(signals, Arc::clone(&executor)));
    let (parent_link, reporter, counted) = (
        parent_link.try_clone()?,
        Arc::clone(&pool),
        Arc::clone(&executor),
    );
    let answer = move || reporter.send(&StartReport::Counts(counted.call_counts()));
    let (stopping, control) = (Arc::clone(&executor), Handle::current());
    // The pool may stop its worker whatever the allow rules say, and may ask again with a shorter
    // timeout.
    let stop = move |timeout| {
        let executor = Arc::clone(&stopping);
        // The task ends with the process.
        drop(control.spawn(async move { executor.stop(timeout).await }));
    };
    thread::Builder::new()
        .name("parent-link".into())
        .spawn(move || serve_parent_link(parent_link, answer, stop))?;
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<WorkerServer<WorkerService>>().await;
    tokio::spawn(show_stopping(
        Arc::clone(&executor),
        settings.clone(),
        health,
    ));
    let clients = Acceptor {
        links: Arc::clone(&links),
        executor: Arc::clone(&executor),
        tls,
    }
    .start(listener);
    let limit_body = move |request: Request<Body>| {
        let authorizer = Arc::clone(&authorizer);
        request.map(|body| Body::new(LimitedBody::new(body, authorizer)))
    };
    let service = WorkerService {
        executor: Arc::clone(&executor),
        metadata: metadata.clone(),
        started: Instant::now(),
    };
    let service = WorkerServer::new(service)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let server = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        // Large arguments arrive in few frames.
        .max_frame_size(MAX_FRAME)
        // A client that cancels many calls is not an attacker.
        .http2_max_pending_accept_reset_streams(Some(MAX_STREAMS as usize))
        // Closes connections whose client does not answer keep-alive pings.
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .layer(MapRequestLayer::new(limit_body))
        .add_service(health_service)
        .add_service(service)
        .serve_with_incoming_shutdown(clients, executor.wait_until_stopped());
    let closing_links = async {
        executor.wait_until_stopped().await;
        links.close_all(STOP_TIMEOUT).await;
    };
    // Before the pool publishes the address.
    settings.set_title("listening");
    pool.send(&StartReport::Serving(Box::new(metadata)))?;
    let stop_deadline = async {
        executor.wait_until_stopped().await;
        tokio::time::sleep(STOP_TIMEOUT).await;
    };
    let (stop_host, stopping_host) = oneshot::channel();
    let hosting = tokio::spawn(keep_host(host, stopping_host));
    let outcome = tokio::select! {
        (served, ()) = async { tokio::join!(server, closing_links) } => served.map_err(io::Error::other),
        () = stop_deadline => Ok(()),
    };
    let _ = stop_host.send(());
    let _ = hosting.await;
    // The final counts: the worker cannot be queried any more.
    let _ = pool.send(&StartReport::Counts(executor.call_counts()));
    if let Address::Unix(path) = &address {
        let _ = std::fs::remove_file(path);
    }
    outcome
}

/// Ends this process when the host ends by itself, and stops the host when the worker stops.
async fn keep_host(host: Option<HostProcess>, stopping: oneshot::Receiver<()>) {
    let Some(mut host) = host else {
        return;
    };
    tokio::select! {
        how = host.ended() => {
            tracing::error!("the host ended ({how}): its calls are lost, and this worker ends");
            end_worker();
        }
        _ = stopping => host.stop().await,
    }
}

/// Shows in title and health check that the worker refuses calls.
async fn show_stopping(executor: Arc<Executor>, settings: WorkerSettings, health: HealthReporter) {
    executor.wait_until_stopping().await;
    settings.set_title("stopping");
    health
        .set_not_serving::<WorkerServer<WorkerService>>()
        .await;
}

/// SIGTERM cancels the calls in flight; SIGINT waits for them, unless there is a second one.
async fn handle_signals((mut terminate, mut interrupt): (Signal, Signal), executor: Arc<Executor>) {
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

/// Serves the parent link, and kills this process group when the pool closes the link or dies. Runs
/// on its own thread, so that nothing can delay it.
fn serve_parent_link(
    mut parent_link: File,
    answer: impl Fn() -> io::Result<()>,
    stop: impl Fn(f64),
) {
    let mut command = [0];
    loop {
        match parent_link.read(&mut command) {
            Ok(1) if command == [STOP] => {
                let mut seconds = EncodedSeconds::default();
                // An incomplete request is followed by the end of the link, which the next read
                // sees.
                if parent_link.read_exact(&mut seconds).is_ok() {
                    stop(f64::from_be_bytes(seconds));
                }
            }
            // Fails when the pool is gone, which the next read sees.
            Ok(1) if command == [QUERY_COUNTS] => drop(answer()),
            Ok(1) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Includes the processes that routines have started.
            _ => {
                let _ = rustix::process::kill_current_process_group(rustix::process::Signal::KILL);
                std::process::abort()
            }
        }
    }
}
