//! What hangs on a spawner's id: its lease, and the words that are sent to it.

use std::{io, sync::Arc, time::Duration};

use raddle_broker::{Broker, Delivery, Error, Result};
use raddle_core::Tid;
use raddle_exec::FencePage;
use tokio::{sync::mpsc, task::JoinHandle};

use crate::worker::{
    pulse::{Beats, Vitals},
    words::listen,
};

pub(super) struct Line {
    pub(super) tid: Tid,
    pub(super) words: mpsc::UnboundedReceiver<Delivery>,
    listener: JoinHandle<()>,
    pub(super) pulse: Beats,
    pub(super) vitals: Arc<Vitals>,
    /// Others may take it for gone.
    pub(super) lost: bool,
}

impl Line {
    /// For a spawner whose lease began at `leased_at`.
    pub(super) fn new(broker: &Arc<dyn Broker>, lease: Duration, tid: Tid, leased_at: u64) -> Result<Self> {
        let page = |error: io::Error| Error::Starved { what: "shared memory".into(), reason: error.to_string() };
        let vitals = Arc::new(Vitals::default());
        let fence = Arc::new(FencePage::new().map_err(page)?);
        let pulse = Beats::new(broker.heart(tid, lease), lease, leased_at, fence, Arc::clone(&vitals));
        let (say, words) = mpsc::unbounded_channel();
        let listener = tokio::spawn(listen(Arc::clone(broker), tid, say));
        Ok(Self { tid, words, listener, pulse, vitals, lost: false })
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.listener.abort();
    }
}
