//! Workers that there is no way to yet, when one has said nothing: they wait until all others were asked, and are then tried at once.
//!
//! What a discovery tells may be made up, or long gone: where nobody answers, it takes a second to find that out, and there may be a thousand such places.
//! Whoever asked them one by one would never come to those that are there.

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::Instant;

use super::Endpoint;
use crate::{
    RpcError,
    connection::{ChannelState, ConnectWait},
};

/// So many are tried at once: each takes a socket.
const AT_ONCE: usize = 64;

/// Those that there is no way to, by place. Nobody, as long as all have said something.
#[derive(Debug, Default)]
pub(super) struct Unconnected(pub(super) Vec<bool>);

/// Those that could not be reached, by place, and why.
type ConnectFailures = Vec<(usize, RpcError)>;

impl Unconnected {
    /// One has said nothing. From here on those come first that there is a way to.
    pub(super) fn begin(&mut self, workers: &[Endpoint]) {
        if self.0.is_empty() {
            self.0 = workers
                .iter()
                .map(|worker| worker.factory.channel_state() != ChannelState::Open)
                .collect();
        }
    }

    /// Tries some of them, until there is a way to one: it waits no longer then. Returns those that were tried in vain; `None` if nobody was left.
    pub(super) async fn meet(
        &mut self,
        workers: &[Endpoint],
        asked: &mut Vec<usize>,
    ) -> Option<ConnectFailures> {
        let places = (0..self.0.len()).filter(|place| self.0[*place] && !asked.contains(place));
        let places: Vec<_> = places.take(AT_ONCE + 1).collect();
        if places.is_empty() {
            return None;
        }
        // To find out that a machine is gone takes time, which whoever has others to ask need not have.
        let wait = if places.len() > AT_ONCE {
            ConnectWait::Briefly
        } else {
            ConnectWait::UntilDone
        };
        let tries = places.into_iter().take(AT_ONCE);
        let mut tries: FuturesUnordered<_> = tries
            .map(
                |place| async move { (place, workers[place].factory.ensure_connected(wait).await) },
            )
            .collect();
        let mut unreached = ConnectFailures::new();
        while let Some((place, outcome)) = tries.next().await {
            let Err(error) = outcome else {
                self.0[place] = false;
                break;
            };
            workers[place]
                .standing
                .ask(Instant::now(), None)
                .hear(Some(&error));
            asked.push(place);
            unreached.push((place, error));
        }
        Some(unreached)
    }
}
