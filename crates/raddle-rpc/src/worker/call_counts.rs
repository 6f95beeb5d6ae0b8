//! Call counts of workers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Call counts of a worker, or the sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallCounts {
    /// Calls in flight.
    pub in_flight: u64,
    /// Calls accepted.
    pub taken: u64,
    /// Refusals by reason: one of [`REASONS`].
    pub refused: BTreeMap<String, u64>,
}

/// Reasons of refusals: first of connections that were not accepted, then of those that were
/// closed, of peers without permission, and of calls that were not accepted.
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
    /// Adds the counts of another worker.
    pub fn add(&mut self, other: &Self) {
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        self.taken = self.taken.saturating_add(other.taken);
        for (reason, count) in &other.refused {
            let sum = self.refused.entry(reason.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    /// Number of refusals for this reason.
    pub fn refused_for(&self, reason: &str) -> u64 {
        self.refused.get(reason).copied().unwrap_or(0)
    }

    /// The counts after the worker has ended: no call is in flight.
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
    fn counts_add_up() {
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
