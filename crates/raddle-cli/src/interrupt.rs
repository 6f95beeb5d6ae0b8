//! Ctrl-C and its like, as something that can be waited for.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{Failure, Outcome};

/// The signals that ask a command to end.
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    /// Absent under `nohup`, which wants it to be ignored.
    hangup: Option<Signal>,
}

/// What such a signal says, to those who tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Somebody at a terminal wants it to end: SIGINT, and SIGHUP when the terminal is gone.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Interrupts {
    /// From now on these signals no longer end the process.
    pub(crate) fn catch() -> Outcome<Self> {
        let listen = |kind| signal(kind).map_err(|e| Failure::Raddle(format!("cannot listen for signals: {e}")));
        let hangup = (!raddle_exec::is_ignored(SignalKind::hangup().as_raw_value()))
            .then(|| listen(SignalKind::hangup()))
            .transpose()?;
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())?, hangup })
    }

    /// Waits for the next of them.
    pub(crate) async fn next(&mut self) {
        self.word().await;
    }

    /// Waits for the next of them, and says which it is.
    pub(crate) async fn word(&mut self) -> Word {
        let Self { interrupt, terminate, hangup } = self;
        let hung_up = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => Word::Interrupt,
            _ = terminate.recv() => Word::Terminate,
            _ = hung_up => Word::Interrupt,
        }
    }
}

/// Ctrl-Z. Absent where it is ignored.
pub(crate) struct Suspensions(Option<Signal>);

impl Suspensions {
    /// From now on this signal no longer stops the process.
    pub(crate) fn catch() -> Outcome<Self> {
        let kind = SignalKind::from_raw(raddle_exec::SUSPEND);
        let caught = (!raddle_exec::is_ignored(raddle_exec::SUSPEND)).then(|| signal(kind)).transpose();
        caught.map(Self).map_err(|e| Failure::Raddle(format!("cannot listen for signals: {e}")))
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        match &mut self.0 {
            Some(suspend) => _ = suspend.recv().await,
            None => std::future::pending().await,
        }
    }
}
