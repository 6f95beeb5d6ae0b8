//! Whether a worker that there is no link to can be reached, and who waits to find out.
//!
//! Whoever needs a link has it opened, by a task that is nobody's: it goes on when those who wait do not. A worker that refuses, or that nobody serves
//! any more, says so at once, and whoever comes next asks again. One that says nothing is another matter: its machine may be gone, or the
//! way to it, and to find out takes seconds. So it is tried again and again, for as long as anybody might want it; and whoever
//! has another worker to ask does not wait for that.

use std::{io, time::Duration};

use tokio::sync::watch;
use tonic::Code;

use crate::RpcError;

/// A worker that takes longer than this to answer may be gone. Those who have somebody else to ask do so.
pub(super) const SLOW: Duration = Duration::from_secs(1);
/// How long to wait before a worker that said nothing is tried again.
pub(super) const AGAIN: Duration = Duration::from_millis(250);

/// What is known of the way.
#[derive(Debug, Default)]
pub(super) struct Reach(watch::Sender<State>);

#[derive(Clone, Debug, Default)]
struct State {
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
pub(crate) enum Wait {
    /// There are others to ask.
    Briefly,
    /// There is nobody else.
    ForIt,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// Nobody is at it: whoever hears this is to try.
    pub(super) is_mine: bool,
    /// How many attempts were over.
    attempts: u64,
}

impl Reach {
    /// Somebody wants a link. `is_cut` says that the one there was has broken because nothing was heard any more.
    pub(super) fn ask(&self, is_cut: bool) -> Asked {
        let mut asked = Asked { is_mine: false, attempts: 0 };
        self.0.send_modify(|state| {
            asked = Asked { is_mine: !state.is_tried, attempts: state.attempts };
            if asked.is_mine {
                state.is_tried = true;
                state.is_silent = is_cut;
                state.error = is_cut.then(silent);
            }
        });
        asked
    }

    /// Waits until the attempt has come to something that was under way when it was asked for, or until there is no use in waiting.
    pub(super) async fn wait(&self, asked: Asked, wait: Wait) -> Option<RpcError> {
        let mut state = self.0.subscribe();
        let is_enough = |state: &State| state.attempts > asked.attempts || wait == Wait::Briefly && state.is_silent;
        // Who tells is part of this.
        state.wait_for(is_enough).await.ok().and_then(|state| state.error.clone())
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
    pub(super) fn reached(&self) {
        self.0.send_modify(|state| *state = State { attempts: state.attempts + 1, ..State::default() });
    }

    /// The attempt under way, if there is one, was dropped.
    pub(super) fn give_up(&self, why: RpcError) {
        self.0.send_if_modified(|state| {
            let was_tried = state.is_tried;
            if was_tried {
                *state = State { attempts: state.attempts + 1, error: Some(why), ..State::default() };
            }
            was_tried
        });
    }

    /// There is none. Returns whether it is tried again.
    pub(super) fn failed(&self, error: &io::Error, told: RpcError) -> bool {
        let is_silent = is_silence(error);
        self.0.send_modify(|state| {
            let attempts = state.attempts + 1;
            *state = State { attempts, is_tried: is_silent, is_silent, error: Some(told) };
        });
        is_silent
    }
}

fn silent() -> RpcError {
    RpcError::refused(Code::Unavailable, "the worker cannot be reached: it says nothing")
}

/// Whether an error means that nobody has said anything. All others are somebody's answer.
fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
    matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable | NetworkDown)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn error(kind: io::ErrorKind) -> (io::Error, RpcError) {
        (kind.into(), RpcError::refused(Code::Unavailable, kind.to_string()))
    }

    #[test]
    fn one_tries_and_all_who_wait_hear_of_it() {
        let reach = Reach::default();
        let (first, second) = (reach.ask(false), reach.ask(false));
        assert!(first.is_mine && !second.is_mine);
        assert!(reach.wait(second, Wait::Briefly).now_or_never().is_none());
        let (refused, told) = error(io::ErrorKind::ConnectionRefused);
        assert!(!reach.failed(&refused, told.clone()), "it has answered");
        for asked in [first, second] {
            assert_eq!(reach.wait(asked, Wait::ForIt).now_or_never(), Some(Some(told.clone())));
        }
        let third = reach.ask(false);
        assert!(third.is_mine, "whoever comes later tries again");
        assert!(reach.wait(third, Wait::Briefly).now_or_never().is_none(), "and waits for it");
        reach.reached();
        assert_eq!(reach.wait(third, Wait::Briefly).now_or_never(), Some(None));
    }

    #[test]
    fn nobody_waits_for_silence_who_has_somebody_else_to_ask() {
        let reach = Reach::default();
        let asked = reach.ask(false);
        reach.is_slow();
        assert!(reach.wait(asked, Wait::Briefly).now_or_never().flatten().is_some());
        assert!(reach.wait(asked, Wait::ForIt).now_or_never().is_none());
        let (late, told) = error(io::ErrorKind::TimedOut);
        assert!(reach.failed(&late, told.clone()), "it is tried again");
        assert_eq!(reach.wait(asked, Wait::ForIt).now_or_never(), Some(Some(told.clone())));
        let later = reach.ask(false);
        assert!(!later.is_mine);
        assert_eq!(reach.wait(later, Wait::Briefly).now_or_never(), Some(Some(told)));
        assert!(reach.wait(later, Wait::ForIt).now_or_never().is_none(), "the next attempt may succeed");
        reach.reached();
        assert_eq!(reach.wait(later, Wait::ForIt).now_or_never(), Some(None));
        assert!(reach.ask(false).is_mine);
    }

    #[test]
    fn after_a_cut_it_is_silent_from_the_beginning() {
        let reach = Reach::default();
        let asked = reach.ask(true);
        assert!(asked.is_mine);
        assert!(reach.wait(asked, Wait::Briefly).now_or_never().flatten().is_some());
    }
}
