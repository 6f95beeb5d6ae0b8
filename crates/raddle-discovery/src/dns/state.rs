//! What follows from an answer: who the workers are, and when to ask again. Pure.
//!
//! A server that cannot tell takes nobody away. That there is *nobody* is believed when it was said [`BELIEVED`] times in a row, a moment apart: a
//! server that has just begun may not know of anybody yet, and it is worth two seconds not to lose all workers to it. That there are others
//! is believed at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use raddle_model::ExponentialBackoff;

use super::lookup::{DnsLookup, DnsTarget};

/// So often it has to be said that there is nobody.
const BELIEVED: u32 = 3;
/// How long it takes to ask again where there is nobody.
const NOBODY: Duration = Duration::from_secs(5);
/// The longest pause after servers that could not tell.
const LONGEST: Duration = Duration::from_secs(30);
/// More workers are not taken.
const MOST: usize = 4096;

/// How long an answer holds: what it says itself, within these bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TtlBounds {
    pub(super) least: Duration,
    pub(super) most: Duration,
}

/// Who the workers are.
#[derive(Debug, Default)]
pub(super) struct DnsState {
    known: BTreeMap<DnsTarget, Vec<IpAddr>>,
    /// So often in a row it was said that there is nobody.
    nobody: u32,
    /// So often in a row nobody could tell.
    faults: u32,
}

/// What is worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DnsNotice {
    /// Nobody could tell, for the first time.
    Fault,
    /// Somebody could again.
    Mended,
    /// It is said that there is nobody, and that is not believed yet.
    Doubted,
    /// There is nobody any more.
    Gone,
}

impl DnsState {
    /// Takes an answer in; none if there was none. Returns when to ask again.
    pub(super) fn hear(
        &mut self,
        look: Option<DnsLookup>,
        bounds: TtlBounds,
    ) -> (Duration, Option<DnsNotice>) {
        let is_whole = look
            .as_ref()
            .is_some_and(|look| look.places.values().all(Option::is_some));
        let had_faults = self.faults > 0;
        self.faults = if is_whole {
            0
        } else {
            self.faults.saturating_add(1)
        };
        let about_faults = match (had_faults, is_whole) {
            (false, false) => Some(DnsNotice::Fault),
            (true, true) => Some(DnsNotice::Mended),
            _ => None,
        };
        let Some(look) = look else {
            return (self.backoff(bounds), about_faults);
        };
        let ttl = Duration::from_secs(look.ttl.into()).clamp(bounds.least, bounds.most);
        let now = self.merged(look);
        if now.values().all(Vec::is_empty) {
            if self.known.is_empty() {
                return (NOBODY.clamp(bounds.least, bounds.most), about_faults);
            }
            self.nobody += 1;
            if self.nobody < BELIEVED {
                return (
                    bounds.least,
                    (self.nobody == 1)
                        .then_some(DnsNotice::Doubted)
                        .or(about_faults),
                );
            }
            (self.known, self.nobody) = (BTreeMap::new(), 0);
            return (
                NOBODY.clamp(bounds.least, bounds.most),
                Some(DnsNotice::Gone),
            );
        }
        (self.known, self.nobody) = (now, 0);
        (
            if is_whole {
                ttl
            } else {
                ttl.min(self.backoff(bounds))
            },
            about_faults,
        )
    }

    /// What an answer says, and what was known where it says nothing.
    fn merged(&self, look: DnsLookup) -> BTreeMap<DnsTarget, Vec<IpAddr>> {
        let places = look.places.into_iter();
        let told = places.map(|(target, addresses)| {
            let addresses = addresses.or_else(|| self.known.get(&target).cloned());
            (target, addresses.unwrap_or_default())
        });
        told.collect()
    }

    fn backoff(&self, bounds: TtlBounds) -> Duration {
        ExponentialBackoff::new(bounds.least, LONGEST)
            .pause(self.faults)
            .max(bounds.least)
    }

    /// Where the workers are that are known.
    pub(super) fn places(&self) -> BTreeSet<SocketAddr> {
        let all = self
            .known
            .iter()
            .flat_map(|((_, port), ips)| ips.iter().map(|ip| SocketAddr::new(*ip, *port)));
        let all: BTreeSet<_> = all.collect();
        all.into_iter().take(MOST).collect()
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

    fn look(ttl: u32, places: &[(u8, Option<&[u8]>)]) -> DnsLookup {
        let address = |last: &u8| IpAddr::from([10, 0, 0, *last]);
        let places = places.iter().map(|(name, ips)| {
            (
                target(*name),
                ips.map(|ips| ips.iter().map(address).collect()),
            )
        });
        DnsLookup {
            places: places.collect(),
            ttl,
            doubt: None,
        }
    }

    fn shown(state: &DnsState) -> Vec<u8> {
        let last = |place: &SocketAddr| match place.ip() {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(_) => 0,
        };
        state.places().iter().map(last).collect()
    }

    #[test]
    fn what_is_told_holds_as_long_as_it_says_within_bounds() {
        let mut state = DnsState::default();
        for (ttl, pause) in [(0, 1), (7, 7), (3600, 60)] {
            assert_eq!(
                state.hear(Some(look(ttl, &[(1, Some(&[1, 2]))])), BOUNDS),
                (Duration::from_secs(pause), None)
            );
            assert_eq!(shown(&state), [1, 2]);
        }
        state.hear(Some(look(7, &[(1, Some(&[2, 3]))])), BOUNDS);
        assert_eq!(shown(&state), [2, 3]);
        // By two names.
        state.hear(
            Some(look(7, &[(1, Some(&[2])), (2, Some(&[2, 4]))])),
            BOUNDS,
        );
        assert_eq!(shown(&state), [2, 4]);
    }

    #[test]
    fn who_cannot_tell_takes_nobody_away() {
        let mut state = DnsState::default();
        state.hear(Some(look(7, &[(1, Some(&[1])), (2, Some(&[2]))])), BOUNDS);
        for (pause, remark) in [
            (1, Some(DnsNotice::Fault)),
            (2, None),
            (4, None),
            (8, None),
            (16, None),
            (30, None),
            (30, None),
        ] {
            assert_eq!(
                state.hear(None, BOUNDS),
                (Duration::from_secs(pause), remark)
            );
            assert_eq!(shown(&state), [1, 2]);
        }
        // Of one of them.
        assert_eq!(
            state.hear(Some(look(7, &[(1, Some(&[3])), (2, None)])), BOUNDS),
            (Duration::from_secs(7), None)
        );
        assert_eq!(shown(&state), [2, 3]);
        let (pause, remark) = state.hear(Some(look(7, &[(1, Some(&[3])), (2, Some(&[]))])), BOUNDS);
        assert_eq!(
            (pause, remark),
            (Duration::from_secs(7), Some(DnsNotice::Mended))
        );
        assert_eq!(shown(&state), [3]);
        // One that nobody has ever known.
        state.hear(Some(look(7, &[(1, Some(&[3])), (5, None)])), BOUNDS);
        assert_eq!(shown(&state), [3]);
    }

    #[test]
    fn that_there_is_nobody_is_believed_the_third_time() {
        let mut state = DnsState::default();
        let nobody = || Some(look(300, &[]));
        assert_eq!(
            state.hear(nobody(), BOUNDS),
            (NOBODY, None),
            "there never was"
        );
        state.hear(Some(look(7, &[(1, Some(&[1]))])), BOUNDS);
        assert_eq!(
            state.hear(nobody(), BOUNDS),
            (BOUNDS.least, Some(DnsNotice::Doubted))
        );
        assert_eq!(
            state.hear(None, BOUNDS).1,
            Some(DnsNotice::Fault),
            "which says nothing"
        );
        assert_eq!(
            state.hear(nobody(), BOUNDS),
            (BOUNDS.least, Some(DnsNotice::Mended))
        );
        assert_eq!(shown(&state), [1]);
        assert_eq!(
            state.hear(Some(look(7, &[(1, Some(&[]))])), BOUNDS),
            (NOBODY, Some(DnsNotice::Gone))
        );
        assert_eq!(shown(&state), [0; 0]);
        assert_eq!(state.hear(nobody(), BOUNDS), (NOBODY, None));
        // From the beginning, when there was somebody in between.
        for answer in [&[1][..], &[], &[], &[1], &[], &[]] {
            state.hear(Some(look(7, &[(1, Some(answer))])), BOUNDS);
            assert_eq!(shown(&state), [1]);
        }
    }

    proptest! {
        #[test]
        fn pauses_are_never_shorter_than_they_may_be(answers in prop::collection::vec(prop::option::of((any::<u32>(), 0..3_usize)), 0..50)) {
            let mut state = DnsState::default();
            for answer in answers {
                let look = answer.map(|(ttl, count)| look(ttl, &[(1, Some(&[1, 2, 3][..count]))]));
                let (pause, _) = state.hear(look, BOUNDS);
                prop_assert!((BOUNDS.least..=BOUNDS.most).contains(&pause));
            }
        }
    }
}
