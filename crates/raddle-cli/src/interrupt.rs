//! Ctrl-C and its like, as something that can be waited for.

use std::time::Duration;

use raddle_fabric::Shutdown;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::timeout,
};

use crate::error::{OrFail, Outcome};

/// The signals that ask a command to end.
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    /// Absent under `nohup`, which wants it to be ignored.
    hangup: Option<Signal>,
    /// Absent in the background of a shell without job control, which has it ignored.
    quit: Option<Signal>,
}

/// What such a signal says, to those who tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The user at a terminal wants it to end: SIGINT, SIGQUIT, and SIGHUP when the terminal is gone.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Interrupts {
    /// From now on these signals no longer end the process.
    pub(crate) fn catch() -> Outcome<Self> {
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen_unless_ignored(SignalKind::hangup())?,
            quit: listen_unless_ignored(SignalKind::quit())?,
        })
    }

    /// Waits for the next of them.
    pub(crate) async fn next(&mut self) {
        self.word().await;
    }

    /// Waits until something has started. If it is to stop before that, it has a moment left to start; `None` if that is not enough.
    pub(crate) async fn start<T>(&mut self, shutdown: &Shutdown, starting: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(starting);
        tokio::select! {
            biased;
            started = &mut starting => return Some(started),
            () = self.next() => shutdown.request(),
            () = shutdown.asked(1) => {}
        }
        timeout(START_WITHIN, starting).await.ok()
    }

    /// Waits for the next of them, and says which it is.
    pub(crate) async fn word(&mut self) -> Word {
        tokio::select! {
            _ = self.interrupt.recv() => Word::Interrupt,
            _ = self.terminate.recv() => Word::Terminate,
            _ = if_any(self.hangup.as_mut().map(Signal::recv)) => Word::Interrupt,
            _ = if_any(self.quit.as_mut().map(Signal::recv)) => Word::Interrupt,
        }
    }
}

/// How long a start that is interrupted may take to come to its end. One that waits for space does not.
const START_WITHIN: Duration = Duration::from_secs(1);

/// Ctrl-Z. Absent where it is ignored.
pub(crate) struct Suspensions(Option<Signal>);

impl Suspensions {
    /// From now on this signal no longer stops the process.
    pub(crate) fn catch() -> Outcome<Self> {
        listen_unless_ignored(SignalKind::from_raw(raddle_exec::SUSPEND)).map(Self)
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        if_any(self.0.as_mut().map(Signal::recv)).await;
    }
}

fn listen(kind: SignalKind) -> Outcome<Signal> {
    signal(kind).or_raddle_at("cannot listen for signals")
}

fn listen_unless_ignored(kind: SignalKind) -> Outcome<Option<Signal>> {
    if raddle_exec::is_ignored(kind.as_raw_value()) { Ok(None) } else { listen(kind).map(Some) }
}

/// What comes of a future; where there is none, waits for ever.
pub(crate) async fn if_any<T>(future: Option<impl Future<Output = T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
