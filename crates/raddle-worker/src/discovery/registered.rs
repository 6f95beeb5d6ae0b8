//! A worker that is in the registry for as long as this is there.

use std::{io, sync::Arc, time::Duration};

use raddle_broker::{Broker, Result};
use raddle_model::{Tid, worker::WorkerInfo};
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{registration::WorkerLease, worker::lease_renewal::RenewerThread};

/// How long it is there without a sign of life. As long as a worker that takes tasks.
const LEASE: Duration = Duration::from_secs(3);
/// How long to pause before it is entered again, if it could not be.
const AGAIN: Duration = Duration::from_secs(1);
/// How long whoever publishes a worker waits until it is there. It is called all the same, and entered when that can be done.
const FIRST: Duration = Duration::from_secs(5);
/// How long leaving may take. After that the lease sees to it.
const LEAVE: Duration = Duration::from_secs(2);

/// A worker that is in the registry for as long as this is there. Who drops it has it leave in the background.
#[derive(Debug)]
pub(super) struct RegisteredWorker {
    stop: oneshot::Sender<()>,
    keeping: JoinHandle<()>,
}

impl RegisteredWorker {
    /// Has a worker entered, and its lease renewed. The future says what has come of that at first, and need not be waited for.
    pub(super) fn start(
        broker: Arc<dyn Broker>,
        info: WorkerInfo,
    ) -> (Self, impl Future<Output = io::Result<()>>) {
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        // Ends when it is told to, and takes out what it has entered.
        let keeping = tokio::spawn(keep(broker, info, tell, stopped));
        let first = async {
            match timeout(FIRST, told).await {
                Ok(Ok(outcome)) => outcome.map_err(io::Error::other),
                _ => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the broker does not answer; it is asked again",
                )),
            }
        };
        (Self { stop, keeping }, first)
    }

    /// Leaves, and waits for that.
    pub(super) async fn leave(self) {
        let Self { stop, keeping } = self;
        drop(stop);
        let _ = keeping.await;
    }
}

/// Enters the worker, again and again if it has to be, until it is told to stop.
async fn keep(
    broker: Arc<dyn Broker>,
    info: WorkerInfo,
    tell: oneshot::Sender<Result<()>>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut tell = Some(tell);
    loop {
        let entered = tokio::select! {
            entered = enter(&broker, &info) => entered,
            _ = &mut stopped => return,
        };
        let pause = match entered {
            Ok((tid, beats)) => {
                if let Some(tell) = tell.take() {
                    let _ = tell.send(Ok(()));
                }
                tokio::select! {
                    () = beats.lost() => tracing::warn!(entry = %tid, "a worker that takes calls is entered anew: its lease was lost"),
                    _ = &mut stopped => {
                        // Before it is taken out, so that no beat finds it gone.
                        drop(beats);
                        return leave(&*broker, tid).await;
                    }
                }
                Duration::ZERO
            }
            Err(error) => {
                match tell.take() {
                    Some(tell) => drop(tell.send(Err(error))),
                    None => {
                        tracing::debug!(%error, "a worker that takes calls is not in the registry yet")
                    }
                }
                AGAIN
            }
        };
        tokio::select! {
            () = sleep(pause) => {}
            _ = &mut stopped => return,
        }
    }
}

/// Enters the worker, as one that is no task: it claims none, and nobody speaks to it through the broker.
async fn enter(broker: &Arc<dyn Broker>, info: &WorkerInfo) -> Result<(Tid, RenewerThread)> {
    let lease = WorkerLease::prepare(LEASE)?;
    let tid = broker.register_ephemeral(info.clone(), LEASE).await?;
    Ok((
        tid,
        RenewerThread::start(broker.lease_renewer(tid, LEASE), lease, Arc::default())?,
    ))
}

async fn leave(broker: &dyn Broker, tid: Tid) {
    match timeout(LEAVE, broker.deregister(tid, None)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(entry = %tid, %error, "a worker stays in the registry until its lease is over")
        }
        Err(_) => {
            tracing::warn!(entry = %tid, "a worker stays in the registry until its lease is over: no answer")
        }
    }
}
