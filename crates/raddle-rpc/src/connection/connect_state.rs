//! Shared state of connecting to a worker: at most one attempt at a time, whose outcome all waiting
//! calls share.
//!
//! A background task makes the attempt, so it continues when the calls that wait for it are
//! dropped. A worker that refuses, or whose socket is gone, answers at once, and the next call
//! tries again. Silence is different: the machine or the route may be gone, which takes seconds to
//! find out. So the task retries for as long as the channel exists, and calls that have another
//! worker do not wait for it.

use std::{io, sync::Arc, time::Duration};

use tokio::sync::watch;
use tonic::Code;

use super::{link::LinkEnd, transport::Transport};
use crate::RpcError;

/// A worker that has not answered within this time may be gone; calls with other workers move on.
pub(super) const SLOW: Duration = Duration::from_secs(1);
/// Pause before a silent worker is tried again.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Shared state of connecting to a worker.
#[derive(Default)]
pub(super) struct ConnectState(watch::Sender<ConnectStatus>);

#[derive(Default)]
struct ConnectStatus {
    /// The last transport.
    transport: Option<Arc<Transport>>,
    /// Number of finished attempts.
    attempts: u64,
    /// An attempt is under way.
    is_connecting: bool,
    /// The worker does not respond.
    is_silent: bool,
    /// The error of the last attempt, if it failed.
    error: Option<RpcError>,
}

/// How long a call waits for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectWait {
    /// Not for a silent worker: there are others.
    Briefly,
    /// Until the attempt ends: there is no other worker.
    UntilDone,
}

/// A call's place in the current attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectTicket {
    /// No attempt is under way: the holder has to start one.
    pub(super) starts_attempt: bool,
    /// Number of finished attempts when the ticket was taken.
    attempts: u64,
}

impl ConnectState {
    /// The transport, if it is open.
    pub(super) fn open_transport(&self) -> Option<Arc<Transport>> {
        self.0.borrow().open_transport()
    }

    /// Joins the attempt under way, or makes the caller start one.
    pub(super) fn join_attempt(&self) -> ConnectTicket {
        let mut ticket = ConnectTicket {
            starts_attempt: false,
            attempts: 0,
        };
        self.0.send_modify(|state| {
            // Another call may have connected meanwhile. A second transport would replace the
            // first, and end it with all its calls.
            let starts_attempt = !state.is_connecting && state.open_transport().is_none();
            ticket = ConnectTicket {
                starts_attempt,
                attempts: state.attempts,
            };
            if starts_attempt {
                let is_unresponsive = state
                    .transport
                    .as_ref()
                    .is_some_and(|last| last.end() == Some(LinkEnd::Unresponsive));
                state.is_connecting = true;
                state.is_silent = is_unresponsive;
                state.error = is_unresponsive.then(no_response);
            }
        });
        ticket
    }

    /// Waits until there is a transport, until the ticket's attempt has ended, or, for `Briefly`,
    /// until the worker is silent.
    pub(super) async fn wait_for_outcome(
        &self,
        ticket: ConnectTicket,
        wait: ConnectWait,
    ) -> Result<Arc<Transport>, RpcError> {
        let mut state = self.0.subscribe();
        let is_done = |state: &ConnectStatus| {
            let is_over = state.attempts > ticket.attempts || state.open_transport().is_some();
            is_over || wait == ConnectWait::Briefly && state.is_silent
        };
        // The transport may have come and gone. The sender is part of `self`, so the channel cannot
        // close.
        let connection_lost =
            || RpcError::refused(Code::Unavailable, "the connection to the worker was lost");
        let state = state
            .wait_for(is_done)
            .await
            .map_err(|_| connection_lost())?;
        state
            .open_transport()
            .ok_or_else(|| state.error.clone().unwrap_or_else(connection_lost))
    }

    /// Whether the worker does not respond.
    pub(super) fn is_silent(&self) -> bool {
        self.0.borrow().is_silent
    }

    /// Records that the attempt takes longer than `SLOW`.
    pub(super) fn record_slowness(&self) {
        self.0.send_modify(|state| {
            state.is_silent = true;
            state.error.get_or_insert_with(no_response);
        });
    }

    /// Records a successful attempt.
    pub(super) fn record_success(&self, transport: Arc<Transport>) {
        let transport = Some(transport);
        self.0.send_modify(|state| {
            *state = ConnectStatus {
                transport,
                attempts: state.attempts + 1,
                ..ConnectStatus::default()
            }
        });
    }

    /// Records that the attempt under way, if any, was dropped.
    pub(super) fn abandon_attempt(&self, error: RpcError) {
        self.0.send_if_modified(|state| {
            let was_connecting = state.is_connecting;
            if was_connecting {
                *state = ConnectStatus {
                    attempts: state.attempts + 1,
                    error: Some(error),
                    ..ConnectStatus::default()
                };
            }
            was_connecting
        });
    }

    /// Records a failed attempt. Returns whether to retry.
    pub(super) fn record_failure(&self, cause: &io::Error, error: RpcError) -> bool {
        let is_silent = is_silence(cause);
        self.0.send_modify(|state| {
            let attempts = state.attempts + 1;
            *state = ConnectStatus {
                attempts,
                is_connecting: is_silent,
                is_silent,
                error: Some(error),
                transport: None,
            };
        });
        is_silent
    }
}

impl ConnectStatus {
    fn open_transport(&self) -> Option<Arc<Transport>> {
        self.transport
            .as_ref()
            .filter(|transport| transport.end().is_none())
            .cloned()
    }
}

fn no_response() -> RpcError {
    RpcError::refused(Code::Unavailable, "cannot reach the worker: no response")
}

/// Whether the error means that there was no response at all. All others are an answer.
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

    /// A transport that is open, or that was closed because the worker's machine is silent.
    fn transport(is_unresponsive: bool) -> Arc<Transport> {
        let client = ConnectTarget::new("127.0.0.1:1", None).unwrap().client();
        let end = if is_unresponsive {
            LinkEnd::Unresponsive.into()
        } else {
            OnceLock::new()
        };
        Arc::new(Transport::Grpc(GrpcTransport {
            client,
            end: Arc::new(end),
        }))
    }

    fn gets_error(
        state: &ConnectState,
        ticket: ConnectTicket,
        wait: ConnectWait,
        error: &RpcError,
    ) -> bool {
        state
            .wait_for_outcome(ticket, wait)
            .now_or_never()
            .is_some_and(|outcome| outcome.err().as_ref() == Some(error))
    }

    fn failure(kind: io::ErrorKind) -> (io::Error, RpcError) {
        (
            kind.into(),
            RpcError::refused(Code::Unavailable, kind.to_string()),
        )
    }

    #[tokio::test]
    async fn one_attempt_serves_all_waiting_calls() {
        let state = ConnectState::default();
        let (first, second) = (state.join_attempt(), state.join_attempt());
        assert!(first.starts_attempt && !second.starts_attempt);
        assert!(
            state
                .wait_for_outcome(second, ConnectWait::Briefly)
                .now_or_never()
                .is_none()
        );
        let (refused, error) = failure(io::ErrorKind::ConnectionRefused);
        assert!(
            !state.record_failure(&refused, error.clone()),
            "a refusal is an answer"
        );
        for ticket in [first, second] {
            assert!(gets_error(&state, ticket, ConnectWait::UntilDone, &error));
        }
        let third = state.join_attempt();
        assert!(third.starts_attempt, "a later call tries again");
        assert!(
            state
                .wait_for_outcome(third, ConnectWait::Briefly)
                .now_or_never()
                .is_none(),
            "and waits for it"
        );
        state.record_success(transport(false));
        assert!(
            state
                .wait_for_outcome(third, ConnectWait::Briefly)
                .now_or_never()
                .is_some_and(|reached| reached.is_ok())
        );
    }

    #[tokio::test]
    async fn calls_with_other_workers_do_not_wait_for_a_silent_one() {
        let state = ConnectState::default();
        let ticket = state.join_attempt();
        state.record_slowness();
        assert!(gets_error(
            &state,
            ticket,
            ConnectWait::Briefly,
            &no_response()
        ));
        assert!(
            state
                .wait_for_outcome(ticket, ConnectWait::UntilDone)
                .now_or_never()
                .is_none()
        );
        let (late, error) = failure(io::ErrorKind::TimedOut);
        assert!(
            state.record_failure(&late, error.clone()),
            "it is tried again"
        );
        assert!(gets_error(&state, ticket, ConnectWait::UntilDone, &error));
        let later = state.join_attempt();
        assert!(!later.starts_attempt);
        assert!(gets_error(&state, later, ConnectWait::Briefly, &error));
        assert!(
            state
                .wait_for_outcome(later, ConnectWait::UntilDone)
                .now_or_never()
                .is_none(),
            "the next attempt may succeed"
        );
        state.record_success(transport(false));
        assert!(
            state
                .wait_for_outcome(later, ConnectWait::UntilDone)
                .now_or_never()
                .is_some_and(|reached| reached.is_ok())
        );
        assert!(!state.join_attempt().starts_attempt, "a transport is open");
    }

    #[tokio::test]
    async fn is_silent_at_once_after_a_link_became_unresponsive() {
        let state = ConnectState::default();
        state.record_success(transport(true));
        let ticket = state.join_attempt();
        assert!(ticket.starts_attempt);
        assert!(gets_error(
            &state,
            ticket,
            ConnectWait::Briefly,
            &no_response()
        ));
    }
}
