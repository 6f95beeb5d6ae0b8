//! Derives the workers, and the time of the next lookup, from answers. Pure.
//!
//! A server that cannot answer removes no workers. An *empty* answer counts when it was given
//! [`EMPTY_CONFIRMATIONS`] times in a row, a moment apart: a server that has just started may not
//! know its records yet, and two seconds are a small price for not losing all workers. A different
//! answer counts at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use raddle_model::ExponentialBackoff;

use super::lookup::{DnsLookup, DnsTarget};

/// Number of empty answers in a row until they count.
const EMPTY_CONFIRMATIONS: u32 = 3;
/// Pause between lookups while there are no workers.
const EMPTY_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause after failures.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Largest number of workers.
const MAX_WORKERS: usize = 4096;

/// Bounds on the pause between lookups, which otherwise follows the TTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TtlBounds {
    pub(super) least: Duration,
    pub(super) most: Duration,
}

/// The known workers.
#[derive(Debug, Default)]
pub(super) struct DnsState {
    known: BTreeMap<DnsTarget, Vec<IpAddr>>,
    /// Number of empty answers in a row.
    empty_answers: u32,
    /// Number of failures in a row.
    faults: u32,
}

/// A change that is worth logging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DnsNotice {
    /// The first failure.
    Fault,
    /// The first success after failures.
    Recovered,
    /// The first empty answer, which does not count yet.
    EmptyAnswer,
    /// The empty answer counts: there are no workers any more.
    Gone,
}

impl DnsState {
    /// Applies an answer; `None` for a failure. Returns the pause until the next lookup.
    pub(super) fn apply_lookup(
        &mut self,
        lookup: Option<DnsLookup>,
        bounds: TtlBounds,
    ) -> (Duration, Option<DnsNotice>) {
        let is_whole = lookup
            .as_ref()
            .is_some_and(|lookup| lookup.targets.values().all(Option::is_some));
        let had_faults = self.faults > 0;
        self.faults = if is_whole {
            0
        } else {
            self.faults.saturating_add(1)
        };
        let notice = match (had_faults, is_whole) {
            (false, false) => Some(DnsNotice::Fault),
            (true, true) => Some(DnsNotice::Recovered),
            _ => None,
        };
        let Some(lookup) = lookup else {
            return (self.backoff(bounds), notice);
        };
        let ttl = Duration::from_secs(lookup.ttl.into()).clamp(bounds.least, bounds.most);
        let now = self.merged(lookup);
        if now.values().all(Vec::is_empty) {
            if self.known.is_empty() {
                return (EMPTY_PAUSE.clamp(bounds.least, bounds.most), notice);
            }
            self.empty_answers += 1;
            if self.empty_answers < EMPTY_CONFIRMATIONS {
                return (
                    bounds.least,
                    (self.empty_answers == 1)
                        .then_some(DnsNotice::EmptyAnswer)
                        .or(notice),
                );
            }
            (self.known, self.empty_answers) = (BTreeMap::new(), 0);
            return (
                EMPTY_PAUSE.clamp(bounds.least, bounds.most),
                Some(DnsNotice::Gone),
            );
        }
        (self.known, self.empty_answers) = (now, 0);
        (
            if is_whole {
                ttl
            } else {
                ttl.min(self.backoff(bounds))
            },
            notice,
        )
    }

    /// The answer, completed by the known addresses of targets whose lookup failed.
    fn merged(&self, lookup: DnsLookup) -> BTreeMap<DnsTarget, Vec<IpAddr>> {
        let targets = lookup.targets.into_iter();
        let merged = targets.map(|(target, addresses)| {
            let addresses = addresses.or_else(|| self.known.get(&target).cloned());
            (target, addresses.unwrap_or_default())
        });
        merged.collect()
    }

    fn backoff(&self, bounds: TtlBounds) -> Duration {
        ExponentialBackoff::new(bounds.least, MAX_PAUSE)
            .pause(self.faults)
            .max(bounds.least)
    }

    /// The addresses of the known workers.
    pub(super) fn addresses(&self) -> BTreeSet<SocketAddr> {
        let all = self
            .known
            .iter()
            .flat_map(|((_, port), ips)| ips.iter().map(|ip| SocketAddr::new(*ip, *port)));
        let all: BTreeSet<_> = all.collect();
        all.into_iter().take(MAX_WORKERS).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: TtlBounds = TtlBounds {
        least: Duration::from_secs(1),
        most: Duration::from_secs(60),
    };

    fn target(name: u8) -> DnsTarget {
        (format!("t{name}").parse().unwrap(), 70)
    }

    fn lookup(ttl: u32, places: &[(u8, Option<&[u8]>)]) -> DnsLookup {
        let address = |last: &u8| IpAddr::from([10, 0, 0, *last]);
        let targets = places.iter().map(|(name, ips)| {
            (
                target(*name),
                ips.map(|ips| ips.iter().map(address).collect()),
            )
        });
        DnsLookup {
            targets: targets.collect(),
            ttl,
            error: None,
        }
    }

    fn shown(state: &DnsState) -> Vec<u8> {
        let last = |address: &SocketAddr| match address.ip() {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(_) => 0,
        };
        state.addresses().iter().map(last).collect()
    }

    #[test]
    fn pause_follows_the_ttl_within_bounds() {
        let mut state = DnsState::default();
        for (ttl, pause) in [(0, 1), (7, 7), (3600, 60)] {
            assert_eq!(
                state.apply_lookup(Some(lookup(ttl, &[(1, Some(&[1, 2]))])), BOUNDS),
                (Duration::from_secs(pause), None)
            );
            assert_eq!(shown(&state), [1, 2]);
        }
        state.apply_lookup(Some(lookup(7, &[(1, Some(&[2, 3]))])), BOUNDS);
        assert_eq!(shown(&state), [2, 3]);
        // One address under two names.
        state.apply_lookup(
            Some(lookup(7, &[(1, Some(&[2])), (2, Some(&[2, 4]))])),
            BOUNDS,
        );
        assert_eq!(shown(&state), [2, 4]);
    }

    #[test]
    fn failures_remove_no_workers() {
        let mut state = DnsState::default();
        state.apply_lookup(Some(lookup(7, &[(1, Some(&[1])), (2, Some(&[2]))])), BOUNDS);
        for (pause, notice) in [
            (1, Some(DnsNotice::Fault)),
            (2, None),
            (4, None),
            (8, None),
            (16, None),
            (30, None),
            (30, None),
        ] {
            assert_eq!(
                state.apply_lookup(None, BOUNDS),
                (Duration::from_secs(pause), notice)
            );
            assert_eq!(shown(&state), [1, 2]);
        }
        // The lookup of one target fails.
        assert_eq!(
            state.apply_lookup(Some(lookup(7, &[(1, Some(&[3])), (2, None)])), BOUNDS),
            (Duration::from_secs(7), None)
        );
        assert_eq!(shown(&state), [2, 3]);
        let (pause, notice) =
            state.apply_lookup(Some(lookup(7, &[(1, Some(&[3])), (2, Some(&[]))])), BOUNDS);
        assert_eq!(
            (pause, notice),
            (Duration::from_secs(7), Some(DnsNotice::Recovered))
        );
        assert_eq!(shown(&state), [3]);
        // The lookup of a new target fails.
        state.apply_lookup(Some(lookup(7, &[(1, Some(&[3])), (5, None)])), BOUNDS);
        assert_eq!(shown(&state), [3]);
    }

    #[test]
    fn empty_answer_counts_the_third_time() {
        let mut state = DnsState::default();
        let empty = || Some(lookup(300, &[]));
        assert_eq!(
            state.apply_lookup(empty(), BOUNDS),
            (EMPTY_PAUSE, None),
            "there were no workers before"
        );
        state.apply_lookup(Some(lookup(7, &[(1, Some(&[1]))])), BOUNDS);
        assert_eq!(
            state.apply_lookup(empty(), BOUNDS),
            (BOUNDS.least, Some(DnsNotice::EmptyAnswer))
        );
        assert_eq!(
            state.apply_lookup(None, BOUNDS).1,
            Some(DnsNotice::Fault),
            "a failure is not an empty answer"
        );
        assert_eq!(
            state.apply_lookup(empty(), BOUNDS),
            (BOUNDS.least, Some(DnsNotice::Recovered))
        );
        assert_eq!(shown(&state), [1]);
        assert_eq!(
            state.apply_lookup(Some(lookup(7, &[(1, Some(&[]))])), BOUNDS),
            (EMPTY_PAUSE, Some(DnsNotice::Gone))
        );
        assert_eq!(shown(&state), [0; 0]);
        assert_eq!(state.apply_lookup(empty(), BOUNDS), (EMPTY_PAUSE, None));
        // The count starts over when there are workers in between.
        for answer in [&[1][..], &[], &[], &[1], &[], &[]] {
            state.apply_lookup(Some(lookup(7, &[(1, Some(answer))])), BOUNDS);
            assert_eq!(shown(&state), [1]);
        }
    }

    proptest! {
        #[test]
        fn pause_is_within_bounds(answers in prop::collection::vec(prop::option::of((any::<u32>(), 0..3_usize)), 0..50)) {
            let mut state = DnsState::default();
            for answer in answers {
                let look = answer.map(|(ttl, count)| lookup(ttl, &[(1, Some(&[1, 2, 3][..count]))]));
                let (pause, _) = state.apply_lookup(look, BOUNDS);
                prop_assert!((BOUNDS.least..=BOUNDS.most).contains(&pause));
            }
        }
    }
}
