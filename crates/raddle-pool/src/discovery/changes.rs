//! What is new, from what was known and what is there. Pure.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
};

use super::{Event, Filter};
use crate::{Uid, WorkerMetadata};

/// Workers that somebody has been told of.
type Known = BTreeMap<Uid, WorkerMetadata>;

/// What a subscriber was told, and what he is to be told next. Whoever looks says what is there; what is new follows. For discoveries that look
/// again and again.
pub struct Told {
    filter: Option<Filter>,
    /// What was told, or stands in `ready`.
    known: Known,
    ready: VecDeque<Event>,
}

impl Told {
    /// One who was told nothing yet, and wants to hear of these workers.
    pub fn new(filter: Option<Filter>) -> Self {
        Self { filter, known: Known::new(), ready: VecDeque::new() }
    }

    /// These are there now, and no others.
    pub fn see(&mut self, there: impl IntoIterator<Item = WorkerMetadata>) {
        let wanted = |worker: &WorkerMetadata| self.filter.as_ref().is_none_or(|filter| filter(worker));
        let now = there.into_iter().filter(wanted).map(|worker| (worker.uid, worker)).collect();
        self.ready.extend(changes(&self.known, &now));
        self.known = now;
    }

    /// The next event, if there is one.
    #[expect(clippy::should_implement_trait, reason = "there may be more after `None`")]
    pub fn next(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told").field("known", &self.known).field("ready", &self.ready).finish_non_exhaustive()
    }
}

/// What is to be told to who knows these, so that they know those. Ends come first: a name or an address may be used again.
fn changes(known: &Known, now: &Known) -> Vec<Event> {
    let gone = known.iter().filter(|(uid, _)| !now.contains_key(uid)).map(|(_, worker)| Event::Dropped(worker.clone()));
    let there = now.iter().filter_map(|(uid, worker)| match known.get(uid) {
        None => Some(Event::Added(worker.clone())),
        Some(before) if before != worker => Some(Event::Updated(worker.clone())),
        Some(_) => None,
    });
    gone.chain(there).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn workers(pids: &[(u8, u32)]) -> Known {
        let worker = |(uid, pid): &(u8, u32)| {
            let uid: Uid = format!("00000000-0000-0000-0000-0000000000{uid:02x}").parse().unwrap();
            let (address, version) = (String::new(), String::new());
            let (tags, extra, encodings) = ([].into(), [].into(), [].into());
            (uid, WorkerMetadata { uid, address, pid: *pid, version, tags, extra, secure: false, encodings })
        };
        pids.iter().map(worker).collect()
    }

    #[test]
    fn ends_come_first_and_what_is_the_same_is_not_told() {
        let (before, after) = (workers(&[(1, 1), (2, 1), (3, 1)]), workers(&[(0, 1), (1, 1), (2, 2)]));
        let [zero, two] = [0, 2].map(|place| after.values().nth(place).unwrap().clone());
        let three = before.values().nth(2).unwrap().clone();
        assert_eq!(changes(&before, &after), [Event::Dropped(three), Event::Added(zero), Event::Updated(two)]);
    }

    proptest! {
        #[test]
        fn who_is_told_all_changes_knows_what_is_there(
            before in prop::collection::vec((0_u8..9, 1_u32..3), 0..9),
            after in prop::collection::vec((0_u8..9, 1_u32..3), 0..9),
        ) {
            let (before, after) = (workers(&before), workers(&after));
            let mut known = before.clone();
            for event in changes(&before, &after) {
                match event {
                    Event::Added(worker) => prop_assert!(known.insert(worker.uid, worker).is_none()),
                    Event::Updated(worker) => prop_assert!(known.insert(worker.uid, worker).is_some()),
                    Event::Dropped(worker) => prop_assert_eq!(known.remove(&worker.uid), Some(worker)),
                }
            }
            prop_assert_eq!(known, after);
        }
    }
}
