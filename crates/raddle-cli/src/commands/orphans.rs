//! `raddle requeue-orphans`: reclaims the tasks of workers that are gone, as live workers do with
//! every renewal.

use raddle_broker::{CompletionOutcome, Reclaimed};
use raddle_client::orphan_processes;
use raddle_model::{TaskState, Tid};
use serde::Serialize;

use crate::{context::Context, error::Outcome, format};

/// A reclaimed task.
#[derive(Serialize)]
struct Orphan {
    tid: Tid,
    /// The attempt that was lost.
    attempt: u32,
    /// The worker that had it.
    worker: Tid,
    /// The state of the task now: `created` if it waits for another attempt.
    state: TaskState,
    /// When the next attempt may begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<jiff::Timestamp>,
}

pub(super) async fn requeue(context: &Context) -> Outcome {
    let broker = context.open_read_only().await?;
    let taken = broker.reclaim().await?;
    // Also processes of tasks that another process has reclaimed.
    orphan_processes::kill_orphans_of_broker(&*broker).await?;
    let orphans: Vec<Orphan> = taken.iter().filter_map(Orphan::of).collect();
    if orphans.is_empty() && !context.json {
        context.note("no task belongs to a worker that is gone");
    }
    context.show(&orphans, || orphans.iter().map(Orphan::text).collect())
}

impl Orphan {
    fn text(&self) -> String {
        let Self {
            tid,
            worker,
            state,
            run_at,
            ..
        } = self;
        let became = match run_at {
            Some(at) if *at > jiff::Timestamp::now() => {
                format!("requeued, not before {}", format::time(*at))
            }
            Some(_) => "requeued".to_owned(),
            None => state.to_string(),
        };
        format!("{tid} {became} (worker {worker} is gone)\n")
    }

    /// `None` if another process was faster.
    fn of(taken: &Reclaimed) -> Option<Self> {
        let (state, run_at) = match taken.outcome {
            CompletionOutcome::Done(state) => (state, None),
            CompletionOutcome::Again(at) => (TaskState::Created, Some(at)),
            CompletionOutcome::Stale => return None,
        };
        Some(Self {
            tid: taken.attempt_id.tid,
            attempt: taken.attempt_id.attempt,
            worker: taken.attempt_id.owner,
            state,
            run_at,
        })
    }
}
