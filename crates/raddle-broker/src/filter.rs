//! Filters for lists of tasks.

use raddle_model::{TaskState, TaskView, Tid, tid::ShortTid};
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
        self.among.as_ref().is_some_and(|among| among.len() == 1)
    }

    /// The ids that the filter names, newest first; `None` if it names none. `resolved` are the ids
    /// that end in `short`.
    pub fn named_ids(&self, resolved: Vec<Tid>) -> Option<Vec<Tid>> {
        let mut named = match (&self.among, self.short) {
            (Some(among), _) => among.clone(),
            (None, Some(_)) => resolved,
            (None, None) => return None,
        };
        named.retain(|tid| {
            self.is_in_page(*tid) && self.short.is_none_or(|short| tid.short() == short)
        });
        named.sort_unstable_by(|a, b| b.cmp(a));
        named.dedup();
        Some(named)
    }

    /// Whether a task comes after the previous page.
    pub fn is_in_page(&self, tid: Tid) -> bool {
        self.before.is_none_or(|before| tid < before)
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
