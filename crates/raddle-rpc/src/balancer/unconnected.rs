//! Workers without a connection, once one of them was silent: they wait until all connected ones
//! were tried, and are then connected to concurrently.
//!
//! Discovery may list forged or outdated addresses. Detecting that an address is silent takes a
//! second, and there may be a thousand of them: trying one by one would never reach the workers
//! that exist.

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::Instant;

use super::Endpoint;
use crate::{
    RpcError,
    connection::{ChannelState, ConnectWait},
};

/// Concurrent connection attempts: each takes a socket.
const MAX_CONCURRENT: usize = 64;

/// By index, whether a worker has no connection. Empty while every worker responds.
#[derive(Debug, Default)]
pub(super) struct Unconnected(pub(super) Vec<bool>);

/// Workers that could not be connected to, by index.
type ConnectFailures = Vec<(usize, RpcError)>;

impl Unconnected {
    /// A worker is silent: from now on, connected workers come first.
    pub(super) fn start_tracking(&mut self, workers: &[Endpoint]) {
        if self.0.is_empty() {
            self.0 = workers
                .iter()
                .map(|worker| worker.factory.channel_state() != ChannelState::Open)
                .collect();
        }
    }

    /// Connects to some of the workers, until one is connected, which is a candidate from then on.
    /// Returns the workers that failed; `None` if no worker was left.
    pub(super) async fn connect_any(
        &mut self,
        workers: &[Endpoint],
        tried: &mut Vec<usize>,
    ) -> Option<ConnectFailures> {
        let pending = (0..self.0.len()).filter(|index| self.0[*index] && !tried.contains(index));
        let pending: Vec<_> = pending.take(MAX_CONCURRENT + 1).collect();
        if pending.is_empty() {
            return None;
        }
        // Detecting that a machine is gone takes time; do not spend it while there are other
        // workers.
        let wait = if pending.len() > MAX_CONCURRENT {
            ConnectWait::Briefly
        } else {
            ConnectWait::UntilDone
        };
        let attempts = pending.into_iter().take(MAX_CONCURRENT);
        let mut attempts: FuturesUnordered<_> = attempts
            .map(
                |index| async move { (index, workers[index].factory.ensure_connected(wait).await) },
            )
            .collect();
        let mut failures = ConnectFailures::new();
        while let Some((index, outcome)) = attempts.next().await {
            let Err(error) = outcome else {
                self.0[index] = false;
                break;
            };
            workers[index]
                .health
                .begin_call(Instant::now(), None)
                .record_outcome(Some(&error));
            tried.push(index);
            failures.push((index, error));
        }
        Some(failures)
    }
}
