//! Signals that end or suspend a command, as futures.

use std::time::Duration;

use raddle_worker::Shutdown;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::timeout,
};

use crate::error::{OrFail, Outcome};

/// The signals that ask a command to end.
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    /// `None` under `nohup`, which ignores the signal.
    hangup: Option<Signal>,
    /// `None` in the background of a shell without job control, which ignores the signal.
    quit: Option<Signal>,
}

/// The kind of a signal, for commands that distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterruptSignal {
    /// From the user at a terminal: `SIGINT`, `SIGQUIT`, or `SIGHUP` when the terminal is gone.
    Interrupt,
    /// `SIGTERM`.
    Terminate,
}

impl Interrupts {
    /// Installs the handlers: from now on these signals do not end the process.
    pub(crate) fn install() -> Outcome<Self> {
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen_unless_ignored(SignalKind::hangup())?,
            quit: listen_unless_ignored(SignalKind::quit())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        self.next_kind().await;
    }

    /// Waits until `starting` is done. After a signal it has `START_WITHIN` left. Returns `None` if
    /// it takes longer.
    pub(crate) async fn start_unless_interrupted<T>(
        &mut self,
        shutdown: &Shutdown,
        starting: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::pin!(starting);
        tokio::select! {
            biased;
            started = &mut starting => return Some(started),
            () = self.next() => shutdown.request(),
            () = shutdown.requested(1) => {}
        }
        timeout(START_WITHIN, starting).await.ok()
    }

    /// Waits for the next signal, and returns its kind.
    pub(crate) async fn next_kind(&mut self) -> InterruptSignal {
        tokio::select! {
            _ = self.interrupt.recv() => InterruptSignal::Interrupt,
            _ = self.terminate.recv() => InterruptSignal::Terminate,
            _ = wait_if_some(self.hangup.as_mut().map(Signal::recv)) => InterruptSignal::Interrupt,
            _ = wait_if_some(self.quit.as_mut().map(Signal::recv)) => InterruptSignal::Interrupt,
        }
    }
}

/// How long a start may take after a signal. A start that waits for disk space is abandoned then.
const START_WITHIN: Duration = Duration::from_secs(1);

/// Ctrl-Z (`SIGTSTP`). `None` where the signal is ignored.
pub(crate) struct Suspensions(Option<Signal>);

impl Suspensions {
    /// Installs the handler: from now on this signal does not stop the process.
    pub(crate) fn install() -> Outcome<Self> {
        listen_unless_ignored(SignalKind::from_raw(raddle_runner::SUSPEND)).map(Self)
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        wait_if_some(self.0.as_mut().map(Signal::recv)).await;
    }
}

fn listen(kind: SignalKind) -> Outcome<Signal> {
    signal(kind).or_raddle_at("cannot listen for signals")
}

fn listen_unless_ignored(kind: SignalKind) -> Outcome<Option<Signal>> {
    if raddle_runner::is_ignored(kind.as_raw_value()) {
        Ok(None)
    } else {
        listen(kind).map(Some)
    }
}

/// Awaits the future. Without a future it waits for ever.
pub(crate) async fn wait_if_some<T>(future: Option<impl Future<Output = T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
