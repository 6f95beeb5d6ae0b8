//! What hangs on a manager's id: its lease, and the words that are sent to it. Managers are tasks, and all of them hang on such a line.

use std::{io, sync::Arc, time::Duration};

use raddle_broker::{Broker, Delivery, Error, Result};
use raddle_core::{
    Tid, WorkerEntry,
    worker::{WorkerInfo, WorkerStatus},
};
use raddle_exec::FencePage;
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    Shutdown,
    worker::{
        is_local,
        pulse::{Beats, Vitals},
        words::listen,
    },
};

/// How long others wait after a manager's last sign of life before they take it for gone.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
/// After an error of the broker, before the next try.
const ERROR_PAUSE: Duration = Duration::from_millis(500);
/// How long leaving the registry may take.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// Whether a manager is there: not one that was killed here, and is listed until its lease has run out.
pub(crate) fn is_there(entry: &WorkerEntry) -> bool {
    let info = &entry.info;
    let is_the_same = |born| info.born.is_none_or(|then| then == born);
    !is_local(info) || raddle_exec::born(info.pid).is_some_and(is_the_same)
}

/// Whether a manager is there, and is not leaving.
pub(crate) fn stays(entry: &WorkerEntry) -> bool {
    entry.status != WorkerStatus::Draining && is_there(entry)
}

pub(crate) struct Line {
    pub(crate) tid: Tid,
    pub(crate) words: mpsc::UnboundedReceiver<Delivery>,
    listener: JoinHandle<()>,
    pub(crate) pulse: Beats,
    pub(crate) vitals: Arc<Vitals>,
    /// Others may take it for gone.
    pub(crate) lost: bool,
}

impl Line {
    /// For a manager whose lease began at `leased_at`.
    pub(crate) fn new(broker: &Arc<dyn Broker>, lease: Duration, tid: Tid, leased_at: u64) -> Result<Self> {
        let page = |error: io::Error| Error::Starved { what: "shared memory".into(), reason: error.to_string() };
        let vitals = Arc::new(Vitals::default());
        let fence = Arc::new(FencePage::new().map_err(page)?);
        let pulse = Beats::new(broker.heart(tid, lease), lease, leased_at, fence, Arc::clone(&vitals));
        let (say, words) = mpsc::unbounded_channel();
        let listener = tokio::spawn(listen(Arc::clone(broker), tid, say));
        Ok(Self { tid, words, listener, pulse, vitals, lost: false })
    }

    /// Registers a manager whose lease was lost under a new id, unless it is asked to stop before.
    pub(crate) async fn anew(
        broker: &Arc<dyn Broker>,
        info: &WorkerInfo,
        lease: Duration,
        shutdown: &Shutdown,
    ) -> Result<Option<Self>> {
        loop {
            let leased_at = FencePage::clock_now();
            let anew = tokio::select! {
                anew = broker.register(info.clone(), lease) => anew,
                () = shutdown.asked(1) => return Ok(None),
            };
            match anew {
                Ok(tid) => return Self::new(broker, lease, tid, leased_at).map(Some),
                Err(error @ Error::Unreachable { .. }) => return Err(error),
                Err(error) if error.is_retryable() => {
                    tracing::error!(%error, "cannot register anew yet");
                    sleep(ERROR_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Takes a manager out of the registry. One that nobody hears is taken for gone when its lease has run out.
pub(crate) async fn leave(broker: &Arc<dyn Broker>, tid: Tid, failure: Option<String>) {
    if timeout(LEAVE_WITHIN, broker.deregister(tid, failure)).await.is_err() {
        tracing::warn!("left without a word, for the broker does not answer: the lease will run out");
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use raddle_core::worker::Beat;

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
            WorkerEntry::new(tid, info, Beat::default(), Timestamp::UNIX_EPOCH)
        };
        assert!(!is_there(&nobody(raddle_exec::place())) && !is_there(&nobody(None)), "it was killed here");
        assert!(is_there(&nobody(Some("a container"))), "its lease has to tell");
    }
}
