//! The rules that all balancers share: try workers until one accepts the call.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use super::{BalancerContext, Endpoint, unconnected::Unconnected};
use crate::{
    CallError, ErrorClass, NoWorkersAvailable, RpcError,
    connection::{CallRequest, ChannelState, ConnectWait, ReplyStream},
};

/// Tries workers until one accepts the call. `choose` names the next one by its index in the
/// [`Candidates`].
///
/// The [`ErrorClass`] of a refusal decides what follows. An unusable worker is removed from the
/// context; one that may accept later, or accept other calls, stays; in both cases the next worker
/// is tried. An error of the call itself is returned at once. Each worker is tried at most once.
///
/// A worker that refused several times in a row for a temporary reason is ejected for a while: it
/// is a candidate only if all others have refused as well. After that time one call tries it.
///
/// A silent worker costs a call at most one short wait: from then on, connected workers come first,
/// and then all others are connected to at once.
///
/// If every worker has refused, or there is none, the error is [`CallError::NoWorkers`]. If all
/// workers are healthy and none can run the call, the error is the reason of the last refusal.
pub async fn attempt(
    call: CallRequest,
    context: &BalancerContext,
    timeout: Option<Duration>,
    mut choose: impl FnMut(&Candidates<'_>) -> Option<usize> + Send,
) -> Result<ReplyStream, CallError> {
    let (workers, began) = (context.workers(), Instant::now());
    let (mut tried, mut refusals) = (Vec::new(), CallRefusals::default());
    let mut unconnected = Unconnected::default();
    loop {
        let Some(index) = next_worker(&workers, &tried, &unconnected, &mut choose) else {
            // No timeout here: callers have one around this.
            let Some(silent) = unconnected.connect_any(&workers, &mut tried).await else {
                return Err(refusals.into_error());
            };
            silent
                .into_iter()
                .for_each(|(index, error)| refusals.record(context, &workers[index], error));
            continue;
        };
        let worker = &workers[index];
        let left = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
        let in_flight_call = worker.health.begin_call(Instant::now(), left);
        tried.push(index);
        // Detecting that a machine is gone takes time; do not spend it while there are other
        // workers.
        let wait = if tried.len() < workers.len() {
            ConnectWait::Briefly
        } else {
            ConnectWait::UntilDone
        };
        let error = match worker
            .dispatch_counted(in_flight_call, call.clone(), left, wait)
            .await
        {
            Ok(replies) => {
                if worker.health.record_accepted() {
                    context.invalidate_route();
                }
                return Ok(replies);
            }
            Err(error) => error,
        };
        if error.class() == ErrorClass::Call {
            return Err(error.into());
        }
        if wait == ConnectWait::Briefly
            && error.code == Code::Unavailable
            && worker.factory.channel_state() == ChannelState::Silent
        {
            unconnected.start_tracking(&workers);
        }
        refusals.record(context, worker, error);
    }
}

fn next_worker(
    workers: &[Endpoint],
    tried: &[usize],
    unconnected: &Unconnected,
    choose: &mut impl FnMut(&Candidates<'_>) -> Option<usize>,
) -> Option<usize> {
    let now = Instant::now();
    [false, true].into_iter().find_map(|include_ejected| {
        let candidates = Candidates {
            workers,
            tried,
            unconnected: &unconnected.0,
            include_ejected,
            now,
        };
        // Ignore an index that is no candidate.
        choose(&candidates).filter(|index| candidates.get(*index).is_some())
    })
}

/// The workers that may be tried next.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<'a> {
    pub(super) workers: &'a [Endpoint],
    pub(super) tried: &'a [usize],
    /// By index: workers that wait until all connected ones were tried. Empty while every worker
    /// responds.
    pub(super) unconnected: &'a [bool],
    /// Also offer ejected workers, because no other is left.
    pub(super) include_ejected: bool,
    pub(super) now: Instant,
}

impl<'a> Candidates<'a> {
    /// Number of workers of the context, including those that are no candidates. Indices are below
    /// it.
    pub fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// The candidate at this index.
    pub fn get(&self, index: usize) -> Option<&'a Endpoint> {
        let worker = self.workers.get(index)?;
        let is_unconnected = self.unconnected.get(index) == Some(&true);
        let is_eligible = !is_unconnected && !self.tried.contains(&index);
        (is_eligible && (self.include_ejected || worker.health.admits(self.now))).then_some(worker)
    }

    /// All candidates with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &'a Endpoint)> {
        self.iter_from(0)
    }

    /// All candidates with their indices, in cyclic order from `start`.
    pub fn iter_from(&self, start: usize) -> impl Iterator<Item = (usize, &'a Endpoint)> {
        let (this, count) = (*self, self.worker_count());
        let start = start.checked_rem(count).unwrap_or(0);
        (start..count)
            .chain(0..start)
            .filter_map(move |index| Some((index, this.get(index)?)))
    }
}

/// The refusals of a call's workers.
#[derive(Debug, Default)]
struct CallRefusals {
    last: Option<(String, RpcError)>,
    has_other_reason: bool,
}

impl CallRefusals {
    /// Records that a worker did not accept the call, and removes the worker if it is unusable.
    fn record(&mut self, context: &BalancerContext, worker: &Endpoint, error: RpcError) {
        let worker_label = format!(
            "worker {} at {}",
            worker.metadata.uid, worker.metadata.address
        );
        if error.class() == ErrorClass::Worker {
            tracing::warn!(worker = %worker_label, %error, "removed a worker that cannot take calls");
            context.remove_worker(worker.metadata.uid);
        } else {
            tracing::debug!(worker = %worker_label, %error, "worker refused a call");
        }
        self.add(&worker_label, error);
    }

    fn add(&mut self, worker_label: &str, error: RpcError) {
        self.has_other_reason |= error.class() != ErrorClass::Mismatch;
        self.last = Some((worker_label.to_owned(), error));
    }

    fn into_error(self) -> CallError {
        match self.last {
            Some((_, error)) if !self.has_other_reason => error.into(),
            last => NoWorkersAvailable(
                last.map(|(worker_label, error)| format!("{worker_label}: {error}")),
            )
            .into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(codes: &[Code]) -> CallError {
        let mut refusals = CallRefusals::default();
        codes
            .iter()
            .for_each(|code| refusals.add("w", RpcError::refused(*code, format!("{code:?}"))));
        refusals.into_error()
    }

    #[test]
    fn shared_reason_of_all_workers_is_the_error() {
        use Code::*;
        assert_eq!(error_of(&[]), NoWorkersAvailable(None).into());
        assert_eq!(
            error_of(&[Unavailable]),
            NoWorkersAvailable(Some("w: Unavailable".into())).into()
        );
        assert_eq!(
            error_of(&[NotFound, NotFound]),
            CallError::UnknownRoutine("NotFound".into())
        );
        assert_eq!(
            error_of(&[NotFound, FailedPrecondition]),
            CallError::Version("FailedPrecondition".into())
        );
        assert_eq!(
            error_of(&[Internal, NotFound]),
            NoWorkersAvailable(Some("w: NotFound".into())).into()
        );
    }
}
