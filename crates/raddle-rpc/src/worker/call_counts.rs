//! What a worker has done, and is doing, in numbers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a worker has done, and is doing. What several have done is added up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallCounts {
    /// Calls in flight.
    pub in_flight: u64,
    /// Calls that were taken.
    pub taken: u64,
    /// What was refused, by the reason: one of [`REASONS`].
    pub refused: BTreeMap<String, u64>,
}

/// Why somebody is refused, in one word each: first those who are not let in, then those who are hung up on, those who may not, and calls that
/// are not taken.
pub const REASONS: [&str; 21] = [
    "no_certificate",
    "unknown_issuer",
    "expired",
    "wrong_name",
    "wrong_purpose",
    "bad_certificate",
    "no_key",
    "not_tls",
    "version",
    "protocol",
    "other",
    "too_slow",
    "hung_up",
    "crowded",
    "unread",
    "not_allowed",
    "full",
    "stopping",
    "unknown_routine",
    "other_version",
    "malformed",
];

impl CallCounts {
    /// Adds what another has done.
    pub fn add(&mut self, other: &Self) {
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        self.taken = self.taken.saturating_add(other.taken);
        for (reason, count) in &other.refused {
            let sum = self.refused.entry(reason.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    /// How often somebody was refused for this reason.
    pub fn refused_for(&self, reason: &str) -> u64 {
        self.refused.get(reason).copied().unwrap_or(0)
    }

    /// The same of one that has ended: nothing is in flight there any more.
    pub(crate) fn ended(self) -> Self {
        Self {
            in_flight: 0,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_have_done_is_added_up() {
        let one = CallCounts {
            in_flight: 1,
            taken: 5,
            refused: [("full".to_owned(), 2)].into(),
        };
        let other = CallCounts {
            in_flight: 2,
            taken: u64::MAX,
            refused: [("full".into(), 1), ("stopping".into(), 1)].into(),
        };
        let mut both = one.clone();
        both.add(&other.clone().ended());
        assert_eq!((both.in_flight, both.taken), (1, u64::MAX));
        assert_eq!(
            REASONS
                .map(|reason| both.refused_for(reason))
                .iter()
                .sum::<u64>(),
            4
        );
        assert_eq!(both.refused_for("anything else"), 0);
    }
}
