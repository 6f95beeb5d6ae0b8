//! The registration of a worker or manager: its id, its lease, and the control messages that are sent to it.

use std::{io, sync::Arc, time::Duration};

use raddle_broker::{Broker, ControlDelivery, Error, LeaseStatus, Result};
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

/// How long others wait after a manager's last sign of life before they take it for gone.
pub const LEASE: Duration = Duration::from_secs(3);
/// After an error of the broker, before the next try.
const ERROR_PAUSE: Duration = Duration::from_millis(500);
/// How long leaving the registry may take.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether a manager is there: not one that was killed here, and is listed until its lease has run out.
pub fn is_running(entry: &WorkerEntry) -> bool {
    let info = &entry.info;
    let is_the_same = |born| info.born.is_none_or(|then| then == born);
    !is_local(info) || raddle_runner::process_start_time(info.pid).is_some_and(is_the_same)
}

/// Whether a manager is there, and is not leaving.
pub fn is_staying(entry: &WorkerEntry) -> bool {
    entry.status != WorkerStatus::Draining && is_running(entry)
}

/// A lease, and how long runners take it to hold.
#[derive(Clone)]
pub struct WorkerLease {
    /// Its length.
    pub length: Duration,
    /// When it was asked for, on the monotonic clock: the lease began no earlier.
    pub requested_at: u64,
    /// Where runners read how long it holds.
    pub deadline: Arc<LeaseDeadlinePage>,
}

impl WorkerLease {
    /// A lease that is about to be asked for. The page comes first: a process without descriptors for it must not hold a task.
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

    /// Lets runners know that it was granted, or renewed, no earlier than at `requested_at`.
    pub fn extend_from(&self, requested_at: u64) {
        self.deadline
            .extend_to(requested_at + self.length.as_nanos() as u64);
    }

    /// Where the broker took its time to grant it, the lease is renewed. Otherwise runners would take it to be over when it has hardly begun, and
    /// would end all that they are given.
    async fn renew_if_late(&mut self, broker: &dyn Broker, tid: Tid) {
        let now = LeaseDeadlinePage::clock_now();
        if u128::from(now - self.requested_at) < self.length.as_nanos() / 4 {
            return;
        }
        let mut renewer = broker.lease_renewer(tid, self.length);
        // What any other answer means is for the renewer to find out.
        if let Ok(Ok(LeaseStatus::Alive(_))) =
            tokio::task::spawn_blocking(move || renewer.renew(Heartbeat::default())).await
        {
            self.requested_at = now;
        }
    }
}

/// The registration of a worker or manager: its id, its lease, and the control messages to it.
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
    /// What heartbeats report.
    pub stats: Arc<WorkerStats>,
    /// The lease is lost: others may take it for gone.
    pub lost: bool,
}

impl Registration {
    /// Registers a worker, and starts to renew its lease. Waits while the broker has no space.
    pub async fn register(
        broker: &Arc<dyn Broker>,
        info: WorkerInfo,
        lease: Duration,
    ) -> Result<Self> {
        let register = || {
            let (broker, info) = (Arc::clone(broker), info.clone());
            async move {
                let lease = WorkerLease::prepare(lease)?;
                Ok((broker.register(info, lease.length).await?, lease))
            }
        };
        let (tid, lease) = wait_for_space(Error::is_out_of_space, register).await?;
        Self::keep_lease(broker, tid, lease).await
    }

    /// Keeps a lease that was granted to `tid`.
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

    /// Registers one whose lease was lost under a new id, unless it is asked to stop before. What kept the lease from being renewed may still be there:
    /// an agent that is gone is waited for as long as `patience` says.
    pub async fn register_again(
        broker: &Arc<dyn Broker>,
        info: &WorkerInfo,
        lease: Duration,
        patience: Duration,
        shutdown: &Shutdown,
    ) -> Result<Option<Self>> {
        let since = Instant::now();
        loop {
            let result = tokio::select! {
                result = Self::register(broker, info.clone(), lease) => result,
                () = shutdown.requested(1) => return Ok(None),
            };
            match result {
                // The engine has tried for as long as its URL says.
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

/// Takes a manager out of the registry. One that nobody hears is taken for gone when its lease has run out.
pub async fn deregister(broker: &Arc<dyn Broker>, tid: Tid, failure: Option<String>) {
    if timeout(DEREGISTER_TIMEOUT, broker.deregister(tid, failure))
        .await
        .is_err()
    {
        tracing::warn!(
            "left without a word, for the broker does not answer: the lease will run out"
        );
    }
}

impl Registration {
    /// Hears no more control messages.
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
    fn who_is_in_another_place_is_not_missed_by_the_number_of_its_process() {
        let nobody = |place: Option<&str>| {
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
            !is_running(&nobody(raddle_runner::pid_scope())) && !is_running(&nobody(None)),
            "it was killed here"
        );
        assert!(
            is_running(&nobody(Some("a container"))),
            "its lease has to tell"
        );
    }
}
