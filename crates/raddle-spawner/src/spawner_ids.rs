//! The ids of a spawner. One that has lost its lease goes on under another, and workers that it had launched before have the former one as their parent.
//! It says which those were, so that nobody takes its workers for forsaken. No I/O.

use raddle_model::{Tid, WorkerEntry, worker::WorkerInfo};

/// What a spawner says that it has, besides what its workers take, for each id that it had before.
const FORMER: &str = "@former/";
/// How many are said, the last of them. Workers are there for one task: those of an id from before that are over.
const SAID: usize = 16;

/// What a spawner says of itself that had these ids before, the last one last.
pub(super) fn continued(info: WorkerInfo, former: &[Tid]) -> WorkerInfo {
    let mut info = info;
    for tid in former.iter().rev().take(SAID) {
        // Digits are a tag, and so is what is made of them.
        let _ = info.capabilities.insert(&format!("{FORMER}{tid}"));
    }
    info
}

/// All ids of the spawners among these for which `is_there` holds, but for those of the one whose present id is `own`.
pub(super) fn others(
    registry: &[WorkerEntry],
    own: Tid,
    is_there: impl Fn(&WorkerEntry) -> bool,
) -> Vec<Tid> {
    let own = registry
        .iter()
        .find(|entry| entry.tid == own)
        .map_or_else(|| vec![own], |entry| ids(entry).collect());
    let spawners = registry
        .iter()
        .filter(|entry| entry.info.launches() && !own.contains(&entry.tid));
    spawners
        .filter(|entry| is_there(entry))
        .flat_map(ids)
        .collect()
}

fn ids(entry: &WorkerEntry) -> impl Iterator<Item = Tid> {
    let former = entry
        .info
        .capabilities
        .iter()
        .filter_map(|tag| tag.strip_prefix(FORMER)?.parse().ok());
    std::iter::once(entry.tid).chain(former)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use raddle_model::worker::Heartbeat;

    use super::*;

    fn tid(number: u64) -> Tid {
        Tid::from_u64(1_700_000_000_000_000_000 + number).unwrap()
    }

    fn spawner(number: u64, former: &[Tid]) -> WorkerEntry {
        let info = WorkerInfo {
            capabilities: "cpu".parse().unwrap(),
            ..WorkerInfo::new("spawner", "spawner")
        };
        WorkerEntry::new(
            tid(number),
            continued(info, former),
            Heartbeat::default(),
            Timestamp::UNIX_EPOCH,
        )
    }

    #[test]
    fn a_spawner_that_goes_on_under_another_id_is_there_under_all_that_it_had() {
        let registry = [
            spawner(1, &[]),
            spawner(5, &[tid(2), tid(3)]),
            spawner(6, &[tid(4)]),
        ];
        let all = [1, 5, 2, 3, 6, 4].map(tid);
        let found = |own, gone| others(&registry, tid(own), |entry| entry.tid != tid(gone));
        assert_eq!(found(9, 0), all);
        assert_eq!(
            found(9, 5),
            [1, 6, 4].map(tid),
            "who is gone is gone under each of them"
        );
        assert_eq!(found(1, 0), all[1..]);
        assert_eq!(found(5, 0), [1, 6, 4].map(tid));
        // A former self is listed until its lease has run out, and is nobody else.
        let twice = [spawner(2, &[]), spawner(5, &[tid(2)])];
        assert_eq!(others(&twice, tid(5), |_| true), []);
    }

    #[test]
    fn what_is_said_has_a_bound() {
        let former: Vec<Tid> = (100..200).map(tid).collect();
        let ids: Vec<Tid> = ids(&spawner(200, &former)).collect();
        assert_eq!(ids, [&[tid(200)], &former[100 - SAID..]].concat());
    }
}
