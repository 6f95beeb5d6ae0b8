//! Asking workers until one takes the call: the rules that all balancers have in common.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use super::{BalancerContext, Endpoint, unconnected::Unconnected};
use crate::{
    CallError, ErrorClass, NoWorkersAvailable, RpcError,
    connection::{CallRequest, ChannelState, ConnectWait, ReplyStream},
};

/// Asks workers in the order in which `choose` names them, by their place among the [`Candidates`], until one takes the call.
///
/// What follows from a refusal is up to its [`ErrorClass`]: a worker that is no use is removed from the context; one that may be of use later, or for
/// other calls, stays; and the next is asked. An error of the call itself is returned at once. Every worker is asked once at most.
///
/// A worker that has refused several times in a row, for a reason that should have passed, is left alone for a while: it is no candidate
/// then, unless all others have refused as well. After that, one call tries it.
///
/// A worker that says nothing costs a call one brief wait at most: after that those come first that there is a way to, and then all others are tried at
/// once.
///
/// When all have refused, or there are none, that is [`CallError::NoWorkers`]; but if all were well and merely not suited, it is said why.
pub async fn attempt(
    call: CallRequest,
    context: &BalancerContext,
    timeout: Option<Duration>,
    mut choose: impl FnMut(&Candidates<'_>) -> Option<usize> + Send,
) -> Result<ReplyStream, CallError> {
    let (workers, began) = (context.workers(), Instant::now());
    let (mut asked, mut refusals) = (Vec::new(), CallRefusals::default());
    let mut unmet = Unconnected::default();
    loop {
        let Some(place) = next(&workers, &asked, &unmet, &mut choose) else {
            // Callers have a timer around this.
            let Some(silent) = unmet.meet(&workers, &mut asked).await else {
                return Err(refusals.verdict());
            };
            silent
                .into_iter()
                .for_each(|(place, error)| refusals.hear(context, &workers[place], error));
            continue;
        };
        let worker = &workers[place];
        let left = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
        let under_way = worker.standing.ask(Instant::now(), left);
        asked.push(place);
        // To find out that a machine is gone takes time, which whoever has others to ask need not have.
        let wait = if asked.len() < workers.len() {
            ConnectWait::Briefly
        } else {
            ConnectWait::UntilDone
        };
        let error = match worker.hand_over(under_way, call.clone(), left, wait).await {
            Ok(replies) => {
                if worker.standing.meet() {
                    context.met();
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
            unmet.begin(&workers);
        }
        refusals.hear(context, worker, error);
    }
}

fn next(
    workers: &[Endpoint],
    asked: &[usize],
    unmet: &Unconnected,
    choose: &mut impl FnMut(&Candidates<'_>) -> Option<usize>,
) -> Option<usize> {
    let now = Instant::now();
    [false, true].into_iter().find_map(|ejected_too| {
        let candidates = Candidates {
            workers,
            asked,
            unmet: &unmet.0,
            ejected_too,
            now,
        };
        // Whoever else is named may not be asked.
        choose(&candidates).filter(|place| candidates.get(*place).is_some())
    })
}

/// The workers that may be asked next.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<'a> {
    pub(super) workers: &'a [Endpoint],
    pub(super) asked: &'a [usize],
    /// Who has to wait until all others were asked, by place. Nobody, if there is nothing.
    pub(super) unmet: &'a [bool],
    /// Nobody else is left.
    pub(super) ejected_too: bool,
    pub(super) now: Instant,
}

impl<'a> Candidates<'a> {
    /// How many places there are. Some may have no candidate.
    pub fn places(&self) -> usize {
        self.workers.len()
    }

    /// The candidate at this place.
    pub fn get(&self, place: usize) -> Option<&'a Endpoint> {
        let worker = self.workers.get(place)?;
        let is_unmet = self.unmet.get(place) == Some(&true);
        let may = !is_unmet && !self.asked.contains(&place);
        (may && (self.ejected_too || worker.standing.admits(self.now))).then_some(worker)
    }

    /// All candidates, each with its place.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &'a Endpoint)> {
        self.iter_from(0)
    }

    /// All candidates, each with its place: from this one on to the last, and then from the first.
    pub fn iter_from(&self, start: usize) -> impl Iterator<Item = (usize, &'a Endpoint)> {
        let (this, places) = (*self, self.places());
        let start = start.checked_rem(places).unwrap_or(0);
        (start..places)
            .chain(0..start)
            .filter_map(move |place| Some((place, this.get(place)?)))
    }
}

/// What was heard from those who did not take the call.
#[derive(Debug, Default)]
struct CallRefusals {
    last: Option<(String, RpcError)>,
    some_other_reason: bool,
}

impl CallRefusals {
    /// A worker has not taken the call, which another may.
    fn hear(&mut self, context: &BalancerContext, worker: &Endpoint, error: RpcError) {
        let who = format!(
            "worker {} at {}",
            worker.metadata.uid, worker.metadata.address
        );
        if error.class() == ErrorClass::Worker {
            tracing::warn!(%who, %error, "is no use: it is called no more");
            context.remove_worker(worker.metadata.uid);
        } else {
            tracing::debug!(%who, %error, "does not take a call");
        }
        self.add(&who, error);
    }

    fn add(&mut self, who: &str, error: RpcError) {
        self.some_other_reason |= error.class() != ErrorClass::Mismatch;
        self.last = Some((who.to_owned(), error));
    }

    fn verdict(self) -> CallError {
        match self.last {
            Some((_, error)) if !self.some_other_reason => error.into(),
            last => NoWorkersAvailable(last.map(|(who, error)| format!("{who}: {error}"))).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(codes: &[Code]) -> CallError {
        let mut refusals = CallRefusals::default();
        codes
            .iter()
            .for_each(|code| refusals.add("w", RpcError::refused(*code, format!("{code:?}"))));
        refusals.verdict()
    }

    #[test]
    fn a_reason_that_all_have_is_the_reason() {
        use Code::*;
        assert_eq!(verdict(&[]), NoWorkersAvailable(None).into());
        assert_eq!(
            verdict(&[Unavailable]),
            NoWorkersAvailable(Some("w: Unavailable".into())).into()
        );
        assert_eq!(
            verdict(&[NotFound, NotFound]),
            CallError::UnknownRoutine("NotFound".into())
        );
        assert_eq!(
            verdict(&[NotFound, FailedPrecondition]),
            CallError::Version("FailedPrecondition".into())
        );
        assert_eq!(
            verdict(&[Internal, NotFound]),
            NoWorkersAvailable(Some("w: NotFound".into())).into()
        );
    }
}
