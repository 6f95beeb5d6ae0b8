//! Ctrl-C and its like, as something that can be waited for.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{Failure, Outcome};

/// The signals that ask a command to end.
pub(super) struct Interrupts {
    signals: [Signal; 3],
}

impl Interrupts {
    /// From now on these signals no longer end the process.
    pub(super) fn catch() -> Outcome<Self> {
        let listen = |kind| signal(kind).map_err(|e| Failure::Raddle(format!("cannot listen for signals: {e}")));
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(listen);
        Ok(Self { signals: [interrupt?, terminate?, hangup?] })
    }

    /// Waits for the next of them.
    pub(super) async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
