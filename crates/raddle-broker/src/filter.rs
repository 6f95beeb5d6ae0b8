//! Filters for lists of tasks.

use jiff::Timestamp;
use raddle_model::{
    TaskState, TaskView, Tid,
    query::{FlagField, IdField, TaskQuery, TextField},
    tid::{ShortTid, TidArg},
    time,
};
use serde::{Deserialize, Serialize};

/// Which tasks to list: those that match all of this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFilter {
    /// The states; empty for all.
    pub states: Vec<TaskState>,
    /// The display name; `*` matches anything.
    pub name: Option<String>,
    /// The queue.
    pub queue: Option<String>,
    /// The batch. A task that was resubmitted has left its batch to the new task.
    pub batch: Option<String>,
    /// Only dead letters.
    pub dead: bool,
    /// Include Raddle's own services.
    pub services: bool,
    /// The ids; `None` for any.
    pub among: Option<Vec<Tid>>,
    /// The last digits of the id.
    pub short: Option<ShortTid>,
    /// The worker that runs the task, or ran it last.
    pub worker: Option<Tid>,
    /// Only tasks older than this one: the last task of the previous page.
    pub before: Option<Tid>,
    /// Only this task and newer ones.
    pub since: Option<Tid>,
    /// A query that they match too.
    pub query: TaskQuery,
    /// The maximum.
    pub limit: u32,
    /// Stop after this many records were looked at, whether they match or not.
    pub max_examined: Option<u32>,
}

/// Some of the tasks that match a filter, newest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskPage {
    /// The tasks.
    pub tasks: Vec<TaskView>,
    /// Older tasks were not looked at: the value of [`TaskFilter::before`] for the next page.
    /// `None` if all were.
    pub next: Option<Tid>,
    /// The number of records that were looked at.
    pub looked_at: u64,
}

impl Default for TaskFilter {
    fn default() -> Self {
        Self {
            states: Vec::new(),
            name: None,
            queue: None,
            batch: None,
            dead: false,
            services: false,
            among: None,
            short: None,
            worker: None,
            before: None,
            since: None,
            query: TaskQuery::default(),
            limit: u32::MAX,
            max_examined: None,
        }
    }
}

impl TaskFilter {
    /// This one task, services included. An unreadable record is an error here; lists skip it.
    pub fn one(tid: Tid) -> Self {
        Self {
            among: Some(vec![tid]),
            services: true,
            ..Self::default()
        }
    }

    /// Whether the filter names a single task.
    pub fn is_single_task(&self) -> bool {
        // One with a limit of records is a portion of a list.
        self.max_examined.is_none() && self.among.as_ref().is_some_and(|among| among.len() == 1)
    }

    /// The ids that the filter names, newest first; `None` if it names none. `resolved` are the ids
    /// that end in `short`.
    pub fn named_ids(&self, resolved: Vec<Tid>) -> Option<Vec<Tid>> {
        let mut named = match (&self.among, self.short) {
            (Some(among), _) => among.clone(),
            (None, Some(_)) => resolved,
            (None, None) => return None,
        };
        // First, so that a page of many ids does not sort those of earlier pages.
        named.retain(|tid| {
            self.is_in_page(*tid) && self.short.is_none_or(|short| tid.short() == short)
        });
        named.sort_unstable_by(|a, b| b.cmp(a));
        named.dedup();
        Some(named)
    }

    /// Whether a task comes after the previous page and is not too old.
    pub fn is_in_page(&self, tid: Tid) -> bool {
        self.before.is_none_or(|before| tid < before) && self.since.is_none_or(|since| tid >= since)
    }

    /// The same filter, with what the query requires in the fields that engines have indexes for,
    /// and its relative times fixed. `None` if no task can match.
    pub fn resolve(mut self, now: Timestamp) -> Option<Self> {
        self.query = self.query.fix_times(now);
        let possible = self.query.states();
        if possible.len() < TaskState::ALL.len() {
            let wanted = |state: &TaskState| self.states.is_empty() || self.states.contains(state);
            self.states = possible.into_iter().filter(wanted).collect();
            if self.states.is_empty() {
                return None;
            }
        }
        let text = |field| self.query.exact(field).map(str::to_owned);
        self.queue = self.queue.or_else(|| text(TextField::Queue));
        self.batch = self.batch.or_else(|| text(TextField::Batch));
        self.dead |= self.query.requires(FlagField::Dead, true);
        if let (None, Some([TidArg::Full(worker)])) = (self.worker, self.query.ids(IdField::Worker))
        {
            self.worker = Some(*worker);
        }
        if let (None, None, Some(ids)) = (&self.among, self.short, self.query.ids(IdField::Id)) {
            let full = ids.iter().map(|id| match id {
                TidArg::Full(tid) => Some(*tid),
                TidArg::Short(_) => None,
            });
            match (full.collect::<Option<Vec<_>>>(), ids) {
                (Some(full), _) => self.among = Some(full),
                (None, [TidArg::Short(short)]) => self.short = Some(*short),
                _ => {}
            }
        }
        self.before = [self.before, self.query.first_id_after(now)]
            .into_iter()
            .flatten()
            .min();
        if let Some(oldest) = self.query.oldest(now) {
            let first = Tid::from_u64(u64::try_from(time::unix_nanos(oldest)).unwrap_or(0));
            self.since = self.since.max(first);
        }
        Some(self)
    }

    /// Whether a task matches everything but ids and states, which engines check first.
    pub fn matches(&self, task: &TaskView) -> bool {
        (self.services || !task.spec.is_service())
            && (!self.dead || task.dead)
            && (self.worker.is_none() || task.worker == self.worker)
            && self
                .queue
                .as_ref()
                .is_none_or(|queue| task.spec.queue == *queue)
            && (self.batch.is_none() || task.spec.batch == self.batch)
            && self
                .name
                .as_ref()
                .is_none_or(|pattern| matches_pattern(pattern, task.spec.display_name()))
            && (self.query.is_empty() || self.query.matches(task, Timestamp::now()))
    }
}

impl TaskPage {
    /// Whether all tasks were looked at.
    pub fn is_complete(&self) -> bool {
        self.next.is_none()
    }
}

/// Whether `text` matches `pattern`, in which `*` matches anything.
pub fn matches_pattern(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(text) = text
        .strip_prefix(head)
        .and_then(|text| text.strip_suffix(tail))
    else {
        return false;
    };
    // The leftmost match of each piece leaves the most for the rest, so no backtracking is needed.
    middle
        .split('*')
        .try_fold(text, |left, piece| {
            left.split_once(piece).map(|(_, right)| right)
        })
        .is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_matches_any_text() {
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("a*", "a"),
            ("*a", "ba"),
            ("a*b*c", "a-b-b-c"),
            ("**", "x"),
            ("ä*", "äh"),
        ] {
            assert!(matches_pattern(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("a", ""),
            ("a*a", "a"),
            ("ab*ba", "aba"),
            ("a*b*c", "a-c-b"),
            ("*x*", "abc"),
        ] {
            assert!(!matches_pattern(pattern, text), "{pattern} {text}");
        }
    }

    /// Patterns come from users: matching must not take exponential time.
    #[test]
    fn matches_many_stars_in_linear_time() {
        let began = std::time::Instant::now();
        assert!(!matches_pattern(
            &"*a".repeat(60).replace("**", "*"),
            &format!("{}b", "a".repeat(128))
        ));
        assert!(!matches_pattern(
            &format!("{}b", "*a".repeat(60)),
            &"a".repeat(128)
        ));
        assert!(began.elapsed().as_secs() < 5);
    }
}
