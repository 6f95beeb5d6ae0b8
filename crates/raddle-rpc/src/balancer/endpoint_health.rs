//! What is known of a worker from the calls that it was asked to take.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use raddle_discovery::WorkerUid;
use tokio::time::Instant;
use tonic::Code;

use super::{
    breaker::{BreakerState, HealthEvent},
    latency::Latency,
};
use crate::{ErrorClass, RpcError, connection::LossListener};

/// What is known of a worker.
pub(super) struct EndpointHealth {
    uid: WorkerUid,
    /// Has somebody find out whether it is there.
    doubt: ProbeRequester,
    in_flight: AtomicUsize,
    /// It has taken a call.
    is_met: AtomicBool,
    known: Mutex<HealthRecord>,
}

/// Has somebody find out whether a worker is there. Does not wait.
pub(super) type ProbeRequester = Box<dyn Fn() + Send + Sync>;

#[derive(Debug, Default)]
struct HealthRecord {
    health: BreakerState,
    latency: Option<Latency>,
}

/// A call that a worker was asked to take. It counts as long as this is kept.
#[derive(Debug)]
pub(super) struct InFlightCall {
    standing: Arc<EndpointHealth>,
    began: Instant,
    /// When it was its turn to be sent. Until then it waits on this side, of which the worker knows nothing.
    sent: Option<Instant>,
    timeout: Option<Duration>,
    /// It is to find out whether the worker is well again.
    is_trial: bool,
    heard: CallOutcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallOutcome {
    Nothing,
    Refused,
    Taken,
}

impl EndpointHealth {
    pub(super) fn new(uid: WorkerUid, doubt: ProbeRequester) -> Self {
        Self {
            uid,
            doubt,
            in_flight: AtomicUsize::new(0),
            is_met: AtomicBool::new(false),
            known: Mutex::default(),
        }
    }

    /// Whether it is worth asking, as long as there are others.
    pub(super) fn admits(&self, now: Instant) -> bool {
        self.known().health.admits(now)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether it has ever taken a call.
    pub(super) fn is_met(&self) -> bool {
        self.is_met.load(Ordering::Relaxed)
    }

    /// It has taken a call. Returns whether that was the first.
    pub(super) fn meet(&self) -> bool {
        !self.is_met() && !self.is_met.swap(true, Ordering::Relaxed)
    }

    /// How long a call is expected to take, in nanoseconds, if anything was ever heard of one.
    pub(super) fn latency(&self, now: Instant) -> Option<f64> {
        self.known().latency.map(|latency| latency.nanos(now))
    }

    /// It is asked to take a call.
    pub(super) fn ask(self: &Arc<Self>, now: Instant, timeout: Option<Duration>) -> InFlightCall {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let (before, after) = self.happen(HealthEvent::Asked, now);
        InFlightCall {
            standing: Arc::clone(self),
            began: now,
            sent: None,
            timeout,
            is_trial: before != after,
            heard: CallOutcome::Nothing,
        }
    }

    fn happen(&self, happening: HealthEvent, now: Instant) -> (BreakerState, BreakerState) {
        let mut known = self.known();
        let before = known.health;
        let after = before.after(happening, now);
        known.health = after;
        drop(known);
        if matches!(happening, HealthEvent::Failed | HealthEvent::Unavailable) {
            (self.doubt)();
        }
        match (before, after) {
            (
                BreakerState::Ejected { .. } | BreakerState::HalfOpen { .. },
                BreakerState::Healthy,
            ) => {
                tracing::info!(worker = %self.uid, "takes calls again");
            }
            (
                BreakerState::Suspect { .. } | BreakerState::HalfOpen { .. },
                BreakerState::Ejected { until, .. },
            ) if until > now => {
                tracing::warn!(worker = %self.uid, pause = ?(until - now), "takes no calls: it is left alone for a while");
            }
            _ => {}
        }
        (before, after)
    }

    fn known(&self) -> MutexGuard<'_, HealthRecord> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LossListener for EndpointHealth {
    fn record_loss(&self) {
        (self.doubt)();
    }
}

impl InFlightCall {
    /// It is sent now.
    pub(super) fn send(&mut self) {
        self.sent = Some(Instant::now());
    }

    /// The worker has taken it, or there is this error instead.
    pub(super) fn hear(&mut self, error: Option<&RpcError>) {
        self.heard = if error.is_none() {
            CallOutcome::Taken
        } else {
            CallOutcome::Refused
        };
        match error.map_or(Some(HealthEvent::Succeeded), judge) {
            Some(happening) => _ = self.standing.happen(happening, Instant::now()),
            None => self.abandon(),
        }
    }

    fn abandon(&self) {
        let now = Instant::now();
        // Who did not wait says nothing of the worker; who has waited for it in vain does. Not to the last moment: a caller may have a timer of its
        // own, which is a little ahead.
        let waited = self
            .sent
            .map_or(Duration::ZERO, |sent| now.saturating_duration_since(sent));
        if self
            .timeout
            .is_some_and(|timeout| !waited.is_zero() && waited >= timeout.mul_f64(0.9))
        {
            self.standing.happen(HealthEvent::Failed, now);
        } else if self.is_trial {
            self.standing.happen(HealthEvent::Abandoned, now);
        }
    }
}

impl fmt::Debug for EndpointHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            uid,
            in_flight,
            known,
            ..
        } = self;
        f.debug_struct("Standing")
            .field("uid", uid)
            .field("in_flight", in_flight)
            .field("known", known)
            .finish()
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        self.standing.in_flight.fetch_sub(1, Ordering::Relaxed);
        match self.heard {
            CallOutcome::Nothing => self.abandon(),
            // It was quick, and no use.
            CallOutcome::Refused => {}
            CallOutcome::Taken => {
                let (now, mut known) = (Instant::now(), self.standing.known());
                known.latency = Some(Latency::after(known.latency, now - self.began, now));
            }
        }
    }
}

/// What an error says of the worker.
fn judge(error: &RpcError) -> Option<HealthEvent> {
    match (error.class(), error.code) {
        // It is there, and has a mind of its own. One that has enough to do will take a call as soon as it has not.
        (ErrorClass::Mismatch, _)
        | (ErrorClass::Transient, Code::ResourceExhausted)
        | (ErrorClass::Call, Code::InvalidArgument) => Some(HealthEvent::Succeeded),
        // Or the way broke.
        (ErrorClass::Transient | ErrorClass::Call, Code::Unavailable) => {
            Some(HealthEvent::Unavailable)
        }
        (ErrorClass::Transient | ErrorClass::Worker, _) => Some(HealthEvent::Failed),
        // Nobody has waited any longer.
        (ErrorClass::Call, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing() -> Arc<EndpointHealth> {
        Arc::new(EndpointHealth::new(WorkerUid::new(), Box::new(|| {})))
    }

    fn refuse(standing: &Arc<EndpointHealth>, code: Code) {
        standing
            .ask(Instant::now(), None)
            .hear(Some(&RpcError::refused(code, "no")));
    }

    #[tokio::test(start_paused = true)]
    async fn every_call_that_fails_is_a_reason_to_find_out_whether_it_is_there() {
        let doubts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&doubts);
        let doubt = Box::new(move || _ = counted.fetch_add(1, Ordering::Relaxed));
        let standing = Arc::new(EndpointHealth::new(WorkerUid::new(), doubt));
        let ask = || standing.ask(Instant::now(), Some(Duration::from_secs(2)));
        for code in [
            Code::ResourceExhausted,
            Code::NotFound,
            Code::InvalidArgument,
        ] {
            refuse(&standing, code);
        }
        ask().hear(None);
        assert_eq!(
            doubts.load(Ordering::Relaxed),
            0,
            "it is there, whatever it says"
        );
        for _ in 0..5 {
            refuse(&standing, Code::Unavailable);
        }
        ask().hear(Some(&RpcError::lost("gone")));
        // One that nobody could wait for any longer.
        let mut late = ask();
        late.send();
        tokio::time::advance(Duration::from_secs(2)).await;
        drop(late);
        assert_eq!(doubts.load(Ordering::Relaxed), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_count_until_they_are_let_go_of() {
        let standing = standing();
        let mut taken = standing.ask(Instant::now(), None);
        let refused = standing.ask(Instant::now(), None);
        assert_eq!(standing.in_flight(), 2);
        drop(refused);
        taken.hear(None);
        assert_eq!(
            (standing.in_flight(), standing.latency(Instant::now())),
            (1, None)
        );
        tokio::time::advance(Duration::from_millis(3)).await;
        drop(taken);
        assert_eq!(
            (standing.in_flight(), standing.latency(Instant::now())),
            (0, Some(3_000_000.0))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn errors_say_what_they_say() {
        for (code, still_admitted) in [
            (Code::Unavailable, false),
            (Code::ResourceExhausted, true),
            (Code::Internal, false),
            (Code::NotFound, true),
            (Code::FailedPrecondition, true),
            (Code::InvalidArgument, true),
            (Code::Cancelled, false),
        ] {
            let standing = standing();
            (0..3).for_each(|_| refuse(&standing, code));
            assert_eq!(standing.admits(Instant::now()), still_admitted, "{code:?}");
        }
        let standing = standing();
        (0..3).for_each(|_| {
            standing
                .ask(Instant::now(), None)
                .hear(Some(&RpcError::lost("gone")))
        });
        assert!(!standing.admits(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_ejected_worker_is_tried_by_one_call_and_an_impatient_caller_does_not_count() {
        let standing = standing();
        (0..3).for_each(|_| refuse(&standing, Code::Unavailable));
        tokio::time::advance(Duration::from_secs(1)).await;
        let trial = standing.ask(Instant::now(), None);
        assert!(trial.is_trial && !standing.admits(Instant::now()));
        let beside = standing.ask(Instant::now(), None);
        assert!(!beside.is_trial);
        drop(beside);
        assert!(!standing.admits(Instant::now()), "the trial goes on");
        drop(trial);
        assert!(standing.admits(Instant::now()), "somebody else may try");
        standing.ask(Instant::now(), None).hear(None);
        assert_eq!(standing.known().health, BreakerState::Healthy);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_in_vain_tells_of_a_worker_that_hangs() {
        let standing = standing();
        for _ in 0..3 {
            let mut under_way = standing.ask(Instant::now(), Some(Duration::from_secs(2)));
            under_way.send();
            tokio::time::advance(Duration::from_millis(1_000)).await;
            under_way.hear(Some(&RpcError {
                code: Code::DeadlineExceeded,
                ..RpcError::lost("late")
            }));
            drop(standing.ask(Instant::now(), Some(Duration::ZERO)));
        }
        assert!(standing.admits(Instant::now()), "they had other reasons");
        for _ in 0..3 {
            let mut under_way = standing.ask(Instant::now(), Some(Duration::from_secs(2)));
            under_way.send();
            tokio::time::advance(Duration::from_millis(1_999)).await;
            drop(under_way);
        }
        assert!(!standing.admits(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_before_it_was_sent_is_not_the_workers() {
        let (standing, timeout) = (standing(), Duration::from_secs(2));
        let late = RpcError {
            code: Code::DeadlineExceeded,
            ..RpcError::lost("late")
        };
        for _ in 0..3 {
            // Never sent, and given up by either timer; or sent when there was little time left.
            let mut unsent = standing.ask(Instant::now(), Some(timeout));
            let dropped = standing.ask(Instant::now(), Some(timeout));
            let mut sent_late = standing.ask(Instant::now(), Some(timeout));
            tokio::time::advance(Duration::from_millis(1_500)).await;
            sent_late.send();
            tokio::time::advance(Duration::from_millis(500)).await;
            unsent.hear(Some(&late));
            sent_late.hear(Some(&late));
            drop(dropped);
        }
        assert_eq!(standing.known().health, BreakerState::Healthy);
    }

    #[tokio::test(start_paused = true)]
    async fn a_trial_that_was_never_sent_lets_somebody_else_try() {
        let standing = standing();
        (0..3).for_each(|_| refuse(&standing, Code::Unavailable));
        tokio::time::advance(Duration::from_secs(1)).await;
        let trial = standing.ask(Instant::now(), Some(Duration::from_secs(2)));
        assert!(trial.is_trial);
        tokio::time::advance(Duration::from_secs(2)).await;
        drop(trial);
        assert!(
            standing.admits(Instant::now()),
            "it is not left alone for longer"
        );
    }
}
