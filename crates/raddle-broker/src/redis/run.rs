//! Tasks that can be claimed and whose ids follow each other: one entry in each line, as `lua/common.lua` writes it.

use raddle_core::Tid;

/// Tasks of one partition, with ids in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    first: u64,
    tasks: u64,
}

impl Run {
    /// From an entry of `order`: a digit of urgency, the first id, partition, how many.
    pub(super) fn in_order(entry: &str) -> Option<Self> {
        Some(Self { first: entry.get(1..20)?.parse().ok()?, tasks: entry.rsplit(' ').next()?.parse().ok()? })
    }

    /// From an entry of `line`: partition, the first id, how many.
    pub(super) fn in_line(entry: &str) -> Option<Self> {
        let mut fields = entry.rsplit(' ');
        let tasks = fields.next()?.parse().ok()?;
        Some(Self { first: fields.next()?.parse().ok()?, tasks })
    }

    /// How many they are.
    pub(super) fn len(self) -> u64 {
        self.tasks
    }

    pub(super) fn tids(self) -> impl Iterator<Item = Tid> {
        (self.first..self.first.saturating_add(self.tasks)).filter_map(Tid::from_u64)
    }

    /// How many of them are older than a task.
    pub(super) fn older_than(self, tid: Tid) -> u64 {
        tid.as_u64().saturating_sub(self.first).min(self.tasks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_read_from_both_lines() {
        let run = Run { first: 1_794_811_795_508_494_336, tasks: 100 };
        assert_eq!(Run::in_order("41794811795508494336 5|default|a,b 100"), Some(run));
        assert_eq!(Run::in_line("5|default|a,b 1794811795508494336 100"), Some(run));
        assert_eq!((Run::in_order("4"), Run::in_line("5|default|")), (None, None));
    }

    #[test]
    fn a_task_in_a_run_has_those_before_it() {
        let run = Run { first: 1_794_811_795_508_494_336, tasks: 3 };
        let tids: Vec<Tid> = run.tids().collect();
        assert_eq!(tids.iter().map(|tid| run.older_than(*tid)).collect::<Vec<_>>(), [0, 1, 2]);
        let later = Tid::from_u64(run.first + 1000).unwrap();
        let sooner = Tid::from_u64(run.first - 1).unwrap();
        assert_eq!((run.older_than(later), run.older_than(sooner)), (3, 0));
    }
}
