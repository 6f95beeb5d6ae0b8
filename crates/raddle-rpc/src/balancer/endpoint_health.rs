//! Health and load of a worker, as observed from its calls.

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

/// Health and load of a worker.
pub(super) struct EndpointHealth {
    uid: WorkerUid,
    /// Asks discovery to check the worker.
    request_recheck: RecheckRequest,
    in_flight: AtomicUsize,
    /// The worker has accepted a call.
    has_accepted: AtomicBool,
    record: Mutex<HealthRecord>,
}

/// Asks discovery to check a worker. Must not block: the caller is on the path of a call.
pub(super) type RecheckRequest = Box<dyn Fn() + Send + Sync>;

#[derive(Debug, Default)]
struct HealthRecord {
    breaker: BreakerState,
    latency: Option<Latency>,
}

/// A call to a worker. It counts as in flight until dropped.
#[derive(Debug)]
pub(super) struct InFlightCall {
    health: Arc<EndpointHealth>,
    started: Instant,
    /// When the call got its permit and was sent. The time before does not count against the
    /// worker.
    sent_at: Option<Instant>,
    timeout: Option<Duration>,
    /// The one call that tries a worker in `HalfOpen`.
    is_trial: bool,
    outcome: CallOutcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallOutcome {
    Pending,
    Refused,
    Accepted,
}

impl EndpointHealth {
    pub(super) fn new(uid: WorkerUid, request_recheck: RecheckRequest) -> Self {
        Self {
            uid,
            request_recheck,
            in_flight: AtomicUsize::new(0),
            has_accepted: AtomicBool::new(false),
            record: Mutex::default(),
        }
    }

    /// Whether calls should go to the worker while there are others.
    pub(super) fn admits(&self, now: Instant) -> bool {
        self.record().breaker.admits(now)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether the worker has ever accepted a call.
    pub(super) fn has_accepted(&self) -> bool {
        self.has_accepted.load(Ordering::Relaxed)
    }

    /// Records that the worker has accepted a call. Returns whether it was the first.
    pub(super) fn record_accepted(&self) -> bool {
        !self.has_accepted() && !self.has_accepted.swap(true, Ordering::Relaxed)
    }

    /// Expected latency in nanoseconds, once a call has ended.
    pub(super) fn latency(&self, now: Instant) -> Option<f64> {
        self.record().latency.map(|latency| latency.nanos(now))
    }

    /// Starts a call.
    pub(super) fn begin_call(
        self: &Arc<Self>,
        now: Instant,
        timeout: Option<Duration>,
    ) -> InFlightCall {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let (before, after) = self.apply_event(HealthEvent::Started, now);
        InFlightCall {
            health: Arc::clone(self),
            started: now,
            sent_at: None,
            timeout,
            is_trial: before != after,
            outcome: CallOutcome::Pending,
        }
    }

    fn apply_event(&self, event: HealthEvent, now: Instant) -> (BreakerState, BreakerState) {
        let mut record = self.record();
        let before = record.breaker;
        let after = before.next_state(event, now);
        record.breaker = after;
        drop(record);
        if matches!(event, HealthEvent::Failed | HealthEvent::Unavailable) {
            (self.request_recheck)();
        }
        match (before, after) {
            (
                BreakerState::Ejected { .. } | BreakerState::HalfOpen { .. },
                BreakerState::Healthy,
            ) => {
                tracing::info!(worker = %self.uid, "worker accepts calls again");
            }
            (
                BreakerState::Suspect { .. } | BreakerState::HalfOpen { .. },
                BreakerState::Ejected { until, .. },
            ) if until > now => {
                tracing::warn!(worker = %self.uid, pause = ?(until - now), "worker accepts no calls: ejected for a while");
            }
            _ => {}
        }
        (before, after)
    }

    fn record(&self) -> MutexGuard<'_, HealthRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LossListener for EndpointHealth {
    fn record_loss(&self) {
        (self.request_recheck)();
    }
}

impl InFlightCall {
    /// Records that the call is being sent.
    pub(super) fn mark_sent(&mut self) {
        self.sent_at = Some(Instant::now());
    }

    /// Records that the worker has accepted the call, or the error.
    pub(super) fn record_outcome(&mut self, error: Option<&RpcError>) {
        self.outcome = if error.is_none() {
            CallOutcome::Accepted
        } else {
            CallOutcome::Refused
        };
        match error.map_or(Some(HealthEvent::Succeeded), health_event) {
            Some(event) => _ = self.health.apply_event(event, Instant::now()),
            None => self.record_abandoned(),
        }
    }

    fn record_abandoned(&self) {
        let now = Instant::now();
        // A caller that gave up early says nothing about the worker; one that waited for its whole
        // timeout does. 90 % of it, because the caller's own timer may fire a little earlier.
        let waited = self
            .sent_at
            .map_or(Duration::ZERO, |sent| now.saturating_duration_since(sent));
        if self
            .timeout
            .is_some_and(|timeout| !waited.is_zero() && waited >= timeout.mul_f64(0.9))
        {
            self.health.apply_event(HealthEvent::Failed, now);
        } else if self.is_trial {
            self.health.apply_event(HealthEvent::Abandoned, now);
        }
    }
}

impl fmt::Debug for EndpointHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            uid,
            in_flight,
            record,
            ..
        } = self;
        f.debug_struct("EndpointHealth")
            .field("uid", uid)
            .field("in_flight", in_flight)
            .field("record", record)
            .finish()
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        self.health.in_flight.fetch_sub(1, Ordering::Relaxed);
        match self.outcome {
            CallOutcome::Pending => self.record_abandoned(),
            // A refusal is quick, and would distort the latency.
            CallOutcome::Refused => {}
            CallOutcome::Accepted => {
                let (now, mut record) = (Instant::now(), self.health.record());
                record.latency = Some(Latency::after(record.latency, now - self.started, now));
            }
        }
    }
}

/// The health event that an error implies.
fn health_event(error: &RpcError) -> Option<HealthEvent> {
    match (error.class(), error.code) {
        // The worker is alive and has decided about the call. A full worker accepts calls again as
        // soon as it has room.
        (ErrorClass::Mismatch, _)
        | (ErrorClass::Transient, Code::ResourceExhausted)
        | (ErrorClass::Call, Code::InvalidArgument) => Some(HealthEvent::Succeeded),
        // A refusal, or a broken connection.
        (ErrorClass::Transient | ErrorClass::Call, Code::Unavailable) => {
            Some(HealthEvent::Unavailable)
        }
        (ErrorClass::Transient | ErrorClass::Worker, _) => Some(HealthEvent::Failed),
        // The caller's timeout; `record_abandoned` decides.
        (ErrorClass::Call, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_health() -> Arc<EndpointHealth> {
        Arc::new(EndpointHealth::new(WorkerUid::new(), Box::new(|| {})))
    }

    fn refuse(health: &Arc<EndpointHealth>, code: Code) {
        health
            .begin_call(Instant::now(), None)
            .record_outcome(Some(&RpcError::refused(code, "no")));
    }

    #[tokio::test(start_paused = true)]
    async fn each_failed_call_requests_a_recheck() {
        let rechecks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&rechecks);
        let request_recheck = Box::new(move || _ = counted.fetch_add(1, Ordering::Relaxed));
        let health = Arc::new(EndpointHealth::new(WorkerUid::new(), request_recheck));
        let begin_call = || health.begin_call(Instant::now(), Some(Duration::from_secs(2)));
        for code in [
            Code::ResourceExhausted,
            Code::NotFound,
            Code::InvalidArgument,
        ] {
            refuse(&health, code);
        }
        begin_call().record_outcome(None);
        assert_eq!(
            rechecks.load(Ordering::Relaxed),
            0,
            "a refusal shows that the worker exists"
        );
        for _ in 0..5 {
            refuse(&health, Code::Unavailable);
        }
        begin_call().record_outcome(Some(&RpcError::lost("gone")));
        // A call that timed out.
        let mut late = begin_call();
        late.mark_sent();
        tokio::time::advance(Duration::from_secs(2)).await;
        drop(late);
        assert_eq!(rechecks.load(Ordering::Relaxed), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_in_flight_until_dropped() {
        let health = new_health();
        let mut taken = health.begin_call(Instant::now(), None);
        let refused = health.begin_call(Instant::now(), None);
        assert_eq!(health.in_flight(), 2);
        drop(refused);
        taken.record_outcome(None);
        assert_eq!(
            (health.in_flight(), health.latency(Instant::now())),
            (1, None)
        );
        tokio::time::advance(Duration::from_millis(3)).await;
        drop(taken);
        assert_eq!(
            (health.in_flight(), health.latency(Instant::now())),
            (0, Some(3_000_000.0))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn error_codes_eject_or_keep_the_worker() {
        for (code, still_admitted) in [
            (Code::Unavailable, false),
            (Code::ResourceExhausted, true),
            (Code::Internal, false),
            (Code::NotFound, true),
            (Code::FailedPrecondition, true),
            (Code::InvalidArgument, true),
            (Code::Cancelled, false),
        ] {
            let health = new_health();
            (0..3).for_each(|_| refuse(&health, code));
            assert_eq!(health.admits(Instant::now()), still_admitted, "{code:?}");
        }
        let health = new_health();
        (0..3).for_each(|_| {
            health
                .begin_call(Instant::now(), None)
                .record_outcome(Some(&RpcError::lost("gone")))
        });
        assert!(!health.admits(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn one_call_tries_an_ejected_worker_and_early_drops_do_not_count() {
        let health = new_health();
        (0..3).for_each(|_| refuse(&health, Code::Unavailable));
        tokio::time::advance(Duration::from_secs(1)).await;
        let trial = health.begin_call(Instant::now(), None);
        assert!(trial.is_trial && !health.admits(Instant::now()));
        let beside = health.begin_call(Instant::now(), None);
        assert!(!beside.is_trial);
        drop(beside);
        assert!(
            !health.admits(Instant::now()),
            "the trial is still in flight"
        );
        drop(trial);
        assert!(health.admits(Instant::now()), "another call may try");
        health.begin_call(Instant::now(), None).record_outcome(None);
        assert_eq!(health.record().breaker, BreakerState::Healthy);
    }

    #[tokio::test(start_paused = true)]
    async fn full_timeouts_eject_a_hung_worker() {
        let health = new_health();
        for _ in 0..3 {
            let mut in_flight_call =
                health.begin_call(Instant::now(), Some(Duration::from_secs(2)));
            in_flight_call.mark_sent();
            tokio::time::advance(Duration::from_millis(1_000)).await;
            in_flight_call.record_outcome(Some(&RpcError {
                code: Code::DeadlineExceeded,
                ..RpcError::lost("late")
            }));
            drop(health.begin_call(Instant::now(), Some(Duration::ZERO)));
        }
        assert!(
            health.admits(Instant::now()),
            "half a timeout is no failure"
        );
        for _ in 0..3 {
            let mut in_flight_call =
                health.begin_call(Instant::now(), Some(Duration::from_secs(2)));
            in_flight_call.mark_sent();
            tokio::time::advance(Duration::from_millis(1_999)).await;
            drop(in_flight_call);
        }
        assert!(!health.admits(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn time_before_sending_does_not_count_against_the_worker() {
        let (health, timeout) = (new_health(), Duration::from_secs(2));
        let late = RpcError {
            code: Code::DeadlineExceeded,
            ..RpcError::lost("late")
        };
        for _ in 0..3 {
            // Calls that were never sent and time out by either timer, or that were sent with
            // little time left.
            let mut unsent = health.begin_call(Instant::now(), Some(timeout));
            let dropped = health.begin_call(Instant::now(), Some(timeout));
            let mut sent_late = health.begin_call(Instant::now(), Some(timeout));
            tokio::time::advance(Duration::from_millis(1_500)).await;
            sent_late.mark_sent();
            tokio::time::advance(Duration::from_millis(500)).await;
            unsent.record_outcome(Some(&late));
            sent_late.record_outcome(Some(&late));
            drop(dropped);
        }
        assert_eq!(health.record().breaker, BreakerState::Healthy);
    }

    #[tokio::test(start_paused = true)]
    async fn unsent_trial_lets_another_call_try() {
        let health = new_health();
        (0..3).for_each(|_| refuse(&health, Code::Unavailable));
        tokio::time::advance(Duration::from_secs(1)).await;
        let trial = health.begin_call(Instant::now(), Some(Duration::from_secs(2)));
        assert!(trial.is_trial);
        tokio::time::advance(Duration::from_secs(2)).await;
        drop(trial);
        assert!(health.admits(Instant::now()), "the backoff has not grown");
    }
}
