//! `RegisteredWorker`: keeps a pool worker in the registry.

use std::{io, sync::Arc, time::Duration};

use raddle_broker::{Broker, Result};
use raddle_model::{Tid, worker::WorkerInfo};
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    registration::{LEASE, WorkerLease},
    worker::lease_renewal::RenewerThread,
};

/// Pause before registering is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long a publisher waits for the first registration. After that it goes on in the background.
const FIRST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long deregistering may take. After that the lease expires.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(2);

/// Keeps a pool worker registered. Dropping it deregisters the worker in the background.
#[derive(Debug)]
pub(super) struct RegisteredWorker {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl RegisteredWorker {
    /// Registers a worker and renews its lease. The future is the outcome of the first try, and
    /// need not be awaited.
    pub(super) fn start(
        broker: Arc<dyn Broker>,
        info: WorkerInfo,
    ) -> (Self, impl Future<Output = io::Result<()>>) {
        let (stop, stopped) = oneshot::channel();
        let (first_result, first_received) = oneshot::channel();
        // Ends when `stop` is dropped, and deregisters.
        let task = tokio::spawn(keep_registered(broker, info, first_result, stopped));
        let first = async {
            match timeout(FIRST_TIMEOUT, first_received).await {
                Ok(Ok(outcome)) => outcome.map_err(io::Error::other),
                _ => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the broker does not answer: retrying",
                )),
            }
        };
        (Self { stop, task }, first)
    }

    /// Deregisters, and waits for it.
    pub(super) async fn deregister(self) {
        let Self { stop, task } = self;
        drop(stop);
        let _ = task.await;
    }
}

/// Registers the worker, again after each lost lease, until it is stopped.
async fn keep_registered(
    broker: Arc<dyn Broker>,
    info: WorkerInfo,
    first_result: oneshot::Sender<Result<()>>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut first_result = Some(first_result);
    loop {
        let registered = tokio::select! {
            registered = register(&broker, &info) => registered,
            _ = &mut stopped => return,
        };
        let pause = match registered {
            Ok((tid, renewer)) => {
                if let Some(first_result) = first_result.take() {
                    let _ = first_result.send(Ok(()));
                }
                tokio::select! {
                    () = renewer.lost() => tracing::warn!(entry = %tid, "registering a pool worker again: its lease was lost"),
                    _ = &mut stopped => {
                        // Stop renewing first, so that no renewal finds the entry gone.
                        drop(renewer);
                        return deregister(&*broker, tid).await;
                    }
                }
                Duration::ZERO
            }
            Err(error) => {
                match first_result.take() {
                    Some(first_result) => drop(first_result.send(Err(error))),
                    None => {
                        tracing::debug!(%error, "a pool worker is not registered yet: retrying")
                    }
                }
                RETRY_PAUSE
            }
        };
        tokio::select! {
            () = sleep(pause) => {}
            _ = &mut stopped => return,
        }
    }
}

/// Registers the worker without a task record: it claims no tasks and receives no commands.
async fn register(broker: &Arc<dyn Broker>, info: &WorkerInfo) -> Result<(Tid, RenewerThread)> {
    let lease = WorkerLease::prepare(LEASE)?;
    let tid = broker.register_ephemeral(info.clone(), LEASE).await?;
    Ok((
        tid,
        RenewerThread::start(broker.lease_renewer(tid, LEASE), lease, Arc::default())?,
    ))
}

async fn deregister(broker: &dyn Broker, tid: Tid) {
    match timeout(DEREGISTER_TIMEOUT, broker.deregister(tid, None)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(entry = %tid, %error, "a pool worker stays registered until its lease expires")
        }
        Err(_) => {
            tracing::warn!(entry = %tid, "a pool worker stays registered until its lease expires: the broker does not answer")
        }
    }
}
