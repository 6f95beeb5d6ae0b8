//! Seeing to it that nothing is left on this machine of an attempt whose worker is gone, before the next begins.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    thread,
    time::Duration,
};

use raddle_broker::{Broker, Fence, Reclaimed, Result};
use raddle_core::Tid;
use tokio::{sync::oneshot, time::timeout};

/// How long the broker may take to say what became of earlier attempts. Without an answer they are looked for.
const ASKING: Duration = Duration::from_secs(1);
/// How long a look may take. It reads what belongs to all processes of the machine, of which one may stand still in the system.
const LOOKING: Duration = Duration::from_secs(5);

/// Ends what is left of attempts that came before this one, if any of them has not come to an end that was told.
pub(crate) async fn of_earlier_attempts(broker: &dyn Broker, fence: Fence) {
    if fence.attempt == 1 {
        return;
    }
    let task = timeout(ASKING, broker.task(fence.tid)).await;
    // The runner of an attempt that has failed was there to its end.
    if !matches!(task, Ok(Ok(Some(task))) if task.failures + 1 >= fence.attempt) {
        end(HashMap::from([(fence.tid, fence.attempt - 1)])).await;
    }
}

/// Ends what is left of attempts that were taken from workers which are gone.
pub async fn of_the_dead(taken: &[Reclaimed]) {
    if !taken.is_empty() {
        end(attempts(taken)).await;
    }
}

/// Ends what is left on this machine of tasks of this broker that have come to an end, or to a later attempt. For who has not seen what was taken from the
/// dead: it may have been taken by somebody who had no time for more.
pub async fn of_anybody(broker: &dyn Broker) -> Result<()> {
    let mut stale = HashMap::new();
    for (tid, attempt) in look_for_forsaken().await {
        // One that is unknown is another broker's.
        let Some(task) = broker.task(tid).await? else { continue };
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
    let (tell, told) = oneshot::channel();
    let looks = move || drop(tell.send(raddle_exec::leftovers::forsaken()));
    // Without a thread for it somebody else will.
    let started = thread::Builder::new().name("leftovers".into()).spawn(looks);
    let found = async { if started.is_ok() { told.await.unwrap_or_default() } else { HashSet::new() } };
    timeout(LOOKING, found).await.unwrap_or_default()
}

/// The same as for the dead, beside whatever this thread has to do: it must not wait for it.
pub(crate) fn of_the_dead_meanwhile(taken: &[Reclaimed]) {
    if !taken.is_empty() {
        drop(look_beside(attempts(taken)));
    }
}

fn attempts(taken: &[Reclaimed]) -> HashMap<Tid, u32> {
    taken.iter().map(|taken| (taken.fence.tid, taken.fence.attempt)).collect()
}

async fn end(stale: HashMap<Tid, u32>) {
    if timeout(LOOKING, look_beside(stale)).await.is_err() {
        tracing::warn!("what is left of earlier attempts could not be looked for in time");
    }
}

/// Looks on a thread of its own, and says when it has.
fn look_beside(stale: HashMap<Tid, u32>) -> oneshot::Receiver<()> {
    let (tell, told) = oneshot::channel();
    let stale = Arc::new(stale);
    let beside = Arc::clone(&stale);
    let looks = move || {
        look(&beside);
        let _ = tell.send(());
    };
    // Without a thread for it everything else waits, and no more.
    if thread::Builder::new().name("leftovers".into()).spawn(looks).is_err() {
        look(&stale);
    }
    told
}

fn look(stale: &HashMap<Tid, u32>) {
    let ended = raddle_exec::leftovers::end(stale);
    if ended > 0 {
        tracing::warn!(processes = ended, "ended what was left of attempts whose worker is gone");
    }
}
