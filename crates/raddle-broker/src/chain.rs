//! Limits and totalsing of chained tasks, the same for all engines.
//!
//! Chained tasks are stored aside, without an id, a queue position or a unique key. When the
//! attempt that chained them succeeds they are submitted like any others, in the transaction that
//! completes it.

use std::{fmt, str::FromStr};

use crate::{AttemptId, ChainRequest, Error, Result, request::serialize_spec};

/// How many tasks one attempt may chain: they are all submitted in one transaction.
pub const MAX_CHAINED: u64 = 10_000;
/// The limit of their serialised size together: two specs of the maximum size.
pub const MAX_CHAINED_BYTES: u64 = 32 << 20;

/// The totals of what an attempt has chained so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainTotals {
    /// The number of tasks.
    pub tasks: u64,
    bytes: u64,
    /// How many of them the attempt's worker forwarded.
    forwarded: u64,
}

impl ChainRequest {
    /// Validates and serialises the specs, before a transaction is begun for them.
    pub fn serialize_specs(&self) -> Result<Vec<String>> {
        self.tasks
            .iter()
            .map(|spec| Ok(serialize_spec(spec)?))
            .collect()
    }
}

impl ChainTotals {
    /// Adds tasks of these sizes. `offset` is [`ChainRequest::offset`]. Returns how many of the
    /// first tasks are chained already and must be skipped.
    pub fn add(
        &mut self,
        attempt_id: AttemptId,
        offset: Option<u64>,
        sizes: &[usize],
    ) -> Result<usize> {
        let known = match offset.map(|offset| self.forwarded.checked_sub(offset)) {
            None => 0,
            Some(Some(known)) => usize::try_from(known)
                .unwrap_or(usize::MAX)
                .min(sizes.len()),
            // Tasks that were forwarded before are missing: the store has lost them.
            Some(None) => return Err(Error::ChainLost(attempt_id)),
        };
        let new = &sizes[known..];
        let tasks = self.tasks + new.len() as u64;
        let bytes = new
            .iter()
            .fold(self.bytes, |sum, size| sum.saturating_add(*size as u64));
        if tasks > MAX_CHAINED || bytes > MAX_CHAINED_BYTES {
            return Err(Error::ChainFull(attempt_id));
        }
        let new_forwarded = if offset.is_some() {
            new.len() as u64
        } else {
            0
        };
        *self = Self {
            tasks,
            bytes,
            forwarded: self.forwarded + new_forwarded,
        };
        Ok(known)
    }
}

impl fmt::Display for ChainTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.tasks, self.bytes, self.forwarded)
    }
}

impl FromStr for ChainTotals {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut numbers = text.split(' ').map(str::parse);
        let mut next = || {
            numbers
                .next()
                .and_then(|number| number.ok())
                .ok_or("the totals of chained tasks are not three numbers")
        };
        Ok(Self {
            tasks: next()?,
            bytes: next()?,
            forwarded: next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use raddle_model::Tid;

    use super::*;

    fn attempt_id() -> AttemptId {
        let tid = Tid::from_u64(1_700_000_000_000_000_000).unwrap();
        AttemptId {
            tid,
            attempt: 1,
            owner: tid,
        }
    }

    #[test]
    fn skips_tasks_that_were_forwarded_before() {
        let mut totals = ChainTotals::default();
        assert_eq!(totals.add(attempt_id(), Some(0), &[10, 20]).unwrap(), 0);
        assert_eq!(
            totals.add(attempt_id(), None, &[5]).unwrap(),
            0,
            "the attempt itself may chain in between"
        );
        assert_eq!(
            totals.add(attempt_id(), Some(0), &[10, 20]).unwrap(),
            2,
            "all are chained already"
        );
        assert_eq!(
            totals.add(attempt_id(), Some(1), &[20, 30]).unwrap(),
            1,
            "one of two is chained already"
        );
        assert_eq!(
            totals,
            ChainTotals {
                tasks: 4,
                bytes: 65,
                forwarded: 3
            }
        );
        assert_eq!(totals.to_string().parse(), Ok(totals));
        assert!("1 2".parse::<ChainTotals>().is_err() && "1 2 x".parse::<ChainTotals>().is_err());
    }

    #[test]
    fn reports_lost_chained_tasks() {
        let mut totals = ChainTotals::default();
        assert!(matches!(
            totals.add(attempt_id(), Some(1), &[1]),
            Err(Error::ChainLost(_))
        ));
    }

    #[test]
    fn limits_tasks_and_bytes() {
        let mut totals = ChainTotals::default();
        totals
            .add(attempt_id(), None, &vec![1; MAX_CHAINED as usize])
            .unwrap();
        let before = totals;
        assert!(matches!(
            totals.add(attempt_id(), None, &[1]),
            Err(Error::ChainFull(_))
        ));
        assert_eq!(totals, before, "refused tasks are not counted");
        let mut totals = ChainTotals::default();
        totals
            .add(attempt_id(), None, &[MAX_CHAINED_BYTES as usize])
            .unwrap();
        assert!(matches!(
            totals.add(attempt_id(), None, &[1]),
            Err(Error::ChainFull(_))
        ));
    }
}
