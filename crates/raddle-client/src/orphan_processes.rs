//! Killing processes that attempts of dead workers have left on this machine, before the next
//! attempt starts.

use std::{
    collections::{HashMap, HashSet},
    thread,
    time::Duration,
};

use raddle_broker::{AttemptId, Broker, Reclaimed, Result};
use raddle_model::Tid;
use tokio::{sync::oneshot, time::timeout};

/// Time limit for asking the broker about earlier attempts. Without an answer, search.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);
/// How many events of a task name its earlier workers.
const MAX_EVENTS: u32 = 1000;
/// Time limit for a search. It reads `/proc` of all processes, and one may hang in the kernel.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Kills processes of earlier attempts of a task, unless the broker knows that they all ended.
pub async fn kill_orphans_of_earlier_attempts(broker: &dyn Broker, attempt_id: AttemptId) {
    if attempt_id.attempt == 1 {
        return;
    }
    let task = timeout(QUERY_TIMEOUT, broker.task(attempt_id.tid)).await;
    // The runner of a failed attempt reported its end, so it has killed all its processes.
    if !matches!(task, Ok(Ok(Some(task))) if task.failures + 1 >= attempt_id.attempt) {
        kill_stale(HashMap::from([(attempt_id.tid, attempt_id.attempt - 1)])).await;
    }
}

/// Kills processes of hosts that ran earlier attempts of a task for other workers, unless the broker
/// knows that those attempts all ended.
pub async fn kill_hosts_of_earlier_attempts(broker: &dyn Broker, attempt_id: AttemptId) {
    let AttemptId {
        tid,
        attempt,
        owner,
    } = attempt_id;
    let task = timeout(QUERY_TIMEOUT, broker.task(tid)).await;
    if matches!(task, Ok(Ok(Some(task))) if task.failures + 1 >= attempt) {
        return;
    }
    let events = broker.events(Some(0), Some(tid), MAX_EVENTS, Duration::ZERO);
    let Ok(Ok(events)) = timeout(QUERY_TIMEOUT, events).await else {
        return;
    };
    let workers = events.iter().filter_map(|event| event.worker);
    let stale: HashMap<Tid, u32> = workers
        .filter(|worker| *worker != owner)
        .map(|worker| (worker, 0))
        .collect();
    if !stale.is_empty() {
        kill_stale(stale).await;
    }
}

/// Kills processes of attempts that were reclaimed from dead workers.
pub async fn kill_orphans_of_reclaimed(reclaimed: &[Reclaimed]) {
    if !reclaimed.is_empty() {
        kill_stale(attempts(reclaimed)).await;
    }
}

/// Kills processes on this machine whose task of this broker is finished or has a later attempt.
/// The process that reclaimed the task may have had no time to do it.
pub async fn kill_orphans_of_broker(broker: &dyn Broker) -> Result<()> {
    let mut stale = HashMap::new();
    for (tid, attempt) in find_orphaned_attempts().await {
        // An unknown task belongs to another broker.
        let Some(task) = broker.task(tid).await? else {
            continue;
        };
        if !task.state.is_active() || task.attempt > attempt {
            let last = stale.entry(tid).or_insert(attempt);
            *last = attempt.max(*last);
        }
    }
    if !stale.is_empty() {
        kill_stale(stale).await;
    }
    Ok(())
}

async fn find_orphaned_attempts() -> HashSet<(Tid, u32)> {
    timeout(
        SEARCH_TIMEOUT,
        on_thread(raddle_runner::orphan_processes::orphaned_attempts),
    )
    .await
    .ok()
    .and_then(Result::ok)
    .unwrap_or_default()
}

/// Does the same on another thread, and does not wait for it.
pub fn kill_orphans_of_reclaimed_in_background(reclaimed: &[Reclaimed]) {
    if !reclaimed.is_empty() {
        drop(kill_on_thread(attempts(reclaimed)));
    }
}

/// The attempts, and the hosts of their workers.
fn attempts(reclaimed: &[Reclaimed]) -> HashMap<Tid, u32> {
    let attempts = reclaimed
        .iter()
        .map(|reclaimed| (reclaimed.attempt_id.tid, reclaimed.attempt_id.attempt));
    let hosts = reclaimed
        .iter()
        .map(|reclaimed| (reclaimed.attempt_id.owner, 0));
    attempts.chain(hosts).collect()
}

async fn kill_stale(stale: HashMap<Tid, u32>) {
    if timeout(SEARCH_TIMEOUT, kill_on_thread(stale))
        .await
        .is_err()
    {
        tracing::warn!("the search for processes of earlier attempts timed out");
    }
}

fn kill_on_thread(stale: HashMap<Tid, u32>) -> oneshot::Receiver<()> {
    on_thread(move || {
        let ended = raddle_runner::orphan_processes::kill_orphans(&stale);
        if ended > 0 {
            tracing::warn!(
                processes = ended,
                "killed processes of attempts whose worker is gone"
            );
        }
    })
}

/// Runs a function on its own thread, because it may hang for longer than this process lives. If no
/// thread can be started, the function runs here: an attempt must not start beside processes of an
/// earlier one.
fn on_thread<T: Send + 'static>(
    work: impl Fn() -> T + Clone + Send + 'static,
) -> oneshot::Receiver<T> {
    let (sender, receiver) = oneshot::channel();
    let fallback = work.clone();
    let started = thread::Builder::new()
        .name("orphan-search".into())
        .spawn(move || drop(sender.send(work())));
    if let Err(error) = started {
        tracing::warn!(%error, "no thread for the search for processes of earlier attempts");
        let (sender, receiver) = oneshot::channel();
        drop(sender.send(fallback()));
        return receiver;
    }
    receiver
}
