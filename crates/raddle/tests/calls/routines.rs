//! Routines of the tests, with explicit names so that the test and the program of its workers agree
//! on them.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use raddle::{
    CallError, Stream,
    context::ContextKey,
    pool::{
        balancer::{self, Balancer},
        connection::{CallRequest, ReplyStream},
    },
};
use serde::{Deserialize, Serialize};

pub(crate) static TENANT: ContextKey<String> = ContextKey::new("tenant");

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FindError {
    Missing { missing: String },
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Missing { missing } = self;
        write!(f, "{missing} is missing")
    }
}

/// A stream whose items are all ready.
struct Ready<I>(I);

impl<I: Iterator + Unpin> Stream for Ready<I> {
    type Item = I::Item;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
}

#[raddle::routine(name = "add")]
pub(crate) async fn add(a: u64, b: u64) -> u64 {
    a + b
}

#[raddle::routine(name = "pid")]
pub(crate) fn pid() -> u32 {
    std::process::id()
}

#[raddle::routine(name = "flip")]
pub(crate) async fn flip(points: BTreeMap<String, Point>) -> Vec<Point> {
    points
        .into_values()
        .map(|Point { x, y }| Point { x: y, y: x })
        .collect()
}

#[raddle::routine(name = "find")]
pub(crate) async fn find(what: String) -> Result<u32, FindError> {
    if what == "it" {
        Ok(1)
    } else {
        Err(FindError::Missing { missing: what })
    }
}

#[raddle::routine(name = "explode")]
pub(crate) async fn explode(reason: String) {
    panic!("exploded for {reason}");
}

#[raddle::routine(name = "explode_plain")]
pub(crate) fn explode_plain(reason: String) {
    panic!("exploded for {reason}");
}

#[raddle::routine(name = "exit")]
pub(crate) async fn exit(code: i32) {
    std::process::exit(code);
}

#[raddle::routine(name = "abort")]
pub(crate) fn abort() {
    std::process::abort();
}

#[raddle::routine(name = "rest")]
pub(crate) async fn rest(millis: u64) -> u32 {
    tokio::time::sleep(Duration::from_millis(millis)).await;
    std::process::id()
}

/// Blocks a thread in an async function, as buggy code does.
#[raddle::routine(name = "block")]
pub(crate) async fn block(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds));
}

/// The same after a pause.
#[raddle::routine(name = "rest_and_block")]
pub(crate) async fn rest_and_block(millis: u64, seconds: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
    std::thread::sleep(Duration::from_secs(seconds));
}

/// Writes a file when it is dropped.
struct Marker(PathBuf);

impl Drop for Marker {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.0, "dropped");
    }
}

#[raddle::routine(name = "hold")]
pub(crate) async fn hold(path: PathBuf) {
    let _marker = Marker(path);
    std::future::pending::<()>().await;
}

/// Panics when it is dropped.
struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("dropped badly");
        }
    }
}

/// Writes `started`, and panics when it is dropped; the marker is written all the same.
#[raddle::routine(name = "hold_badly")]
pub(crate) async fn hold_badly(started: PathBuf, path: PathBuf) {
    let _marker = Marker(path);
    let _panic_on_drop = PanicOnDrop;
    let _ = std::fs::write(started, "started");
    std::future::pending::<()>().await;
}

#[raddle::routine(name = "count")]
pub(crate) fn count(to: u64) -> impl Stream<Item = u64> + Send {
    Ready(0..to)
}

#[raddle::routine(name = "endless")]
pub(crate) fn endless(path: PathBuf) -> impl Stream<Item = u64> + Send {
    let marker = Marker(path);
    Ready((0..).inspect(move |_| {
        let _keep = &marker;
    }))
}

#[raddle::routine(name = "bursting")]
pub(crate) fn bursting() -> impl Stream<Item = u64> + Send {
    Ready((0..).map(|n| if n < 3 { n } else { panic!("burst at {n}") }))
}

#[raddle::routine(name = "nested")]
pub(crate) async fn nested(depth: u32) -> Result<u32, String> {
    if depth == 0 {
        return Ok(0);
    }
    let nested = Box::pin(nested(depth - 1))
        .await
        .map_err(|error| error.to_string())?;
    Ok(nested + 1)
}

/// The pid of a nested call with this key.
#[raddle::routine(name = "pid_below")]
pub(crate) async fn pid_below(key: u64) -> Result<u32, String> {
    pid().key(key).await.map_err(|error| error.to_string())
}

/// The maximum number of concurrent calls among `calls` nested ones.
#[raddle::routine(name = "crowd_below")]
pub(crate) async fn max_in_flight_nested(calls: usize) -> Result<usize, String> {
    let mut most = 0;
    for call in (0..calls)
        .map(|_| raddle::spawn(in_flight()))
        .collect::<Vec<_>>()
    {
        most = most.max(
            call.await
                .expect("the task does not panic")
                .map_err(|error| error.to_string())?,
        );
    }
    Ok(most)
}

/// The number of calls of this routine in flight.
#[raddle::routine(name = "crowd")]
pub(crate) async fn in_flight() -> usize {
    static CROWD: AtomicUsize = AtomicUsize::new(0);
    let count = CROWD.fetch_add(1, Ordering::SeqCst) + 1;
    tokio::time::sleep(Duration::from_millis(20)).await;
    CROWD.fetch_sub(1, Ordering::SeqCst);
    count
}

/// Makes a nested call from a spawned task, with or without the scope.
#[raddle::routine(name = "add_in_task")]
pub(crate) async fn add_in_task(is_in_scope: bool) -> Result<u64, String> {
    let call = async { add(1, 2).await };
    let task = if is_in_scope {
        raddle::spawn(call)
    } else {
        tokio::spawn(call)
    };
    task.await
        .expect("the task does not panic")
        .map_err(|error| error.to_string())
}

/// Always chooses the worker with the lowest uid.
#[derive(Default)]
pub(crate) struct First;

#[raddle::async_trait]
impl Balancer for First {
    async fn dispatch(
        &self,
        call: CallRequest,
        context: &balancer::BalancerContext,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, CallError> {
        balancer::attempt(call, context, timeout, |candidates| {
            candidates
                .iter()
                .min_by_key(|(_, worker)| worker.metadata.uid)
                .map(|(index, _)| index)
        })
        .await
    }

    fn name(&self) -> Option<&'static str> {
        Some("first")
    }
}

raddle::balancer!("first", First);

/// Makes a nested call of `rest`.
#[raddle::routine(name = "rest_below")]
pub(crate) async fn rest_below(millis: u64) -> Result<u32, String> {
    rest(millis).await.map_err(|error| error.to_string())
}

/// Refused by the backpressure hook.
#[raddle::routine(name = "unwanted")]
pub(crate) async fn unwanted() {}

raddle::backpressure!(|load| match load.routine {
    "unwanted" => false,
    "explode" => panic!("in two minds"),
    _ => true,
});

/// Starts a process and does not wait for it.
#[raddle::routine(name = "breed")]
pub(crate) fn spawn_process() -> u32 {
    std::process::Command::new("sh")
        .args(["-c", "exec sleep 1000"])
        .spawn()
        .expect("sh can be started")
        .id()
}

/// The same text.
#[raddle::routine(name = "echo")]
pub(crate) async fn echo(text: String) -> String {
    text
}

/// The same bytes.
#[raddle::routine(name = "echo_bytes")]
pub(crate) async fn echo_bytes(bytes: Vec<u8>) -> Vec<u8> {
    bytes
}

/// Creates a file, and returns whether it was the first call to do so.
#[raddle::routine(name = "note")]
pub(crate) async fn note(path: PathBuf) -> bool {
    std::fs::File::create_new(path).is_ok()
}

/// Texts of these lengths.
#[raddle::routine(name = "texts")]
pub(crate) fn texts(lengths: Vec<usize>) -> impl Stream<Item = String> + Send {
    Ready(lengths.into_iter().map(|length| "x".repeat(length)))
}

/// A text of this size.
#[raddle::routine(name = "fill")]
pub(crate) async fn fill(size: usize) -> String {
    tokio::time::sleep(Duration::from_millis(300)).await;
    "x".repeat(size)
}

/// The context of the call: a value, the trace, and whether there is a deadline.
#[raddle::routine(name = "surroundings")]
pub(crate) async fn surroundings() -> (Option<String>, Option<String>, bool) {
    let trace = raddle::context::trace().map(|trace| trace.parent.to_string());
    (TENANT.get(), trace, raddle::context::time_left().is_some())
}

/// The context of a nested call.
#[raddle::routine(name = "surroundings_below")]
pub(crate) async fn surroundings_below() -> Result<(Option<String>, Option<String>, bool), String> {
    surroundings().await.map_err(|error| error.to_string())
}
