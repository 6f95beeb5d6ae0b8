//! Whether a worker that there is no link to can be reached, and who waits to find out.
//!
//! Whoever needs a link has it opened, by a task that is nobody's: it goes on when those who wait do not. A worker that refuses, or that nobody serves
//! any more, says so at once, and whoever comes next asks again. One that says nothing is another matter: its machine may be gone, or the
//! way to it, and to find out takes seconds. So it is tried again and again, for as long as anybody might want it; and whoever
//! has another worker to ask does not wait for that.

use std::{io, sync::Arc, time::Duration};

use tokio::sync::watch;
use tonic::Code;

use super::{link::LinkEnd, transport::Transport};
use crate::RpcError;

/// A worker that takes longer than this to answer may be gone. Those who have somebody else to ask do so.
pub(super) const SLOW: Duration = Duration::from_secs(1);
/// How long to wait before a worker that said nothing is tried again.
pub(super) const AGAIN: Duration = Duration::from_millis(250);

/// What is known of the way.
#[derive(Default)]
pub(super) struct ConnectState(watch::Sender<ReachState>);

#[derive(Default)]
struct ReachState {
    /// The last that there was.
    transport: Option<Arc<Transport>>,
    /// How many attempts are over.
    attempts: u64,
    /// Somebody is at it.
    is_tried: bool,
    /// It says nothing.
    is_silent: bool,
    /// What has become of the last attempt, if nothing.
    error: Option<RpcError>,
}

/// How long somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectWait {
    /// There are others to ask.
    Briefly,
    /// There is nobody else.
    ForIt,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectDecision {
    /// Nobody is at it: whoever hears this is to try.
    pub(super) is_mine: bool,
    /// How many attempts were over.
    attempts: u64,
}

impl ConnectState {
    /// The way, if it is open.
    pub(super) fn known(&self) -> Option<Arc<Transport>> {
        self.0.borrow().known()
    }

    /// A call wants a link.
    pub(super) fn ask(&self) -> ConnectDecision {
        let mut asked = ConnectDecision {
            is_mine: false,
            attempts: 0,
        };
        self.0.send_modify(|state| {
            // Another call may have opened one meanwhile. A second would take its place, and end it with all that runs over it.
            let is_mine = !state.is_tried && state.known().is_none();
            asked = ConnectDecision {
                is_mine,
                attempts: state.attempts,
            };
            if is_mine {
                let is_cut = state
                    .transport
                    .as_ref()
                    .is_some_and(|last| last.lost() == Some(LinkEnd::Cut));
                state.is_tried = true;
                state.is_silent = is_cut;
                state.error = is_cut.then(silent);
            }
        });
        asked
    }

    /// Waits until there is a way, or the attempt has come to something that was under way when it was asked for, or until there is no use in waiting.
    pub(super) async fn wait(
        &self,
        asked: ConnectDecision,
        wait: ConnectWait,
    ) -> Result<Arc<Transport>, RpcError> {
        let mut state = self.0.subscribe();
        let is_enough = |state: &ReachState| {
            let is_over = state.attempts > asked.attempts || state.known().is_some();
            is_over || wait == ConnectWait::Briefly && state.is_silent
        };
        // It may have come and gone; and who tells is part of this.
        let lost = || RpcError::refused(Code::Unavailable, "the worker is gone");
        let state = state.wait_for(is_enough).await.map_err(|_| lost())?;
        state
            .known()
            .ok_or_else(|| state.error.clone().unwrap_or_else(lost))
    }

    /// Whether nothing is heard from there.
    pub(super) fn says_nothing(&self) -> bool {
        self.0.borrow().is_silent
    }

    /// An attempt takes long.
    pub(super) fn is_slow(&self) {
        self.0.send_modify(|state| {
            state.is_silent = true;
            state.error.get_or_insert_with(silent);
        });
    }

    /// There is a link.
    pub(super) fn reached(&self, transport: Arc<Transport>) {
        let transport = Some(transport);
        self.0.send_modify(|state| {
            *state = ReachState {
                transport,
                attempts: state.attempts + 1,
                ..ReachState::default()
            }
        });
    }

    /// The attempt under way, if there is one, was dropped.
    pub(super) fn give_up(&self, why: RpcError) {
        self.0.send_if_modified(|state| {
            let was_tried = state.is_tried;
            if was_tried {
                *state = ReachState {
                    attempts: state.attempts + 1,
                    error: Some(why),
                    ..ReachState::default()
                };
            }
            was_tried
        });
    }

    /// There is none. Returns whether it is tried again.
    pub(super) fn failed(&self, error: &io::Error, told: RpcError) -> bool {
        let is_silent = is_silence(error);
        self.0.send_modify(|state| {
            let attempts = state.attempts + 1;
            *state = ReachState {
                attempts,
                is_tried: is_silent,
                is_silent,
                error: Some(told),
                transport: None,
            };
        });
        is_silent
    }
}

impl ReachState {
    fn known(&self) -> Option<Arc<Transport>> {
        self.transport
            .as_ref()
            .filter(|transport| transport.lost().is_none())
            .cloned()
    }
}

fn silent() -> RpcError {
    RpcError::refused(
        Code::Unavailable,
        "the worker cannot be reached: it says nothing",
    )
}

/// Whether an error means that nobody has said anything. All others are somebody's answer.
fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
    matches!(
        error.kind(),
        TimedOut | HostUnreachable | NetworkUnreachable | NetworkDown
    )
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use futures_util::FutureExt;

    use super::{
        super::{target::ConnectTarget, transport::GrpcTransport},
        *,
    };

    /// A transport that is open, or that was given up because its worker's machine is silent.
    fn way(is_cut: bool) -> Arc<Transport> {
        let client = ConnectTarget::new("127.0.0.1:1", None).unwrap().client();
        let lost = if is_cut {
            LinkEnd::Cut.into()
        } else {
            OnceLock::new()
        };
        Arc::new(Transport::Grpc(GrpcTransport {
            client,
            lost: Arc::new(lost),
        }))
    }

    fn is_told(
        reach: &ConnectState,
        asked: ConnectDecision,
        wait: ConnectWait,
        error: &RpcError,
    ) -> bool {
        reach
            .wait(asked, wait)
            .now_or_never()
            .is_some_and(|heard| heard.err().as_ref() == Some(error))
    }

    fn error(kind: io::ErrorKind) -> (io::Error, RpcError) {
        (
            kind.into(),
            RpcError::refused(Code::Unavailable, kind.to_string()),
        )
    }

    #[tokio::test]
    async fn one_tries_and_all_who_wait_hear_of_it() {
        let reach = ConnectState::default();
        let (first, second) = (reach.ask(), reach.ask());
        assert!(first.is_mine && !second.is_mine);
        assert!(
            reach
                .wait(second, ConnectWait::Briefly)
                .now_or_never()
                .is_none()
        );
        let (refused, told) = error(io::ErrorKind::ConnectionRefused);
        assert!(!reach.failed(&refused, told.clone()), "it has answered");
        for asked in [first, second] {
            assert!(is_told(&reach, asked, ConnectWait::ForIt, &told));
        }
        let third = reach.ask();
        assert!(third.is_mine, "whoever comes later tries again");
        assert!(
            reach
                .wait(third, ConnectWait::Briefly)
                .now_or_never()
                .is_none(),
            "and waits for it"
        );
        reach.reached(way(false));
        assert!(
            reach
                .wait(third, ConnectWait::Briefly)
                .now_or_never()
                .is_some_and(|reached| reached.is_ok())
        );
    }

    #[tokio::test]
    async fn nobody_waits_for_silence_who_has_somebody_else_to_ask() {
        let reach = ConnectState::default();
        let asked = reach.ask();
        reach.is_slow();
        assert!(is_told(&reach, asked, ConnectWait::Briefly, &silent()));
        assert!(
            reach
                .wait(asked, ConnectWait::ForIt)
                .now_or_never()
                .is_none()
        );
        let (late, told) = error(io::ErrorKind::TimedOut);
        assert!(reach.failed(&late, told.clone()), "it is tried again");
        assert!(is_told(&reach, asked, ConnectWait::ForIt, &told));
        let later = reach.ask();
        assert!(!later.is_mine);
        assert!(is_told(&reach, later, ConnectWait::Briefly, &told));
        assert!(
            reach
                .wait(later, ConnectWait::ForIt)
                .now_or_never()
                .is_none(),
            "the next attempt may succeed"
        );
        reach.reached(way(false));
        assert!(
            reach
                .wait(later, ConnectWait::ForIt)
                .now_or_never()
                .is_some_and(|reached| reached.is_ok())
        );
        assert!(!reach.ask().is_mine, "there is one");
    }

    #[tokio::test]
    async fn after_a_cut_it_is_silent_from_the_beginning() {
        let reach = ConnectState::default();
        reach.reached(way(true));
        let asked = reach.ask();
        assert!(asked.is_mine);
        assert!(is_told(&reach, asked, ConnectWait::Briefly, &silent()));
    }
}
