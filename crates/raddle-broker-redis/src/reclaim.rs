//! Reclaim of tasks from lost workers.

use std::time::Duration;

use raddle_model::{
    Tid,
    worker_loss::{self, LostTaskOutcome},
};

use super::{
    apply::{Applied, apply, snapshots},
    change::{Draft, Snapshot},
    connection::{Certainty, ServerConnection},
    record::TaskLocation,
    script,
    value::{arg, tids},
};
use raddle_broker::{AttemptId, CompletionOutcome, Reclaimed, Result};

/// The time between the moment a worker's runners give up and the moment others take over, so that
/// no task runs twice at once.
pub(super) const TAKEOVER_MARGIN: Duration = Duration::from_millis(250);

/// Why tasks are taken from a worker.
pub(super) enum WorkerLossCause {
    /// Its lease has expired.
    Gone,
    /// It leaves normally, or with the reason of its failure.
    Left(Option<String>),
    /// Its process was that of an earlier attempt of the same task, and is gone.
    Restarted,
}

/// Reclaims the tasks of every worker whose lease has expired.
pub(super) async fn reclaim(link: &ServerConnection) -> Result<Vec<Reclaimed>> {
    let gone: Vec<String> = link
        .run_idempotent(
            &script::LOST_WORKERS,
            vec![arg(TAKEOVER_MARGIN.as_millis())],
        )
        .await?;
    let mut reclaimed = Vec::new();
    for worker in tids(gone) {
        reclaimed.extend(take_tasks_from(link, worker, &WorkerLossCause::Gone).await?);
    }
    Ok(reclaimed)
}

/// Takes all tasks from a worker, and then removes it from the registry.
pub(super) async fn take_tasks_from(
    link: &ServerConnection,
    worker: Tid,
    why: &WorkerLossCause,
) -> Result<Vec<Reclaimed>> {
    let mut reclaimed = Vec::new();
    loop {
        let owned = claimed_by(link, worker).await?;
        if !owned.is_empty() {
            let tasks = snapshots(link, &owned).await?;
            let tasks: Vec<&Snapshot> = owned.iter().filter_map(|tid| tasks.get(tid)).collect();
            let owned: Vec<_> = tasks
                .into_iter()
                .filter(|task| task.record.owner == Some(worker))
                .collect();
            let (mut drafts, mut outcomes) = (Vec::new(), Vec::new());
            for task in &owned {
                let mut draft = Draft::new(task);
                let outcome = decide(task, &mut draft, worker, why);
                let attempt_id = AttemptId {
                    tid: task.tid,
                    attempt: task.record.counters.attempt,
                    owner: worker,
                };
                outcomes.push(Reclaimed {
                    attempt_id,
                    outcome,
                });
                drafts.push(draft);
            }
            let applied = apply(link, &drafts, Certainty::Done).await?;
            if applied.contains(&Applied::Alive) {
                return Ok(reclaimed);
            }
            reclaimed.extend(
                outcomes
                    .into_iter()
                    .zip(applied)
                    .filter(|(_, a)| *a == Applied::Made)
                    .map(|(r, _)| r),
            );
            continue;
        }
        let task = snapshots(link, &[worker]).await?.remove(&worker);
        // Ephemeral workers have no task, and that of a spawned manager belongs to its worker.
        let Some(task) = task.filter(Snapshot::is_service) else {
            let margin = match why {
                WorkerLossCause::Gone => arg(TAKEOVER_MARGIN.as_millis()),
                WorkerLossCause::Left(_) => Vec::new(),
                WorkerLossCause::Restarted => return Ok(reclaimed),
            };
            let () = link
                .change(
                    &script::REMOVE_WORKER,
                    vec![arg(worker), margin],
                    Certainty::Done,
                )
                .await?;
            return Ok(reclaimed);
        };
        if task.done.is_some() {
            return Ok(reclaimed);
        }
        let mut draft = Draft::new(&task);
        let exit = match why {
            WorkerLossCause::Gone => {
                draft.lost_owner = Some(worker);
                worker_loss::worker_lost(worker)
            }
            WorkerLossCause::Left(failure) => worker_loss::worker_left(failure.clone()),
            WorkerLossCause::Restarted => return Ok(reclaimed),
        };
        draft.finish(
            worker_loss::state_of_worker(&exit),
            false,
            task.report(exit),
            None,
        );
        match apply(link, &[draft], Certainty::Done).await?[..] {
            [Applied::Changed] => {}
            _ => return Ok(reclaimed),
        }
    }
}

fn decide(
    task: &Snapshot,
    draft: &mut Draft<'_>,
    worker: Tid,
    why: &WorkerLossCause,
) -> CompletionOutcome {
    match why {
        WorkerLossCause::Left(_) => {
            let (kind, reason) = worker_loss::given_back_by(worker);
            draft.give_back(kind, reason)
        }
        WorkerLossCause::Gone | WorkerLossCause::Restarted => {
            if matches!(why, WorkerLossCause::Gone) {
                draft.lost_owner = Some(worker);
            }
            let has_begun = task.record.location == TaskLocation::Running;
            match worker_loss::taken_from(worker, has_begun, task.record.counters.attempt) {
                LostTaskOutcome::Ended(exit) => draft.end_attempt(task.report(exit)),
                LostTaskOutcome::Back(kind, reason) => draft.give_back(kind, reason),
            }
        }
    }
}

/// The tasks that a worker has claimed, newest first.
pub(super) async fn claimed_by(link: &ServerConnection, worker: Tid) -> Result<Vec<Tid>> {
    let mut command = redis::cmd("ZRANGEBYLEX");
    command
        .arg(link.keys.named("owned"))
        .arg(format!("[{worker}:"))
        .arg(format!("({worker};"));
    let owned: Vec<String> = link.read(&command).await?;
    Ok(owned
        .iter()
        .rev()
        .filter_map(|member| member.split_once(':')?.1.parse().ok())
        .collect())
}
