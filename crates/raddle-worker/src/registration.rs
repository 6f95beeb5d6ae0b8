//! The registration of a worker or manager: its id, its lease and its control commands.

use std::{io, sync::Arc, time::Duration};

use raddle_broker::{Broker, ControlDelivery, Error, LeaseStatus, Result, WorkerTask};
use raddle_model::{
    Tid, WorkerEntry,
    worker::{Heartbeat, WorkerInfo, WorkerStatus},
};
use raddle_runner::LeaseDeadlinePage;
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    Shutdown, wait_for_space,
    worker::{
        control_commands::receive_commands,
        is_local,
        lease_renewal::{RenewerThread, WorkerStats},
    },
};

/// Default lease of workers, managers and pool workers. A dead one is replaced within seconds. A
/// slow one is not: it renews four times per lease.
pub const LEASE: Duration = Duration::from_secs(3);
/// Pause after a broker error.
const ERROR_PAUSE: Duration = Duration::from_millis(500);
/// How long deregistering may take.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether a manager runs. One that was killed on this machine stays registered until its lease
/// expires, but has no process.
pub fn is_running(entry: &WorkerEntry) -> bool {
    let info = &entry.info;
    let is_same_process = |born| info.born.is_none_or(|then| then == born);
    !is_local(info) || raddle_runner::process_start_time(info.pid).is_some_and(is_same_process)
}

/// Whether a manager runs and is not draining.
pub fn is_staying(entry: &WorkerEntry) -> bool {
    entry.status != WorkerStatus::Draining && is_running(entry)
}

/// A lease, and the page where runners read when it ends.
#[derive(Clone)]
pub struct WorkerLease {
    /// Its length.
    pub length: Duration,
    /// When it was requested, on the monotonic clock. The broker granted it no earlier.
    pub requested_at: u64,
    /// When runners must consider it expired.
    pub deadline: Arc<LeaseDeadlinePage>,
}

impl WorkerLease {
    /// Prepares a lease request. The page is created first: a process that has no descriptor for it
    /// must not own a task.
    pub fn prepare(length: Duration) -> Result<Self> {
        let page = |error: io::Error| Error::Starved {
            what: "shared memory".into(),
            reason: error.to_string(),
        };
        let deadline = Arc::new(LeaseDeadlinePage::new().map_err(page)?);
        Ok(Self {
            length,
            requested_at: LeaseDeadlinePage::clock_now(),
            deadline,
        })
    }

    /// Tells runners that the lease was granted or renewed, no earlier than at `requested_at`.
    pub fn extend_from(&self, requested_at: u64) {
        self.deadline
            .extend_to(requested_at + self.length.as_nanos() as u64);
    }

    /// Renews the lease if the broker took long to grant it. Otherwise runners would consider it
    /// expired early, and kill their attempts.
    async fn renew_if_late(&mut self, broker: &dyn Broker, tid: Tid) {
        let now = LeaseDeadlinePage::clock_now();
        if u128::from(now - self.requested_at) < self.length.as_nanos() / 4 {
            return;
        }
        let mut renewer = broker.lease_renewer(tid, self.length);
        // The renewer thread handles all other answers.
        if let Ok(Ok(LeaseStatus::Alive(_))) =
            tokio::task::spawn_blocking(move || renewer.renew(Heartbeat::default())).await
        {
            self.requested_at = now;
        }
    }
}

/// The registration of a worker or manager.
pub struct Registration {
    /// The id.
    pub tid: Tid,
    /// The lease.
    pub lease: WorkerLease,
    /// Control commands, to the worker and to its tasks.
    pub commands: mpsc::UnboundedReceiver<ControlDelivery>,
    listener: JoinHandle<()>,
    /// The thread that renews the lease.
    pub renewer: RenewerThread,
    /// The values that heartbeats report.
    pub stats: Arc<WorkerStats>,
    /// The lease is lost: others may have its tasks.
    pub lost: bool,
}

impl Registration {
    /// Registers a worker, and starts to renew its lease. Waits while the broker has no space.
    pub async fn register(
        broker: &Arc<dyn Broker>,
        info: WorkerInfo,
        lease: Duration,
        task: WorkerTask,
    ) -> Result<Self> {
        let register = || {
            let (broker, info) = (Arc::clone(broker), info.clone());
            async move {
                let lease = WorkerLease::prepare(lease)?;
                let tid = broker.register_worker(info, lease.length, task).await?;
                Ok((tid, lease))
            }
        };
        let (tid, lease) = wait_for_space(Error::is_out_of_space, register).await?;
        Self::keep_lease(broker, tid, lease).await
    }

    /// Starts to renew a lease that was granted to `tid`.
    pub async fn keep_lease(
        broker: &Arc<dyn Broker>,
        tid: Tid,
        mut lease: WorkerLease,
    ) -> Result<Self> {
        lease.renew_if_late(&**broker, tid).await;
        let stats = Arc::new(WorkerStats::default());
        let renewer = match RenewerThread::start(
            broker.lease_renewer(tid, lease.length),
            lease.clone(),
            Arc::clone(&stats),
        ) {
            Ok(renewer) => renewer,
            Err(error) => {
                deregister(broker, tid, Some(error.to_string())).await;
                return Err(error);
            }
        };
        let (commands_tx, commands) = mpsc::unbounded_channel();
        let listener = tokio::spawn(receive_commands(Arc::clone(broker), tid, commands_tx));
        Ok(Self {
            tid,
            lease,
            commands,
            listener,
            renewer,
            stats,
            lost: false,
        })
    }

    /// Registers again after the lease was lost, unless a stop is requested first. The id is new
    /// with [`WorkerTask::New`]. The cause may last: a missing agent is waited for as long as
    /// `patience`.
    pub async fn register_again(
        broker: &Arc<dyn Broker>,
        info: &WorkerInfo,
        lease: Duration,
        task: WorkerTask,
        patience: Duration,
        shutdown: &Shutdown,
    ) -> Result<Option<Self>> {
        let since = Instant::now();
        loop {
            let result = tokio::select! {
                result = Self::register(broker, info.clone(), lease, task) => result,
                () = shutdown.requested(1) => return Ok(None),
            };
            match result {
                // The engine has already retried for as long as its URL says.
                Err(error @ Error::Unreachable { .. }) => return Err(error),
                Err(error @ Error::AgentGone { .. }) if since.elapsed() >= patience => {
                    return Err(error);
                }
                Err(error) if error.is_retryable() => {
                    tracing::error!(%error, "cannot register again yet: retrying");
                    sleep(ERROR_PAUSE).await;
                }
                result => return result.map(Some),
            }
        }
    }
}

/// Deregisters a manager. If the broker does not answer, its lease expires.
pub async fn deregister(broker: &Arc<dyn Broker>, tid: Tid, failure: Option<String>) {
    if timeout(DEREGISTER_TIMEOUT, broker.deregister(tid, failure))
        .await
        .is_err()
    {
        tracing::warn!("could not deregister, the broker does not answer: the lease will expire");
    }
}

impl Registration {
    /// Stops receiving control commands.
    pub fn close(&self) {
        self.listener.abort();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::worker::this_host;

    #[test]
    fn a_missing_pid_proves_nothing_about_another_pid_namespace() {
        let manager_at = |place: Option<&str>| {
            let info = WorkerInfo {
                pid: u32::MAX,
                host: this_host(),
                place: place.map(Into::into),
                ..WorkerInfo::new("worker-prime", "prime")
            };
            let tid = Tid::from_u64(1_700_000_000_000_000_000).unwrap();
            WorkerEntry::new(tid, info, Heartbeat::default(), Timestamp::UNIX_EPOCH)
        };
        assert!(
            !is_running(&manager_at(raddle_runner::pid_scope())) && !is_running(&manager_at(None)),
            "it was killed on this machine"
        );
        assert!(
            is_running(&manager_at(Some("a container"))),
            "only its lease can tell"
        );
    }
}
