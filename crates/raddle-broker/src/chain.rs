//! What an attempt may chain, and how much of it it has: decided here for all engines.
//!
//! Chained tasks stand aside. They have no id, no place in a line and no unique key until the attempt that chained them has succeeded, and
//! then they are submitted as any others, in the step that ends it.

use std::{fmt, str::FromStr};

use crate::{AttemptId, ChainRequest, Error, Result, request::written};

/// How many tasks one attempt may chain: they are all submitted in one step.
pub const MAX_CHAINED: u64 = 10_000;
/// How many bytes they may have together, written out: two of the largest.
pub const MAX_CHAINED_BYTES: u64 = 32 << 20;

/// What an attempt has chained so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainAccount {
    /// How many tasks.
    pub tasks: u64,
    bytes: u64,
    /// How many of them came by way of the attempt's worker.
    told: u64,
}

impl ChainRequest {
    /// Checks the tasks and writes their specs out, before they cost anybody a transaction.
    pub fn written(&self) -> Result<Vec<String>> {
        self.tasks.iter().map(|spec| Ok(written(spec)?)).collect()
    }
}

impl ChainAccount {
    /// Adds tasks of these sizes, of which the first so many may have been `told` before. Returns how many of them were: those are passed over.
    pub fn add(
        &mut self,
        attempt_id: AttemptId,
        told: Option<u64>,
        sizes: &[usize],
    ) -> Result<usize> {
        let known = match told.map(|told| self.told.checked_sub(told)) {
            None => 0,
            Some(Some(known)) => usize::try_from(known)
                .unwrap_or(usize::MAX)
                .min(sizes.len()),
            // What came before these is not here. It was, and the store has lost it.
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
        let told = self.told + if told.is_some() { new.len() as u64 } else { 0 };
        *self = Self { tasks, bytes, told };
        Ok(known)
    }
}

impl fmt::Display for ChainAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.tasks, self.bytes, self.told)
    }
}

impl FromStr for ChainAccount {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut numbers = text.split(' ').map(str::parse);
        let mut next = || {
            numbers
                .next()
                .and_then(|number| number.ok())
                .ok_or("what it has chained is not as it was written")
        };
        Ok(Self {
            tasks: next()?,
            bytes: next()?,
            told: next()?,
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
    fn what_was_told_before_counts_once() {
        let mut account = ChainAccount::default();
        assert_eq!(account.add(attempt_id(), Some(0), &[10, 20]).unwrap(), 0);
        assert_eq!(
            account.add(attempt_id(), None, &[5]).unwrap(),
            0,
            "the attempt itself may chain in between"
        );
        assert_eq!(
            account.add(attempt_id(), Some(0), &[10, 20]).unwrap(),
            2,
            "all of it was there"
        );
        assert_eq!(
            account.add(attempt_id(), Some(1), &[20, 30]).unwrap(),
            1,
            "half of it was"
        );
        assert_eq!(
            account,
            ChainAccount {
                tasks: 4,
                bytes: 65,
                told: 3
            }
        );
        assert_eq!(account.to_string().parse(), Ok(account));
        assert!("1 2".parse::<ChainAccount>().is_err() && "1 2 x".parse::<ChainAccount>().is_err());
    }

    #[test]
    fn what_is_missing_is_noticed() {
        let mut account = ChainAccount::default();
        assert!(matches!(
            account.add(attempt_id(), Some(1), &[1]),
            Err(Error::ChainLost(_))
        ));
    }

    #[test]
    fn neither_tasks_nor_bytes_are_without_end() {
        let mut account = ChainAccount::default();
        account
            .add(attempt_id(), None, &vec![1; MAX_CHAINED as usize])
            .unwrap();
        let before = account;
        assert!(matches!(
            account.add(attempt_id(), None, &[1]),
            Err(Error::ChainFull(_))
        ));
        assert_eq!(account, before, "what is refused is not counted");
        let mut account = ChainAccount::default();
        account
            .add(attempt_id(), None, &[MAX_CHAINED_BYTES as usize])
            .unwrap();
        assert!(matches!(
            account.add(attempt_id(), None, &[1]),
            Err(Error::ChainFull(_))
        ));
    }
}
