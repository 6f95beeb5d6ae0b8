//! Taking back what belongs to workers that are gone.

use std::time::Duration;

use raddle_core::{
    Tid,
    departure::{self, Behind},
};

use super::{
    apply::{Applied, apply, snapshots},
    change::{Draft, Snapshot},
    link::{Link, Sure},
    record::Place,
    script,
    value::{arg, tids},
};
use crate::{Fence, Reclaimed, Result, Verdict};

/// Between the moment a worker's own runners give up and the moment others take over, so that no task runs twice at once.
pub(super) const TAKEOVER_MARGIN: Duration = Duration::from_millis(250);

/// Why a worker is left without its tasks.
pub(super) enum Leaving {
    /// Its lease has run out.
    Gone,
    /// It leaves in good order, or says what went wrong.
    Left(Option<String>),
}

/// Takes back the tasks of every worker whose lease has run out.
pub(super) async fn reclaim(link: &Link) -> Result<Vec<Reclaimed>> {
    let gone: Vec<String> = link.look(&script::GONE, vec![arg(TAKEOVER_MARGIN.as_millis())]).await?;
    let mut reclaimed = Vec::new();
    for worker in tids(gone) {
        reclaimed.extend(take_from(link, worker, &Leaving::Gone).await?);
    }
    Ok(reclaimed)
}

/// Takes every task from a worker, and then takes the worker out of the registry.
pub(super) async fn take_from(link: &Link, worker: Tid, why: &Leaving) -> Result<Vec<Reclaimed>> {
    let mut reclaimed = Vec::new();
    loop {
        let held = held_by(link, worker).await?;
        if !held.is_empty() {
            let tasks = snapshots(link, &held).await?;
            let tasks: Vec<&Snapshot> = held.iter().filter_map(|tid| tasks.get(tid)).collect();
            let owned: Vec<_> = tasks.into_iter().filter(|task| task.record.owner == Some(worker)).collect();
            let (mut drafts, mut verdicts) = (Vec::new(), Vec::new());
            for task in &owned {
                let mut draft = Draft::new(task);
                let verdict = decide(task, &mut draft, worker, why);
                let fence = Fence { tid: task.tid, attempt: task.record.tally.attempt, owner: worker };
                verdicts.push(Reclaimed { fence, verdict });
                drafts.push(draft);
            }
            let applied = apply(link, &drafts, Sure::Done).await?;
            if applied.contains(&Applied::Alive) {
                return Ok(reclaimed);
            }
            reclaimed.extend(verdicts.into_iter().zip(applied).filter(|(_, a)| *a == Applied::Made).map(|(r, _)| r));
            continue;
        }
        let Some(task) = snapshots(link, &[worker]).await?.remove(&worker) else {
            let margin = match why {
                Leaving::Gone => arg(TAKEOVER_MARGIN.as_millis()),
                Leaving::Left(_) => Vec::new(),
            };
            let () = link.change(&script::DISMISS, vec![arg(worker), margin], Sure::Done).await?;
            return Ok(reclaimed);
        };
        if task.done.is_some() || !task.is_service() {
            return Ok(reclaimed);
        }
        let mut draft = Draft::new(&task);
        let exit = match why {
            Leaving::Gone => {
                draft.gone = Some(worker);
                departure::gone(worker)
            }
            Leaving::Left(failure) => departure::left(failure.clone()),
        };
        draft.finish(departure::state_of_worker(&exit), false, task.report(exit), None);
        match apply(link, &[draft], Sure::Done).await?[..] {
            [Applied::Changed] => {}
            _ => return Ok(reclaimed),
        }
    }
}

fn decide(task: &Snapshot, draft: &mut Draft<'_>, worker: Tid, why: &Leaving) -> Verdict {
    match why {
        Leaving::Left(_) => {
            let (kind, reason) = departure::given_back_by(worker);
            draft.give_back(kind, reason)
        }
        Leaving::Gone => {
            draft.gone = Some(worker);
            let has_begun = task.record.place == Place::Running;
            match departure::taken_from(worker, has_begun, task.record.tally.attempt) {
                Behind::Ended(exit) => draft.settle(task.report(exit)),
                Behind::Back(kind, reason) => draft.give_back(kind, reason),
            }
        }
    }
}

/// The tasks that a worker has, the newest first.
pub(super) async fn held_by(link: &Link, worker: Tid) -> Result<Vec<Tid>> {
    let mut command = redis::cmd("ZRANGEBYLEX");
    command.arg(link.keys.of("owned")).arg(format!("[{worker}:")).arg(format!("({worker};"));
    let held: Vec<String> = link.read(&command).await?;
    Ok(held.iter().rev().filter_map(|member| member.split_once(':')?.1.parse().ok()).collect())
}
