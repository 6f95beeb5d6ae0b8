//! Lists of tasks, in slices: no command and no script looks at more than some records.

use jiff::Timestamp;
use raddle_model::{
    TaskState, TaskView, Tid,
    query::{Condition, TextField},
};

use super::view;
use crate::{
    Redis,
    apply::read_snapshots,
    change::Snapshot,
    reclaim::claimed_by,
    schema::stream_id,
    script,
    value::{arg, tids},
};
use raddle_broker::{Result, TaskFilter, TaskPage};

/// The number of tasks whose records are read at once.
const PAGE: usize = 200;
/// The most tasks that one script looks at, which blocks the server meanwhile.
const SLICE: u64 = 1000;
/// The least.
const FIRST_SLICE: u64 = 50;

/// Where candidates come from, newest first.
enum TaskSource {
    /// These.
    Listed(Vec<Tid>),
    /// A sorted set, whose members are one of these words and a task.
    Ranges(&'static str, Vec<String>),
    /// All tasks.
    All,
}

/// The next candidates.
struct TaskSlice {
    tids: Vec<Tid>,
    /// How many tasks were looked at to find them.
    looked_at: u64,
    /// The last of these; `None` if there are no more.
    next: Option<Tid>,
}

impl Redis {
    /// The newest tasks that match. The requested states decide which keys are scanned, so that a
    /// few running tasks are found without reading a million finished ones.
    pub(crate) async fn find(&self, filter: &TaskFilter) -> Result<TaskPage> {
        let Some(filter) = &filter.clone().resolve(Timestamp::now()) else {
            return Ok(TaskPage::default());
        };
        let source = self.source(filter).await?;
        let (limit, most) = (
            filter.limit as usize,
            filter.max_examined.map_or(u64::MAX, u64::from).max(1),
        );
        let mut page = TaskPage {
            next: filter.before,
            ..TaskPage::default()
        };
        let mut slice = u64::from(filter.limit).saturating_mul(2);
        while page.tasks.len() < limit {
            slice = slice.clamp(FIRST_SLICE, SLICE).min(most - page.looked_at);
            let mut found = self.next_slice(&source, filter, page.next, slice).await?;
            if let Some(since) = filter.since {
                found.end_at(since);
            }
            page.looked_at += found.looked_at;
            page.next = found.next;
            self.add_fitting(&mut page, &found.tids, filter).await?;
            if page.next.is_none() || page.looked_at >= most {
                break;
            }
            slice *= 2;
        }
        self.show_more(&mut page.tasks).await?;
        Ok(page)
    }

    async fn source(&self, filter: &TaskFilter) -> Result<TaskSource> {
        let are_all =
            |is: fn(&TaskState) -> bool| !filter.states.is_empty() && filter.states.iter().all(is);
        let completed = match filter.short {
            Some(short) => self.complete_short(short).await?,
            None => Vec::new(),
        };
        Ok(if let Some(named) = filter.named_ids(completed) {
            TaskSource::Listed(named)
        } else if are_all(|state| state.is_active()) {
            TaskSource::Listed(match filter.worker {
                Some(worker) => claimed_by(self.link(), worker).await?,
                None => self.active().await?,
            })
        } else if let Some(batch) = &filter.batch {
            TaskSource::Ranges("batches", vec![format!("{batch} ")])
        } else if filter.dead {
            TaskSource::Ranges("dead_letters", vec![String::new()])
        } else if !filter.services
            && are_all(|state| state.is_terminal() && *state != TaskState::Completed)
        {
            // Workers that failed are not in it.
            let words = filter
                .states
                .iter()
                .map(|state| format!("{} ", *state as u8));
            TaskSource::Ranges("unsuccessful", words.collect())
        } else {
            TaskSource::All
        })
    }

    /// Looks at the next tasks before an id, at most `most`.
    async fn next_slice(
        &self,
        source: &TaskSource,
        filter: &TaskFilter,
        before: Option<Tid>,
        most: u64,
    ) -> Result<TaskSlice> {
        match source {
            TaskSource::Listed(tids) => {
                let from = before.map_or(0, |before| tids.partition_point(|tid| *tid >= before));
                let rest = &tids[from..];
                let tids = rest[..rest.len().min(most as usize)].to_vec();
                let is_last = tids.len() == rest.len();
                Ok(TaskSlice::new(tids, is_last))
            }
            TaskSource::Ranges(key, words) => self.next_in_ranges(key, words, before, most).await,
            TaskSource::All => self.scan(filter, before, most).await,
        }
    }

    async fn next_in_ranges(
        &self,
        key: &str,
        words: &[String],
        before: Option<Tid>,
        most: u64,
    ) -> Result<TaskSlice> {
        let mut pipe = redis::pipe();
        for word in words {
            let newest = before.map_or_else(|| ":".to_owned(), |before| before.to_string());
            pipe.cmd("ZREVRANGEBYLEX")
                .arg(self.core.keys.named(key))
                .arg(format!("({word}{newest}"))
                .arg(format!("[{word}"));
            pipe.arg("LIMIT").arg(0).arg(most);
        }
        let ranges: Vec<Vec<String>> = self.link().query(&pipe).await?;
        let mut is_last = true;
        let mut candidates = Vec::new();
        for (word, members) in words.iter().zip(ranges) {
            is_last &= (members.len() as u64) < most;
            let members = members
                .into_iter()
                .map(|member| member[word.len()..].to_owned());
            candidates.extend(tids(members));
        }
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        candidates.dedup();
        // Each range has its newest tasks, so the newest of all are among these.
        is_last &= candidates.len() as u64 <= most;
        candidates.truncate(most as usize);
        Ok(TaskSlice::new(candidates, is_last))
    }

    /// Looks at tasks in a script, which returns those that may match.
    async fn scan(&self, filter: &TaskFilter, before: Option<Tid>, most: u64) -> Result<TaskSlice> {
        let from = before.map_or_else(|| "+".to_owned(), |before| stream_id(before.as_u64() - 1));
        let states: String = filter
            .states
            .iter()
            .map(|state| (*state as u8).to_string())
            .collect();
        let mut args = vec![
            arg(from),
            arg(most),
            arg(filter.queue.as_deref().unwrap_or_default()),
            arg(states),
            arg(if filter.services { "services" } else { "" }),
        ];
        args.extend(literals_of(filter).map(arg));
        let (next, looked_at, found): (String, u64, Vec<String>) = self
            .link()
            .run_idempotent(&script::SCAN_TASKS, args)
            .await?;
        Ok(TaskSlice {
            tids: tids(found),
            looked_at,
            next: next.parse().ok(),
        })
    }

    /// Adds the candidates that match. If there are more than the filter asks for, the next page
    /// begins after the last one that was added.
    async fn add_fitting(
        &self,
        page: &mut TaskPage,
        tids: &[Tid],
        filter: &TaskFilter,
    ) -> Result<()> {
        for tids in tids.chunks(PAGE) {
            let tasks = read_snapshots(self.link(), tids, false).await?;
            for task in tids.iter().filter_map(|tid| tasks.get(tid)) {
                if !has_wanted_state(filter, task) {
                    continue;
                }
                let task = match view(task) {
                    Ok(task) => task,
                    Err(error) if filter.is_single_task() => return Err(error),
                    // An unreadable record must not hide the others.
                    Err(_) => continue,
                };
                if !filter.matches(&task) {
                    continue;
                }
                if page.tasks.len() == filter.limit as usize {
                    page.next = page.tasks.last().map(|last| last.tid);
                    return Ok(());
                }
                page.tasks.push(task);
            }
        }
        Ok(())
    }

    /// Adds what has keys of its own: progress and chained tasks.
    async fn show_more(&self, tasks: &mut [TaskView]) -> Result<()> {
        self.show_progress(tasks).await?;
        self.show_chained(tasks).await
    }

    /// Claimed tasks, and the workers' own tasks.
    async fn active(&self) -> Result<Vec<Tid>> {
        let mut pipe = redis::pipe();
        pipe.cmd("ZRANGE")
            .arg(self.core.keys.named("owned"))
            .arg(0)
            .arg(-1);
        pipe.cmd("HKEYS").arg(self.core.keys.named("workers"));
        let (owned, workers): (Vec<String>, Vec<String>) = self.link().query(&pipe).await?;
        let mut active: Vec<Tid> = owned
            .iter()
            .filter_map(|pair| pair.split_once(':')?.1.parse().ok())
            .collect();
        active.extend(tids(workers));
        active.sort_by(|a, b| b.cmp(a));
        // The process of an attempt can be a worker under the id of its task.
        active.dedup();
        Ok(active)
    }
}

/// Whether the state of a task is among those of a filter.
pub(crate) fn has_wanted_state(filter: &TaskFilter, task: &Snapshot) -> bool {
    filter.states.is_empty() || filter.states.contains(&task.state())
}

impl TaskSlice {
    /// Leaves out what is older than `since`.
    fn end_at(&mut self, since: Tid) {
        self.tids.retain(|tid| *tid >= since);
        self.next = self.next.filter(|next| *next > since);
    }

    fn new(tids: Vec<Tid>, is_last: bool) -> Self {
        Self {
            looked_at: tids.len() as u64,
            next: tids.last().copied().filter(|_| !is_last),
            tids,
        }
    }
}

/// Texts that the stored spec of every task has that matches a filter: names and kinds are part of
/// it, and letters and digits stand for themselves there.
fn literals_of(filter: &TaskFilter) -> impl Iterator<Item = &str> {
    let of_name = filter
        .name
        .as_deref()
        .and_then(|name| longest_literal(name.split('*')));
    let terms = filter.query.terms().iter().filter(|term| !term.negated);
    let of_terms = terms.filter_map(|term| match &term.condition {
        Condition::Text(TextField::Name | TextField::Kind, patterns) => match &patterns[..] {
            [pattern] => longest_literal(pattern.pieces().iter().map(String::as_str)),
            _ => None,
        },
        _ => None,
    });
    of_name.into_iter().chain(of_terms)
}

/// The longest run of letters and digits. The one name that is not part of its spec is `request`.
fn longest_literal<'a>(texts: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    texts
        .flat_map(|text| text.split(move |c| !is_plain(c)))
        .filter(|literal| !literal.is_empty() && !"request".contains(literal))
        .max_by_key(|literal| literal.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_literals_of_a_filter() {
        for (pattern, literal) in [
            ("frame-*", Some("frame-")),
            ("*resize*.jpg", Some("resize")),
            ("two words", Some("words")),
            ("*", None),
            ("quest*", None),
            ("\u{e4}\"*", None),
        ] {
            let filter = TaskFilter {
                name: Some(pattern.into()),
                ..TaskFilter::default()
            };
            assert_eq!(literals_of(&filter).next(), literal, "{pattern}");
        }
        let filter = TaskFilter {
            query: "name:frame-* -name:x kind:render word queue:q"
                .parse()
                .unwrap(),
            ..TaskFilter::default()
        };
        assert_eq!(
            literals_of(&filter).collect::<Vec<_>>(),
            ["frame-", "render"]
        );
    }
}
