//! The ids of a spawner. A spawner that lost its lease has a new id, and its earlier workers name
//! the old one as parent. It lists its old ids in the registry, so that no other spawner adopts its
//! workers. No I/O.

use raddle_model::{Tid, WorkerEntry, worker::WorkerInfo};

/// Capability prefix for an old id of a spawner.
const FORMER: &str = "@former/";
/// Most old ids to list. Workers of older ids have ended, because they run one task each.
const MAX_OLD_IDS: usize = 16;

/// The registration of a spawner with these old ids, the latest last.
pub(super) fn with_old_ids(info: WorkerInfo, former: &[Tid]) -> WorkerInfo {
    let mut info = info;
    for tid in former.iter().rev().take(MAX_OLD_IDS) {
        // A TID is a valid label, and so is this.
        let _ = info.capabilities.insert(&format!("{FORMER}{tid}"));
    }
    info
}

/// All ids of the other spawners for which `is_there` holds. `own` is the current id of this one.
pub(super) fn other_spawners(
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
            with_old_ids(info, former),
            Heartbeat::default(),
            Timestamp::UNIX_EPOCH,
        )
    }

    #[test]
    fn a_spawner_is_known_under_all_its_ids() {
        let registry = [
            spawner(1, &[]),
            spawner(5, &[tid(2), tid(3)]),
            spawner(6, &[tid(4)]),
        ];
        let all = [1, 5, 2, 3, 6, 4].map(tid);
        let found = |own, gone| other_spawners(&registry, tid(own), |entry| entry.tid != tid(gone));
        assert_eq!(found(9, 0), all);
        assert_eq!(
            found(9, 5),
            [1, 6, 4].map(tid),
            "a dead spawner is gone under each id"
        );
        assert_eq!(found(1, 0), all[1..]);
        assert_eq!(found(5, 0), [1, 6, 4].map(tid));
        // An old id stays registered until its lease expires, and is no other spawner.
        let twice = [spawner(2, &[]), spawner(5, &[tid(2)])];
        assert_eq!(other_spawners(&twice, tid(5), |_| true), []);
    }

    #[test]
    fn lists_a_limited_number_of_old_ids() {
        let former: Vec<Tid> = (100..200).map(tid).collect();
        let ids: Vec<Tid> = ids(&spawner(200, &former)).collect();
        assert_eq!(ids, [&[tid(200)], &former[100 - MAX_OLD_IDS..]].concat());
    }
}
