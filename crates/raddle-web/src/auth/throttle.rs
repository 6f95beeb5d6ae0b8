//! Counts wrong tokens by address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The wrong tokens that an address may send in a minute.
const WRONG_A_MINUTE: u32 = 10;
const MINUTE: Duration = Duration::from_secs(60);
/// The most addresses that are remembered. Beyond that, all others count as one.
const MAX_ADDRESSES: usize = 1024;

/// Counts wrong tokens by address.
#[derive(Default)]
pub(crate) struct Throttle(Mutex<HashMap<Option<IpAddr>, (Instant, u32)>>);

impl Throttle {
    /// Counts a wrong token. Returns whether there were too many in this minute.
    pub(crate) fn count_wrong(&self, from: Option<IpAddr>, now: Instant) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MAX_ADDRESSES {
            counts.retain(|_, (since, _)| now - *since < MINUTE);
        }
        let is_full = counts.len() >= MAX_ADDRESSES && !counts.contains_key(&from);
        let (since, count) = counts
            .entry(if is_full { None } else { from })
            .or_insert((now, 0));
        if now - *since >= MINUTE {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count > WRONG_A_MINUTE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_wrong_tokens_a_minute_are_too_many() {
        let (throttle, begun) = (Throttle::default(), Instant::now());
        let wrong = |at| throttle.count_wrong(None, begun + Duration::from_secs(at));
        assert!((0..10).all(|second| !wrong(second)));
        assert!(wrong(10) && wrong(59));
        assert!(!wrong(61), "another minute");
        let other = Some(IpAddr::from([127, 0, 0, 1]));
        assert!(!throttle.count_wrong(other, begun), "another address");
    }
}
