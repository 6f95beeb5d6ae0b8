//! Seeing to it that nothing is left on this machine of an attempt whose worker is gone, before the next begins.

use std::{
    collections::{HashMap, HashSet},
    thread,
    time::Duration,
};

use raddle_broker::{AttemptId, Broker, Reclaimed, Result};
use raddle_model::Tid;
use tokio::{sync::oneshot, time::timeout};

/// How long the broker may take to say what became of earlier attempts. Without an answer they are looked for.
const ASKING: Duration = Duration::from_secs(1);
/// How long a look may take. It reads what belongs to all processes of the machine, of which one may stand still in the system.
const LOOKING: Duration = Duration::from_secs(5);

/// Ends what is left of attempts that came before this one, if any of them has not come to an end that was told.
pub async fn kill_orphans_of_earlier_attempts(broker: &dyn Broker, attempt_id: AttemptId) {
    if attempt_id.attempt == 1 {
        return;
    }
    let task = timeout(ASKING, broker.task(attempt_id.tid)).await;
    // The runner of an attempt that has failed was there to its end.
    if !matches!(task, Ok(Ok(Some(task))) if task.failures + 1 >= attempt_id.attempt) {
        end(HashMap::from([(attempt_id.tid, attempt_id.attempt - 1)])).await;
    }
}

/// Ends what is left of attempts that were taken from workers which are gone.
pub async fn kill_orphans_of_reclaimed(taken: &[Reclaimed]) {
    if !taken.is_empty() {
        end(attempts(taken)).await;
    }
}

/// Ends what is left on this machine of tasks of this broker that have come to an end, or to a later attempt. For who has not seen what was taken from the
/// dead: it may have been taken by somebody who had no time for more.
pub async fn kill_orphans_of_broker(broker: &dyn Broker) -> Result<()> {
    let mut stale = HashMap::new();
    for (tid, attempt) in look_for_forsaken().await {
        // One that is unknown is another broker's.
        let Some(task) = broker.task(tid).await? else {
            continue;
        };
        if !task.state.is_active() || task.attempt > attempt {
            let last = stale.entry(tid).or_insert(attempt);
            *last = attempt.max(*last);
        }
    }
    if !stale.is_empty() {
        end(stale).await;
    }
    Ok(())
}

async fn look_for_forsaken() -> HashSet<(Tid, u32)> {
    timeout(
        LOOKING,
        on_thread(raddle_runner::orphan_processes::orphaned_attempts),
    )
    .await
    .ok()
    .and_then(Result::ok)
    .unwrap_or_default()
}

/// The same as for the dead, beside whatever this thread has to do: it must not wait for it.
pub fn kill_orphans_of_reclaimed_in_background(taken: &[Reclaimed]) {
    if !taken.is_empty() {
        drop(end_on_thread(attempts(taken)));
    }
}

fn attempts(taken: &[Reclaimed]) -> HashMap<Tid, u32> {
    taken
        .iter()
        .map(|taken| (taken.attempt_id.tid, taken.attempt_id.attempt))
        .collect()
}

async fn end(stale: HashMap<Tid, u32>) {
    if timeout(LOOKING, end_on_thread(stale)).await.is_err() {
        tracing::warn!("what is left of earlier attempts could not be looked for in time");
    }
}

fn end_on_thread(stale: HashMap<Tid, u32>) -> oneshot::Receiver<()> {
    on_thread(move || {
        let ended = raddle_runner::orphan_processes::kill_orphans(&stale);
        if ended > 0 {
            tracing::warn!(
                processes = ended,
                "ended what was left of attempts whose worker is gone"
            );
        }
    })
}

/// Does something on a thread of its own, which may stand still for longer than this process lives. Where no thread can be had it is done here: an attempt
/// must not begin beside processes of an earlier one.
fn on_thread<T: Send + 'static>(
    work: impl Fn() -> T + Clone + Send + 'static,
) -> oneshot::Receiver<T> {
    let (tell, told) = oneshot::channel();
    let here = work.clone();
    let started = thread::Builder::new()
        .name("leftovers".into())
        .spawn(move || drop(tell.send(work())));
    if let Err(error) = started {
        tracing::warn!(%error, "no thread to look for processes of earlier attempts on");
        let (tell, told) = oneshot::channel();
        drop(tell.send(here()));
        return told;
    }
    told
}
