//! The calls of a worker: which are in flight, whether more are taken, and how they are ended.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use raddle_core::routine::Routines;
use raddle_wire::{
    PROTOCOL,
    v1::{self, exception::Kind},
};
use tokio::{runtime::Handle, sync::watch, task::AbortHandle, time::Instant};
use tonic::Code;

use super::{
    backpressure::{Backpressure, Load},
    call::Taken,
    crew::{Crew, HELD_UP},
    link::Links,
    sink::{Sink, exception},
};
use crate::{
    RpcError,
    encoding::{self, Encoding},
    proxy::Routing,
};

/// Runs calls.
pub(super) struct Executor {
    routines: Routines,
    crew: Crew,
    max_in_flight: Option<usize>,
    calls: Mutex<Calls>,
    /// How many calls are in flight, for those who wait for none to be.
    in_flight: watch::Sender<usize>,
}

#[derive(Default)]
struct Calls {
    running: HashMap<Number, Running>,
    links: u64,
    taken: u64,
    is_stopping: bool,
    idle_since: Option<Instant>,
}

/// Which call it is: that of a link, by the number that its client gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Number {
    pub(super) link: u64,
    pub(super) id: u64,
}

#[derive(Clone)]
struct Running {
    /// What ends it. What runs on a thread of its own cannot be ended.
    aborts: Vec<AbortHandle>,
    sink: Sink,
    /// The call itself, until a thread has taken it.
    waiting: Waiting,
    is_plain: bool,
}

/// A call that waits for a thread. Whoever comes first takes it.
type Waiting = Arc<Mutex<Option<(Taken, InFlight)>>>;

/// That a call is in flight. It ends with the call, however that does.
struct InFlight {
    executor: Arc<Executor>,
    number: Number,
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doing {
    pub(super) in_flight: usize,
    pub(super) taken: u64,
    pub(super) is_stopping: bool,
    pub(super) idle: Duration,
}

impl Executor {
    pub(super) fn new(routines: Routines, crew: Crew, max_in_flight: Option<usize>) -> Arc<Self> {
        let calls = Mutex::new(Calls { idle_since: Some(Instant::now()), ..Calls::default() });
        Arc::new(Self { routines, crew, max_in_flight, calls, in_flight: watch::Sender::new(0) })
    }

    /// The number of a new link.
    pub(super) fn new_link(&self) -> u64 {
        let mut calls = self.calls();
        calls.links += 1;
        calls.links
    }

    /// Begins a call, or says why not.
    pub(super) fn begin(
        self: &Arc<Self>,
        number: Number,
        call: v1::Call,
        routing: Routing,
        sink: &Sink,
    ) -> Result<(), RpcError> {
        if call.protocol != PROTOCOL {
            let message =
                format!("the worker speaks version {PROTOCOL} of the protocol, and the caller {}", call.protocol);
            return Err(RpcError::refused(Code::FailedPrecondition, message));
        }
        let Some(encoding) = encoding::of_number(call.encoding) else {
            let message = format!("the worker does not read encoding {}: use messagepack or json", call.encoding);
            let refusal = RpcError::refused(Code::FailedPrecondition, message);
            return Err(RpcError { reads: Encoding::ALL.into(), ..refusal });
        };
        let Some(routine) = self.routines.get(&call.routine) else {
            let message = format!("the worker has no routine '{}'", super::shown(&call.routine));
            return Err(RpcError::refused(Code::NotFound, message));
        };
        let full = || RpcError::refused(Code::ResourceExhausted, "the worker does not want more just now");
        let is_full = |in_flight| self.max_in_flight.is_some_and(|most| in_flight >= most);
        let in_flight = self.calls().running.len();
        // Asked before the lock is taken: it is a user's function.
        let is_wanted = || Backpressure::allows(Load { in_flight, routine: routine.name });
        if is_full(in_flight) || self.crew.is_exhausted() || !is_wanted() {
            return Err(full());
        }
        let taken = Taken::new(routine, encoding, call, routing, sink.clone());
        let is_plain = taken.is_plain();
        let waiting = Waiting::default();
        {
            let mut calls = self.calls();
            if calls.is_stopping {
                return Err(RpcError::refused(Code::Unavailable, "the worker is stopping"));
            }
            // Other links may have brought some meanwhile.
            if is_full(calls.running.len()) {
                return Err(full());
            }
            if calls.running.contains_key(&number) {
                return Err(RpcError::refused(Code::InvalidArgument, "a call of this number is in flight"));
            }
            // Known before it can end.
            let running = Running { aborts: Vec::new(), sink: sink.clone(), waiting: Arc::clone(&waiting), is_plain };
            calls.running.insert(number, running);
            calls.taken += 1;
            calls.idle_since = None;
            self.in_flight.send_replace(calls.running.len());
            // Together with that: whoever ends all calls that are known ends this one, too.
            *lock(&waiting) = Some((taken, InFlight { executor: Arc::clone(self), number }));
        }
        self.find_a_thread(number, &waiting, is_plain);
        Ok(())
    }

    /// Has a thread take the call, if no other has.
    fn find_a_thread(&self, number: Number, waiting: &Waiting, is_plain: bool) {
        let (crew, waiting) = (self.crew.current(), Arc::clone(waiting));
        if is_plain {
            crew.spawn_blocking(move || {
                if let Some((taken, _in_flight)) = take(&waiting) {
                    taken.run_plain();
                }
            });
        } else {
            // It may have been ended by now. If not, whoever wants to end it waits until it can be.
            if let Some(running) = self.calls().running.get_mut(&number) {
                running.aborts.push(crew.spawn(run(waiting)).abort_handle());
            }
        }
    }

    /// Ends a call that nobody wants any more.
    pub(super) fn cancel(&self, number: Number) {
        let running = self.calls().running.get(&number).cloned();
        running.iter().for_each(Running::end);
    }

    /// Ends all calls of a link that is gone.
    pub(super) fn cancel_link(&self, link: u64) {
        let own = self.running(|number| number.link == link);
        own.iter().for_each(Running::end);
    }

    fn running(&self, which: impl Fn(&Number) -> bool) -> Vec<Running> {
        let calls = self.calls();
        calls.running.iter().filter(|(number, _)| which(number)).map(|(_, running)| running.clone()).collect()
    }

    /// Takes a number of items more of a call. Returns whether that makes sense; of a call that is over, anything does.
    pub(super) fn allow(&self, number: Number, items: u32) -> bool {
        self.calls().running.get(&number).is_none_or(|running| running.sink.allow(items))
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
            running.end();
        }
        all.len()
    }

    /// Sees to it that calls find a thread, for as long as there are calls: costs nothing while there are none.
    pub(super) async fn mind_the_crew(self: Arc<Self>, links: Arc<Links>) {
        let mut in_flight = self.in_flight.subscribe();
        while in_flight.wait_for(|calls| *calls > 0).await.is_ok() {
            tokio::time::sleep(HELD_UP).await;
            if *in_flight.borrow() == 0 || !self.crew.is_held_up().await {
                continue;
            }
            if self.crew.grow() {
                self.move_on();
                links.move_to(&self.threads());
            } else {
                // Where nobody can block them: calls are refused, and clients hear that the worker is there.
                links.move_to(&Handle::current());
            }
        }
    }

    /// Has those that wait for a thread taken by others.
    fn move_on(&self) {
        let waiting: Vec<_> = {
            let calls = self.calls();
            let waiting = calls.running.iter().filter(|(_, running)| lock(&running.waiting).is_some());
            waiting.map(|(number, running)| (*number, running.clone())).collect()
        };
        waiting.iter().for_each(|(number, running)| self.find_a_thread(*number, &running.waiting, running.is_plain));
    }

    /// The threads that new calls are run on.
    pub(super) fn threads(&self) -> Handle {
        self.crew.current()
    }

    /// Lets go of all threads.
    pub(super) fn leave(&self) {
        self.crew.leave();
    }

    /// Waits until nothing is in flight.
    pub(super) async fn idle(&self) {
        let mut in_flight = self.in_flight.subscribe();
        // The sender is part of this.
        let _ = in_flight.wait_for(|calls| *calls == 0).await;
    }

    pub(super) fn doing(&self) -> Doing {
        let calls = self.calls();
        let idle = calls.idle_since.map_or(Duration::ZERO, |since| since.elapsed());
        Doing { in_flight: calls.running.len(), taken: calls.taken, is_stopping: calls.is_stopping, idle }
    }

    pub(super) fn routines(&self) -> &Routines {
        &self.routines
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
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

async fn run(waiting: Waiting) {
    let taken = take(&waiting);
    if let Some((taken, _guard)) = taken {
        taken.run().await;
    }
}

fn take(waiting: &Waiting) -> Option<(Taken, InFlight)> {
    lock(waiting).take()
}

fn lock(waiting: &Waiting) -> MutexGuard<'_, Option<(Taken, InFlight)>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    /// Ends it, whether it runs or waits for a thread.
    fn end(&self) {
        drop(take(&self.waiting));
        self.aborts.iter().for_each(AbortHandle::abort);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use raddle_core::routine::{Routine, Run};
    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn no_more_are_taken_than_may_be_however_many_come_at_once() {
        let endless = Run::Async(|_| Ok(Box::pin(std::future::pending())));
        let routines = Routines::new([Routine { name: "endless", place: "here", run: endless }]).unwrap();
        let call = || v1::Call { protocol: PROTOCOL, routine: "endless".into(), ..v1::Call::default() };
        for _ in 0..200 {
            let executor = Executor::new(routines.clone(), Crew::new().unwrap(), Some(1));
            let (threads, sink) = (4, Sink::of_grpc(mpsc::unbounded_channel().0));
            let at_once = Barrier::new(threads);
            let begin = &|link| {
                at_once.wait();
                executor.begin(Number { link, id: 1 }, call(), Routing::Anywhere, &sink).is_ok()
            };
            let taken = thread::scope(|scope| {
                let all: Vec<_> = (0..threads as u64).map(|link| scope.spawn(move || begin(link))).collect();
                all.into_iter().map(|one| one.join().unwrap()).filter(|is_taken| *is_taken).count()
            });
            executor.leave();
            assert_eq!(taken, 1);
        }
    }
    /// Calls that come while all are ended: each is either refused, or ended. None is told that it was cancelled and goes on.
    #[test]
    fn whoever_ends_all_calls_ends_those_that_have_just_come() {
        let endless = Run::Async(|_| Ok(Box::pin(std::future::pending())));
        let routines = Routines::new([Routine { name: "endless", place: "here", run: endless }]).unwrap();
        let call = || v1::Call { protocol: PROTOCOL, routine: "endless".into(), ..v1::Call::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let executor = Executor::new(routines, Crew::new().unwrap(), None);
        let (sink, at_once) = (Sink::of_grpc(mpsc::unbounded_channel().0), Barrier::new(2));
        for round in 0..2_000 {
            thread::scope(|scope| {
                scope.spawn(|| {
                    at_once.wait();
                    let number = Number { link: round, id: 1 };
                    executor.begin(number, call(), Routing::Anywhere, &sink).unwrap();
                });
                at_once.wait();
                executor.cancel_all();
            });
            executor.cancel_all();
            let idle = async { tokio::time::timeout(Duration::from_secs(30), executor.idle()).await };
            assert!(runtime.block_on(idle).is_ok(), "one goes on in round {round}");
        }
        executor.leave();
    }
}
