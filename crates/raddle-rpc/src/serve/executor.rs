//! Accepts, runs and cancels the calls of a worker.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use raddle_discovery::{Encoding, WorkerUid, encoding};
use raddle_model::routine::Routines;
use raddle_tls::Action;
use raddle_wire::{
    PROTOCOL,
    v1::{self, exception::Kind},
};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::AbortHandle,
    time::Instant,
};
use tonic::Code;
use tracing::warn;

use super::{
    authorizer::{AuthorizedPeer, Authorizer},
    backpressure::{Backpressure, WorkerLoad},
    blocking::{BlockingDetector, PERIOD, PollWatch, ReserveThreads},
    call::AcceptedCall,
    host::HostRelay,
    link::LinkServer,
    reply_sink::{ReplySink, exception},
    stop::StopPhase,
};
use crate::{
    RpcError,
    membership::PoolKey,
    proxy::{NestedProxies, Routing},
    stream::PeerIdentity,
    worker::CallCounts,
};

/// Runs calls.
///
/// `async fn`s run on one multi-threaded runtime. Plain `fn`s run on blocking threads, a bounded
/// number at a time. Neither runs on the thread of the control runtime, which serves health, stop
/// and gRPC.
pub(super) struct Executor {
    pub(super) setup: ExecutorSetup,
    /// Permits of plain functions.
    plain: Arc<Semaphore>,
    /// Finds `async fn`s that block.
    blocking: BlockingDetector,
    calls: Mutex<ActiveCalls>,
    /// Number of calls in flight.
    in_flight: watch::Sender<usize>,
    /// How far the stop has come.
    pub(super) phase: watch::Sender<StopPhase>,
}

/// Dependencies and limits of an executor.
pub(super) struct ExecutorSetup {
    pub(super) routines: Routines,
    /// The host that runs the routines, unless this program does.
    pub(super) host: Option<Arc<HostRelay>>,
    /// The runtime of routines.
    pub(super) runtime: Handle,
    /// Its parked threads.
    pub(super) reserve: ReserveThreads,
    /// The runtime without routines.
    pub(super) control: Handle,
    /// The proxies of nested calls.
    pub(super) proxies: Arc<NestedProxies>,
    /// Decides which caller may call what.
    pub(super) authorizer: Arc<Authorizer>,
    /// The key of the pool that has started this worker, and the worker's uid: they verify calls of
    /// the pool.
    pub(super) membership: Option<(PoolKey, WorkerUid)>,
    /// Limit on plain functions that run at a time. Default: the number of cores.
    pub(super) max_blocking: Option<usize>,
    /// Limit on calls in flight, if any.
    pub(super) max_in_flight: Option<usize>,
}

#[derive(Default)]
struct ActiveCalls {
    running: HashMap<CallId, RunningCall>,
    links: u64,
    taken: u64,
    is_stopping: bool,
    idle_since: Option<Instant>,
}

/// Identifies a call: the link, and the client's id for the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallId {
    pub(super) link: u64,
    pub(super) id: u64,
}

#[derive(Clone)]
struct RunningCall {
    routine: &'static str,
    /// Cancels the call. A plain function that has begun cannot be cancelled.
    abort: AbortHandle,
    sink: ReplySink,
    poll: PollWatch,
}

/// Removes a call from the table when it ends, however it ends.
struct InFlight {
    executor: Arc<Executor>,
    call_id: CallId,
}

/// A worker's activity.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActivityReport {
    pub(super) in_flight: usize,
    pub(super) taken: u64,
    pub(super) is_stopping: bool,
    pub(super) idle: Duration,
}

#[cfg(test)]
impl ExecutorSetup {
    /// Everything on one runtime, without limits.
    pub(super) fn for_test(routines: Routines, runtime: &Handle) -> Self {
        use crate::proxy::NestedIdentity;
        let proxies =
            NestedProxies::new(Duration::from_secs(60), NestedIdentity::default(), runtime);
        let (runtime, control, authorizer) = (runtime.clone(), runtime.clone(), Arc::default());
        let reserve = ReserveThreads::default();
        let (host, membership, max_blocking, max_in_flight) = (None, None, None, None);
        Self {
            routines,
            host,
            runtime,
            reserve,
            control,
            proxies,
            authorizer,
            membership,
            max_blocking,
            max_in_flight,
        }
    }
}

impl Executor {
    pub(super) fn new(setup: ExecutorSetup) -> Arc<Self> {
        let calls = Mutex::new(ActiveCalls {
            idle_since: Some(Instant::now()),
            ..ActiveCalls::default()
        });
        let plain = setup
            .max_blocking
            .unwrap_or_else(cores)
            .clamp(1, Semaphore::MAX_PERMITS);
        Arc::new(Self {
            blocking: BlockingDetector::new(&setup.routines),
            setup,
            plain: Arc::new(Semaphore::new(plain)),
            calls,
            in_flight: watch::Sender::new(0),
            phase: watch::Sender::default(),
        })
    }

    /// Returns the id of a new link.
    pub(super) fn next_link_id(&self) -> u64 {
        let mut calls = self.calls();
        calls.links += 1;
        calls.links
    }

    /// Starts a call of this caller, or returns why not.
    pub(super) fn start_call(
        self: &Arc<Self>,
        call_id: CallId,
        call: v1::Call,
        caller: &AuthorizedPeer,
        sink: &ReplySink,
    ) -> Result<(), RpcError> {
        // The worker's own pool has full control anyway, and is on the same machine.
        let routing = if self.is_pool_call(&call) {
            Routing::PoolMember
        } else {
            self.setup
                .authorizer
                .check(caller, Action::Call(&call.routine))?;
            // On a Unix socket a pool sends no proof: the kernel shows that the peer has the same
            // user.
            let is_same_user = matches!(caller.peer, PeerIdentity::SameUser)
                && caller.routing == Routing::Unrestricted;
            if is_same_user {
                Routing::PoolMember
            } else {
                caller.routing
            }
        };
        let outcome = self.accept_call(call_id, call, routing, sink);
        outcome.inspect_err(|error| {
            self.setup
                .authorizer
                .record_refused_call(error, caller.from)
        })
    }

    fn is_pool_call(&self, call: &v1::Call) -> bool {
        let membership = self
            .setup
            .membership
            .as_ref()
            .filter(|_| !call.member.is_empty());
        membership.is_some_and(|(key, uid)| key.verify(*uid, &call.member))
    }

    fn accept_call(
        self: &Arc<Self>,
        call_id: CallId,
        mut call: v1::Call,
        routing: Routing,
        sink: &ReplySink,
    ) -> Result<(), RpcError> {
        if call.protocol != PROTOCOL {
            let message = format!(
                "the worker speaks version {PROTOCOL} of the protocol, and the caller {}",
                call.protocol
            );
            return Err(RpcError::refused(Code::FailedPrecondition, message));
        }
        let Some(encoding) = encoding::from_number(call.encoding) else {
            let message = format!(
                "the worker does not read encoding {}: use messagepack or json",
                call.encoding
            );
            let refusal = RpcError::refused(Code::FailedPrecondition, message);
            return Err(RpcError {
                encodings: Encoding::ALL.into(),
                ..refusal
            });
        };
        let Some(routine) = self.setup.routines.get(&call.routine) else {
            let message = format!(
                "the worker has no routine '{}'",
                super::escape_name(&call.routine)
            );
            return Err(RpcError::refused(Code::NotFound, message));
        };
        let full = || {
            RpcError::refused(
                Code::ResourceExhausted,
                "the worker accepts no more calls at the moment",
            )
        };
        let is_full = |in_flight| {
            self.setup
                .max_in_flight
                .is_some_and(|most| in_flight >= most)
        };
        let in_flight = self.calls().running.len();
        // Before the lock is taken, because this runs user code.
        let is_wanted = || {
            Backpressure::accepts(WorkerLoad {
                in_flight,
                routine: routine.name,
            })
        };
        if is_full(in_flight) || !is_wanted() {
            return Err(full());
        }
        let name = routine.name;
        let poll = self.blocking.track_call(name);
        let destination = routing.destination(std::mem::take(&mut call.route), &self.setup.proxies);
        let accepted = AcceptedCall::new(
            routine,
            encoding,
            call,
            destination,
            sink.clone(),
            poll.clone(),
            self.setup.host.clone(),
        );
        let mut calls = self.calls();
        if calls.is_stopping {
            return Err(RpcError::refused(
                Code::Unavailable,
                "the worker is stopping",
            ));
        }
        // Calls of other links may have started meanwhile.
        if is_full(calls.running.len()) {
            return Err(full());
        }
        if calls.running.contains_key(&call_id) {
            return Err(RpcError::refused(
                Code::InvalidArgument,
                "a call with this id is already in flight",
            ));
        }
        // Under the lock: a call that ends at once waits for the lock, so it is in the table before
        // it ends.
        let in_flight = InFlight {
            executor: Arc::clone(self),
            call_id,
        };
        let abort = if accepted.is_plain() {
            self.spawn_plain(accepted, in_flight, sink)
        } else {
            self.spawn_async(accepted, in_flight)
        };
        calls.running.insert(
            call_id,
            RunningCall {
                routine: name,
                abort,
                sink: sink.clone(),
                poll,
            },
        );
        calls.taken += 1;
        calls.idle_since = None;
        self.in_flight.send_replace(calls.running.len());
        Ok(())
    }

    /// Starts an `async fn`.
    fn spawn_async(&self, accepted: AcceptedCall, in_flight: InFlight) -> AbortHandle {
        let running = self.setup.runtime.spawn(async move {
            let _in_flight = in_flight;
            accepted.run().await;
        });
        running.abort_handle()
    }

    /// Starts a plain function, or queues it for a permit and, over gRPC, until its `Ack` is
    /// written.
    fn spawn_plain(
        &self,
        accepted: AcceptedCall,
        in_flight: InFlight,
        sink: &ReplySink,
    ) -> AbortHandle {
        let run = move |permit: OwnedSemaphorePermit| {
            accepted.run_plain();
            drop((permit, in_flight));
        };
        let plain = Arc::clone(&self.plain);
        let threads = self.setup.runtime.clone();
        if !sink.is_grpc()
            && let Ok(permit) = Arc::clone(&plain).try_acquire_owned()
        {
            return threads.spawn_blocking(move || run(permit)).abort_handle();
        }
        let sink = sink.clone();
        let waiting = async move {
            // The semaphore is never closed.
            if let Ok(permit) = plain.acquire_owned().await {
                sink.ack().await;
                threads.spawn_blocking(move || run(permit));
            }
        };
        self.setup.control.spawn(waiting).abort_handle()
    }

    /// Cancels a call.
    pub(super) fn cancel(&self, call_id: CallId) {
        let running = self.calls().running.get(&call_id).cloned();
        running.iter().for_each(|running| running.abort.abort());
    }

    /// Cancels all calls of a closed link.
    pub(super) fn cancel_link(&self, link: u64) {
        let of_link = self.running(|call_id| call_id.link == link);
        of_link.iter().for_each(|running| running.abort.abort());
    }

    fn running(&self, matches: impl Fn(&CallId) -> bool) -> Vec<RunningCall> {
        let calls = self.calls();
        calls
            .running
            .iter()
            .filter(|(call_id, _)| matches(call_id))
            .map(|(_, running)| running.clone())
            .collect()
    }

    /// Adds credit for items of a call. Returns whether the total is plausible; for a call that has
    /// ended, always.
    pub(super) fn add_credit(&self, call_id: CallId, items: u32) -> bool {
        self.calls()
            .running
            .get(&call_id)
            .is_none_or(|running| running.sink.add_credit(items))
    }

    /// Refuses further calls. Returns the number in flight.
    pub(super) fn refuse_calls(&self) -> usize {
        let mut calls = self.calls();
        calls.is_stopping = true;
        calls.running.len()
    }

    /// Cancels all calls, and notifies their callers. Returns how many there were.
    pub(super) fn cancel_all(&self) -> usize {
        let all = self.running(|_| true);
        for running in &all {
            running.sink.exception(exception(Kind::Cancelled));
            running.abort.abort();
        }
        all.len()
    }

    /// Warns of each `async fn` that blocks its thread, once, and has reserve threads poll other
    /// calls. While all threads are blocked, links are read on the control runtime, which runs
    /// this: there, pings are answered, calls cancelled and plain functions started.
    pub(super) async fn watch_for_blocking(self: Arc<Self>, links: Arc<LinkServer>) {
        let (mut in_flight, mut warned) = (self.in_flight.subscribe(), HashSet::new());
        let ExecutorSetup {
            runtime,
            control,
            reserve,
            ..
        } = &self.setup;
        let polling = || runtime.metrics().num_workers() - reserve.parked();
        let enough = polling();
        while in_flight.wait_for(|calls| *calls > 0).await.is_ok() {
            tokio::time::sleep(PERIOD).await;
            self.blocking.tick();
            let blocking: Vec<_> = {
                let calls = self.calls();
                calls
                    .running
                    .values()
                    .filter_map(|running| Some((running.routine, running.poll.check()?)))
                    .collect()
            };
            for (routine, _) in blocking
                .iter()
                .filter(|(routine, _)| warned.insert(*routine))
            {
                warn!(
                    routine,
                    "an `async fn` blocks its thread and delays other calls: make it a plain `fn`, or use `spawn_blocking` in it"
                );
            }
            let blocked_threads = blocking
                .iter()
                .filter(|(_, keeps_thread)| *keeps_thread)
                .count();
            reserve.release((enough + blocked_threads).saturating_sub(polling()));
            if blocked_threads > 0 {
                // Wakes a parked thread. The thread that drove sockets and timers may be the
                // blocked one, and the others do not notice.
                runtime.spawn(async {});
            }
            links.read_on(if blocked_threads < polling() {
                runtime
            } else {
                control
            });
        }
    }

    /// Waits until no call is in flight.
    pub(super) async fn wait_until_idle(&self) {
        let mut in_flight = self.in_flight.subscribe();
        // The sender is part of `self`, so the channel cannot close.
        let _ = in_flight.wait_for(|calls| *calls == 0).await;
    }

    pub(super) fn activity(&self) -> ActivityReport {
        let calls = self.calls();
        let idle = calls
            .idle_since
            .map_or(Duration::ZERO, |since| since.elapsed());
        ActivityReport {
            in_flight: calls.running.len(),
            taken: calls.taken,
            is_stopping: calls.is_stopping,
            idle,
        }
    }

    /// The worker's counts, for its pool.
    pub(super) fn call_counts(&self) -> CallCounts {
        let ActivityReport {
            in_flight, taken, ..
        } = self.activity();
        CallCounts {
            in_flight: in_flight as u64,
            taken,
            refused: self.setup.authorizer.refused(),
        }
    }

    fn calls(&self) -> MutexGuard<'_, ActiveCalls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut calls = self.executor.calls();
        calls.running.remove(&self.call_id);
        let left = calls.running.len();
        if left == 0 {
            calls.idle_since = Some(Instant::now());
        }
        self.executor.in_flight.send_replace(left);
    }
}

/// Makes the routine runtime. Shut it down with `shutdown_background`, which does not wait for
/// blocked threads.
pub(super) fn routine_runtime() -> io::Result<Runtime> {
    let threads = polling_threads() + reserve_threads();
    Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("routine")
        .enable_all()
        .build()
}

/// Polling threads of the routine runtime.
fn polling_threads() -> usize {
    cores().max(2)
}

/// Parked threads of the routine runtime: each polling thread may be blocked by a routine that is
/// not known to block.
pub(super) fn reserve_threads() -> usize {
    polling_threads().max(16)
}

fn cores() -> usize {
    thread::available_parallelism().map_or(2, usize::from)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Barrier,
            atomic::{AtomicU32, Ordering},
        },
        thread,
    };

    use raddle_model::routine::{Routine, RoutineFn, RoutineInput, RoutineOutcome, RoutineOutput};
    use tokio::sync::mpsc;

    use super::*;

    fn caller() -> AuthorizedPeer {
        AuthorizedPeer {
            peer: PeerIdentity::SameUser,
            from: None,
            routing: Routing::Unrestricted,
        }
    }

    #[test]
    fn limit_of_calls_holds_under_concurrency() {
        let endless = RoutineFn::Async(|_| Ok(Box::pin(std::future::pending())));
        let routines = Routines::new([Routine {
            name: "endless",
            place: "here",
            isolation: raddle_model::spec::Isolation::Shared,
            run: endless,
        }])
        .unwrap();
        let call = || v1::Call {
            protocol: PROTOCOL,
            routine: "endless".into(),
            ..v1::Call::default()
        };
        let runtime = routine_runtime().unwrap();
        for _ in 0..200 {
            let setup = ExecutorSetup {
                max_in_flight: Some(1),
                ..ExecutorSetup::for_test(routines.clone(), runtime.handle())
            };
            let executor = Executor::new(setup);
            let (threads, sink) = (4, ReplySink::of_grpc(mpsc::unbounded_channel().0));
            let at_once = Barrier::new(threads);
            let begin = &|link| {
                at_once.wait();
                executor
                    .start_call(CallId { link, id: 1 }, call(), &caller(), &sink)
                    .is_ok()
            };
            let taken = thread::scope(|scope| {
                let all: Vec<_> = (0..threads as u64)
                    .map(|link| scope.spawn(move || begin(link)))
                    .collect();
                all.into_iter()
                    .map(|one| one.join().unwrap())
                    .filter(|is_taken| *is_taken)
                    .count()
            });
            assert_eq!(taken, 1);
            executor.cancel_all();
        }
    }
    /// Calls that start while all are cancelled: each is either refused or cancelled. None is
    /// reported as cancelled and goes on.
    #[test]
    fn cancel_all_covers_calls_that_are_just_starting() {
        let endless = RoutineFn::Async(|_| Ok(Box::pin(std::future::pending())));
        let routines = Routines::new([Routine {
            name: "endless",
            place: "here",
            isolation: raddle_model::spec::Isolation::Shared,
            run: endless,
        }])
        .unwrap();
        let call = || v1::Call {
            protocol: PROTOCOL,
            routine: "endless".into(),
            ..v1::Call::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let threads = routine_runtime().unwrap();
        let executor = Executor::new(ExecutorSetup {
            control: runtime.handle().clone(),
            ..ExecutorSetup::for_test(routines, threads.handle())
        });
        let (sink, at_once) = (
            ReplySink::of_grpc(mpsc::unbounded_channel().0),
            Barrier::new(2),
        );
        for round in 0..2_000 {
            thread::scope(|scope| {
                scope.spawn(|| {
                    at_once.wait();
                    let call_id = CallId { link: round, id: 1 };
                    executor
                        .start_call(call_id, call(), &caller(), &sink)
                        .unwrap();
                });
                at_once.wait();
                executor.cancel_all();
            });
            executor.cancel_all();
            let idle = async {
                tokio::time::timeout(Duration::from_secs(30), executor.wait_until_idle()).await
            };
            assert!(
                runtime.block_on(idle).is_ok(),
                "a call goes on in round {round}"
            );
        }
    }

    fn named(name: &'static str, run: RoutineFn) -> Routines {
        Routines::new([Routine {
            name,
            place: "here",
            isolation: raddle_model::spec::Isolation::Shared,
            run,
        }])
        .unwrap()
    }

    /// Plain functions wait for [`OPEN`].
    static OPEN: Semaphore = Semaphore::const_new(0);
    static BEGUN: AtomicU32 = AtomicU32::new(0);

    fn wait(_: RoutineInput<'_>) -> RoutineOutcome {
        BEGUN.fetch_add(1, Ordering::SeqCst);
        Handle::current().block_on(OPEN.acquire()).unwrap().forget();
        Ok(RoutineOutput::Bytes(Vec::new()))
    }

    #[tokio::test]
    async fn limit_of_plain_functions_holds() {
        let runtime = routine_runtime().unwrap();
        let setup =
            ExecutorSetup::for_test(named("wait", RoutineFn::Plain(wait)), runtime.handle());
        let executor = Executor::new(ExecutorSetup {
            control: Handle::current(),
            max_blocking: Some(2),
            ..setup
        });
        let sink = ReplySink::of_grpc(mpsc::unbounded_channel().0);
        for id in 0..5 {
            let call = v1::Call {
                protocol: PROTOCOL,
                routine: "wait".into(),
                ..v1::Call::default()
            };
            executor
                .start_call(CallId { link: 1, id }, call, &caller(), &sink)
                .unwrap();
        }
        let soon = async |begun: u32| {
            let waiting = async {
                while BEGUN.load(Ordering::SeqCst) < begun {
                    tokio::task::yield_now().await
                }
            };
            tokio::time::timeout(Duration::from_secs(30), waiting)
                .await
                .expect("the function begins");
        };
        soon(2).await;
        assert_eq!(executor.activity().in_flight, 5, "the others are queued");
        // A queued function can be cancelled; one that has begun cannot.
        executor.cancel(CallId { link: 1, id: 4 });
        OPEN.add_permits(2);
        soon(4).await;
        OPEN.add_permits(2);
        tokio::time::timeout(Duration::from_secs(30), executor.wait_until_idle())
            .await
            .expect("all calls end");
        assert_eq!(BEGUN.load(Ordering::SeqCst), 4);
        runtime.shutdown_background();
    }

    static RELEASED: Mutex<bool> = Mutex::new(false);

    /// Blocks its thread until [`RELEASED`].
    fn block(
        _: RoutineInput<'_>,
    ) -> Result<raddle_model::routine::RoutineFuture, raddle_model::routine::RoutineFailure> {
        Ok(Box::pin(async {
            while !*RELEASED.lock().unwrap() {
                thread::sleep(Duration::from_millis(5));
            }
            Ok(RoutineOutput::Bytes(Vec::new()))
        }))
    }

    #[tokio::test]
    async fn blocking_async_fn_is_logged_once() {
        use super::super::connection_limiter::ConnectionLimiter;
        let log = raddle_process::testing::LogCapture::start();
        let runtime = routine_runtime().unwrap();
        let setup =
            ExecutorSetup::for_test(named("sleeper", RoutineFn::Async(block)), runtime.handle());
        let executor = Executor::new(ExecutorSetup {
            control: Handle::current(),
            ..setup
        });
        let sink = ReplySink::of_grpc(mpsc::unbounded_channel().0);
        for id in 0..3 {
            let call = v1::Call {
                protocol: PROTOCOL,
                routine: "sleeper".into(),
                ..v1::Call::default()
            };
            executor
                .start_call(CallId { link: 1, id }, call, &caller(), &sink)
                .unwrap();
        }
        let links = LinkServer::new(ConnectionLimiter::new(1, Arc::default()));
        let warnings = || log.text().matches("sleeper").count();
        let waiting = async {
            while warnings() == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            tokio::time::sleep(5 * PERIOD).await;
        };
        let watched = async {
            tokio::join!(
                Arc::clone(&executor).watch_for_blocking(links),
                std::future::pending::<()>()
            )
        };
        tokio::select! {
            _ = watched => unreachable!("`watch_for_blocking` never returns"),
            waited = tokio::time::timeout(Duration::from_secs(30), waiting) => waited.expect("a warning"),
        }
        assert_eq!(warnings(), 1);
        *RELEASED.lock().unwrap() = true;
        tokio::time::timeout(Duration::from_secs(30), executor.wait_until_idle())
            .await
            .expect("all calls end");
        runtime.shutdown_background();
    }
}
