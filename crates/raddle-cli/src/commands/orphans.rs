//! `raddle requeue-orphans`: what belongs to workers that are gone goes back, as it does with every beat of a live one.

use raddle_broker::{Reclaimed, Verdict};
use raddle_core::{State, Tid};
use raddle_fabric::leftovers;
use serde::Serialize;

use crate::{context::Context, error::Outcome, format};

/// A task that was taken back.
#[derive(Serialize)]
struct Orphan {
    tid: Tid,
    /// The attempt that was lost.
    attempt: u32,
    /// The worker that had it.
    worker: Tid,
    /// What the task is now: `created` if it waits for another attempt.
    state: State,
    /// When that may begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<jiff::Timestamp>,
}

pub(super) async fn requeue(context: &Context) -> Outcome {
    let broker = context.onlooker().await?;
    let taken = broker.reclaim().await?;
    // Also of those that somebody else has taken back, who only came by.
    leftovers::of_anybody(&*broker).await?;
    let orphans: Vec<Orphan> = taken.iter().filter_map(Orphan::of).collect();
    if orphans.is_empty() && !context.json {
        context.note("no task belongs to a worker that is gone");
    }
    context.show(&orphans, || orphans.iter().map(Orphan::text).collect())
}

impl Orphan {
    fn text(&self) -> String {
        let Self { tid, worker, state, run_at, .. } = self;
        let became = match run_at {
            Some(at) if *at > jiff::Timestamp::now() => format!("requeued, not before {}", format::time(*at)),
            Some(_) => "requeued".to_owned(),
            None => state.to_string(),
        };
        format!("{tid} {became} (worker {worker} is gone)\n")
    }

    /// `None` if somebody else was quicker.
    fn of(taken: &Reclaimed) -> Option<Self> {
        let (state, run_at) = match taken.verdict {
            Verdict::Done(state) => (state, None),
            Verdict::Again(at) => (State::Created, Some(at)),
            Verdict::Stale => return None,
        };
        Some(Self { tid: taken.fence.tid, attempt: taken.fence.attempt, worker: taken.fence.owner, state, run_at })
    }
}
