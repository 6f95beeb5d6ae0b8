//! The calls of a worker: which are in flight, whether more are taken, and how they are ended.

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
/// `async fn`s run on one multi-threaded runtime. Plain `fn`s run on blocking threads, a bounded number at a time. Neither runs on the thread of the control
/// runtime, which serves health, stop and gRPC.
pub(super) struct Executor {
    pub(super) setup: ExecutorSetup,
    /// Plain functions that may begin.
    plain: Arc<Semaphore>,
    /// Finds `async fn`s that block.
    blocking: BlockingDetector,
    calls: Mutex<ActiveCalls>,
    /// How many calls are in flight, for those who wait for none to be.
    in_flight: watch::Sender<usize>,
    /// How far the end of the worker has come.
    pub(super) phase: watch::Sender<StopPhase>,
}

/// What it takes to run calls.
pub(super) struct ExecutorSetup {
    pub(super) routines: Routines,
    /// The runtime of routines.
    pub(super) threads: Handle,
    /// Those of its threads that stand by.
    pub(super) reserve: ReserveThreads,
    /// The runtime that no routine runs on.
    pub(super) control: Handle,
    /// By which routines call others.
    pub(super) proxies: Arc<NestedProxies>,
    /// Says who may call what.
    pub(super) gate: Arc<Authorizer>,
    /// By what calls of the pool that has started this worker are known, and which worker this is.
    pub(super) member: Option<(PoolKey, WorkerUid)>,
    /// Plain functions that run at a time: as many as there are cores, if nothing is said.
    pub(super) max_blocking: Option<usize>,
    /// Calls that are taken at a time, if that is bounded.
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

/// Which call it is: that of a link, by the number that its client gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallId {
    pub(super) link: u64,
    pub(super) id: u64,
}

#[derive(Clone)]
struct RunningCall {
    routine: &'static str,
    /// Ends it. A plain function that has begun cannot be ended.
    abort: AbortHandle,
    sink: ReplySink,
    poll: PollWatch,
}

/// That a call is in flight. It ends with the call, however that does.
struct InFlight {
    executor: Arc<Executor>,
    number: CallId,
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActivityReport {
    pub(super) in_flight: usize,
    pub(super) taken: u64,
    pub(super) is_stopping: bool,
    pub(super) idle: Duration,
}

#[cfg(test)]
impl ExecutorSetup {
    /// All on one runtime, and without bounds.
    pub(super) fn for_test(routines: Routines, runtime: &Handle) -> Self {
        use crate::proxy::NestedIdentity;
        let proxies =
            NestedProxies::new(Duration::from_secs(60), NestedIdentity::default(), runtime);
        let (threads, control, gate) = (runtime.clone(), runtime.clone(), Arc::default());
        let reserve = ReserveThreads::default();
        let (member, max_blocking, max_in_flight) = (None, None, None);
        Self {
            routines,
            threads,
            reserve,
            control,
            proxies,
            gate,
            member,
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

    /// The number of a new link.
    pub(super) fn new_link(&self) -> u64 {
        let mut calls = self.calls();
        calls.links += 1;
        calls.links
    }

    /// Begins a call of this caller, or says why not.
    pub(super) fn begin(
        self: &Arc<Self>,
        number: CallId,
        call: v1::Call,
        caller: &AuthorizedPeer,
        sink: &ReplySink,
    ) -> Result<(), RpcError> {
        // Its own pool could do as it likes with the worker in other ways, and is on the same machine.
        let routing = if self.is_of_own_pool(&call) {
            Routing::OfPool
        } else {
            self.setup.gate.check(caller, Action::Call(&call.routine))?;
            // A pool proves nothing at a Unix socket, where only programs of its user are.
            let is_of_user = matches!(caller.peer, PeerIdentity::SameUser)
                && caller.routing == Routing::Anywhere;
            if is_of_user {
                Routing::OfPool
            } else {
                caller.routing
            }
        };
        let taken = self.take(number, call, routing, sink);
        taken.inspect_err(|error| self.setup.gate.decline(error, caller.from))
    }

    fn is_of_own_pool(&self, call: &v1::Call) -> bool {
        let member = self
            .setup
            .member
            .as_ref()
            .filter(|_| !call.member.is_empty());
        member.is_some_and(|(key, own)| key.verify(*own, &call.member))
    }

    fn take(
        self: &Arc<Self>,
        number: CallId,
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
        let Some(encoding) = encoding::of_number(call.encoding) else {
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
                super::shown(&call.routine)
            );
            return Err(RpcError::refused(Code::NotFound, message));
        };
        let full = || {
            RpcError::refused(
                Code::ResourceExhausted,
                "the worker does not want more just now",
            )
        };
        let is_full = |in_flight| {
            self.setup
                .max_in_flight
                .is_some_and(|most| in_flight >= most)
        };
        let in_flight = self.calls().running.len();
        // Asked before the lock is taken: it is a user's function.
        let is_wanted = || {
            Backpressure::allows(WorkerLoad {
                in_flight,
                routine: routine.name,
            })
        };
        if is_full(in_flight) || !is_wanted() {
            return Err(full());
        }
        let name = routine.name;
        let poll = self.blocking.watch(name);
        let to = routing.of(std::mem::take(&mut call.route), &self.setup.proxies);
        let taken = AcceptedCall::new(routine, encoding, call, to, sink.clone(), poll.clone());
        let mut calls = self.calls();
        if calls.is_stopping {
            return Err(RpcError::refused(
                Code::Unavailable,
                "the worker is stopping",
            ));
        }
        // Other links may have brought some meanwhile.
        if is_full(calls.running.len()) {
            return Err(full());
        }
        if calls.running.contains_key(&number) {
            return Err(RpcError::refused(
                Code::InvalidArgument,
                "a call of this number is in flight",
            ));
        }
        // Under the lock: a call that ends at once waits for it, and so is known before it ends.
        let in_flight = InFlight {
            executor: Arc::clone(self),
            number,
        };
        let abort = if taken.is_plain() {
            self.start_plain(taken, in_flight, sink)
        } else {
            self.start(taken, in_flight)
        };
        calls.running.insert(
            number,
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
    fn start(&self, taken: AcceptedCall, in_flight: InFlight) -> AbortHandle {
        let running = self.setup.threads.spawn(async move {
            let _in_flight = in_flight;
            taken.run().await;
        });
        running.abort_handle()
    }

    /// Starts a plain function, or has it wait for a thread, and for its `Ack` to be written where another thread does that.
    fn start_plain(
        &self,
        taken: AcceptedCall,
        in_flight: InFlight,
        sink: &ReplySink,
    ) -> AbortHandle {
        let run = move |permit: OwnedSemaphorePermit| {
            taken.run_plain();
            drop((permit, in_flight));
        };
        let plain = Arc::clone(&self.plain);
        let threads = self.setup.threads.clone();
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

    /// Ends a call that nobody wants any more.
    pub(super) fn cancel(&self, number: CallId) {
        let running = self.calls().running.get(&number).cloned();
        running.iter().for_each(|running| running.abort.abort());
    }

    /// Ends all calls of a link that is gone.
    pub(super) fn cancel_link(&self, link: u64) {
        let own = self.running(|number| number.link == link);
        own.iter().for_each(|running| running.abort.abort());
    }

    fn running(&self, which: impl Fn(&CallId) -> bool) -> Vec<RunningCall> {
        let calls = self.calls();
        calls
            .running
            .iter()
            .filter(|(number, _)| which(number))
            .map(|(_, running)| running.clone())
            .collect()
    }

    /// Takes a number of items more of a call. Returns whether that makes sense; of a call that is over, anything does.
    pub(super) fn allow(&self, number: CallId, items: u32) -> bool {
        self.calls()
            .running
            .get(&number)
            .is_none_or(|running| running.sink.allow(items))
    }

    /// Takes no more calls. Returns how many are in flight.
    pub(super) fn stop_taking(&self) -> usize {
        let mut calls = self.calls();
        calls.is_stopping = true;
        calls.running.len()
    }

    /// Ends all calls, and says so to who made them. Returns how many.
    pub(super) fn cancel_all(&self) -> usize {
        let all = self.running(|_| true);
        for running in &all {
            running.sink.exception(exception(Kind::Cancelled));
            running.abort.abort();
        }
        all.len()
    }

    /// Warns of each `async fn` that blocks its thread, once, and has threads of the reserve poll other calls. While all threads are blocked, links are read on
    /// the control runtime, which runs this: pings are answered, calls cancelled and plain functions started there.
    pub(super) async fn watch_for_blocking(self: Arc<Self>, links: Arc<LinkServer>) {
        let (mut in_flight, mut warned) = (self.in_flight.subscribe(), HashSet::new());
        let ExecutorSetup {
            threads,
            control,
            reserve,
            ..
        } = &self.setup;
        let polling = || threads.metrics().num_workers() - reserve.left();
        let enough = polling();
        while in_flight.wait_for(|calls| *calls > 0).await.is_ok() {
            tokio::time::sleep(PERIOD).await;
            self.blocking.tick();
            let blocking: Vec<_> = {
                let calls = self.calls();
                calls
                    .running
                    .values()
                    .filter_map(|running| Some((running.routine, running.poll.look()?)))
                    .collect()
            };
            for (routine, _) in blocking
                .iter()
                .filter(|(routine, _)| warned.insert(*routine))
            {
                warn!(
                    routine,
                    "an `async fn` blocks its thread, and delays other calls of this worker: make it a plain `fn`, or use `spawn_blocking` in it"
                );
            }
            let kept = blocking
                .iter()
                .filter(|(_, keeps_thread)| *keeps_thread)
                .count();
            reserve.release((enough + kept).saturating_sub(polling()));
            if kept > 0 {
                // Wakes a thread that is parked. The one that waited for sockets and timers may be blocked, and the others do not notice.
                threads.spawn(async {});
            }
            links.move_to(if kept < polling() { threads } else { control });
        }
    }

    /// Waits until nothing is in flight.
    pub(super) async fn idle(&self) {
        let mut in_flight = self.in_flight.subscribe();
        // The sender is part of this.
        let _ = in_flight.wait_for(|calls| *calls == 0).await;
    }

    pub(super) fn doing(&self) -> ActivityReport {
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

    /// What the worker has done, for the pool that keeps it.
    pub(super) fn tally(&self) -> CallCounts {
        let ActivityReport {
            in_flight, taken, ..
        } = self.doing();
        CallCounts {
            in_flight: in_flight as u64,
            taken,
            refused: self.setup.gate.refused(),
        }
    }

    fn calls(&self) -> MutexGuard<'_, ActiveCalls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut calls = self.executor.calls();
        calls.running.remove(&self.number);
        let left = calls.running.len();
        if left == 0 {
            calls.idle_since = Some(Instant::now());
        }
        self.executor.in_flight.send_replace(left);
    }
}

/// The runtime of routines. To be shut down with `shutdown_background`: a thread that is blocked is not waited for.
pub(super) fn routine_runtime() -> io::Result<Runtime> {
    let threads = polling_threads() + reserve_threads();
    Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("routine")
        .enable_all()
        .build()
}

/// Threads of the runtime of routines that poll.
fn polling_threads() -> usize {
    cores().max(2)
}

/// Threads of the runtime of routines that stand by: each that polls may be blocked by a routine of which that was not known.
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
            routing: Routing::Anywhere,
        }
    }

    #[test]
    fn no_more_are_taken_than_may_be_however_many_come_at_once() {
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
                    .begin(CallId { link, id: 1 }, call(), &caller(), &sink)
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
    /// Calls that come while all are ended: each is either refused, or ended. None is told that it was cancelled and goes on.
    #[test]
    fn whoever_ends_all_calls_ends_those_that_have_just_come() {
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
                    let number = CallId { link: round, id: 1 };
                    executor.begin(number, call(), &caller(), &sink).unwrap();
                });
                at_once.wait();
                executor.cancel_all();
            });
            executor.cancel_all();
            let idle =
                async { tokio::time::timeout(Duration::from_secs(30), executor.idle()).await };
            assert!(
                runtime.block_on(idle).is_ok(),
                "one goes on in round {round}"
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

    /// Plain functions that wait for [`OPEN`].
    static OPEN: Semaphore = Semaphore::const_new(0);
    static BEGUN: AtomicU32 = AtomicU32::new(0);

    fn wait(_: RoutineInput<'_>) -> RoutineOutcome {
        BEGUN.fetch_add(1, Ordering::SeqCst);
        Handle::current().block_on(OPEN.acquire()).unwrap().forget();
        Ok(RoutineOutput::Bytes(Vec::new()))
    }

    #[tokio::test]
    async fn no_more_plain_functions_run_at_a_time_than_may() {
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
                .begin(CallId { link: 1, id }, call, &caller(), &sink)
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
                .expect("it begins");
        };
        soon(2).await;
        assert_eq!(executor.doing().in_flight, 5, "the others wait");
        // One that waits can be cancelled; what has begun cannot.
        executor.cancel(CallId { link: 1, id: 4 });
        OPEN.add_permits(2);
        soon(4).await;
        OPEN.add_permits(2);
        tokio::time::timeout(Duration::from_secs(30), executor.idle())
            .await
            .expect("all end");
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
    async fn an_async_function_that_blocks_is_named_once() {
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
                .begin(CallId { link: 1, id }, call, &caller(), &sink)
                .unwrap();
        }
        let links = LinkServer::new(ConnectionLimiter::new(1, Arc::default()));
        let said = || log.text().matches("sleeper").count();
        let waiting = async {
            while said() == 0 {
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
            _ = watched => unreachable!("it watches for ever"),
            waited = tokio::time::timeout(Duration::from_secs(30), waiting) => waited.expect("it is named"),
        }
        assert_eq!(said(), 1);
        *RELEASED.lock().unwrap() = true;
        tokio::time::timeout(Duration::from_secs(30), executor.idle())
            .await
            .expect("they end");
        runtime.shutdown_background();
    }
}
