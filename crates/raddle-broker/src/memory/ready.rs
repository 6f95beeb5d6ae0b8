//! The tasks that can be claimed, by what a worker must serve and offer to claim them.
//!
//! A claim looks only at partitions it may take from, and in each only at the front: a task that no worker can take costs
//! nothing to those behind it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use raddle_core::{CapSet, Spec, Tid};

/// What a worker must serve and offer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Partition {
    pub(super) queue: String,
    pub(super) needs: CapSet,
}

/// The most urgent first, then the oldest.
type Rank = (Reverse<u8>, Tid);

/// The ready tasks of every partition that has any.
#[derive(Debug, Default)]
pub(super) struct Ready(BTreeMap<Partition, BTreeSet<Rank>>);

impl Partition {
    pub(super) fn of(spec: &Spec) -> Self {
        Self { queue: spec.queue.clone(), needs: spec.needs() }
    }
}

impl Ready {
    pub(super) fn insert(&mut self, partition: &Partition, priority: u8, tid: Tid) {
        match self.0.get_mut(partition) {
            Some(ranks) => _ = ranks.insert((Reverse(priority), tid)),
            None => _ = self.0.insert(partition.clone(), BTreeSet::from([(Reverse(priority), tid)])),
        }
    }

    pub(super) fn remove(&mut self, partition: &Partition, priority: u8, tid: Tid) {
        if let Some(ranks) = self.0.get_mut(partition) {
            ranks.remove(&(Reverse(priority), tid));
            if ranks.is_empty() {
                self.0.remove(partition);
            }
        }
    }

    /// The first `max` tasks of all partitions that fit.
    pub(super) fn first(&self, max: usize, fits: impl Fn(&Partition) -> bool) -> Vec<Tid> {
        let of_fitting = self.0.iter().filter(|(partition, _)| fits(partition));
        let mut fronts: Vec<_> = of_fitting.map(|(_, ranks)| ranks.iter().peekable()).collect();
        let mut first = Vec::new();
        while first.len() < max
            && let Some(front) = fronts
                .iter_mut()
                .filter_map(|front| front.peek().copied().map(|rank| (rank, front)))
                .min_by_key(|(rank, _)| **rank)
                .map(|(_, front)| front)
        {
            first.extend(front.next().map(|(_, tid)| *tid));
        }
        first
    }

    /// How many tasks there are in the partitions that fit.
    pub(super) fn count(&self, fits: impl Fn(&Partition) -> bool) -> u64 {
        self.0.iter().filter(|(partition, _)| fits(partition)).map(|(_, ranks)| ranks.len() as u64).sum()
    }

    /// How many of the same partition come before this task.
    pub(super) fn ahead_of(&self, partition: &Partition, priority: u8, tid: Tid) -> u64 {
        self.0.get(partition).map_or(0, |ranks| ranks.range(..(Reverse(priority), tid)).count() as u64)
    }

    /// How many there are in each queue.
    pub(super) fn depths(&self) -> BTreeMap<String, u64> {
        let mut depths = BTreeMap::new();
        for (partition, ranks) in &self.0 {
            *depths.entry(partition.queue.clone()).or_default() += ranks.len() as u64;
        }
        depths
    }
}
