//! Lists of tasks that a query selects.

use jiff::Timestamp;
use raddle_broker::{Broker, TaskFilter};
use raddle_model::{
    TaskQuery, TaskState, TaskView, Tid,
    query::{FlagField, IdField, TextField},
    tid::TidArg,
};
use serde::{Serialize, Serializer};

use crate::{Result, task::task_record};

/// How many tasks are read at once.
const PAGE: std::ops::RangeInclusive<u32> = 100..=500;
/// How many tasks a list looks at, unless its options say otherwise.
pub const DEFAULT_MAX_LOOKED_AT: u64 = 20_000;

/// A part of a list of tasks, the newest first.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TaskList {
    /// The tasks.
    #[serde(serialize_with = "as_records")]
    pub items: Vec<TaskView>,
    /// Where to continue: the last task that was looked at. `None` after the last task.
    pub next: Option<Tid>,
    /// How many tasks were looked at.
    pub looked_at: u64,
    /// Whether no older task matches.
    pub complete: bool,
}

/// Which part of a list to read.
#[derive(Clone, Debug)]
pub struct TaskListOptions {
    /// Only tasks older than this one.
    pub before: Option<Tid>,
    /// The most tasks.
    pub limit: u32,
    /// Include Raddle's own services.
    pub services: bool,
    /// Stop after so many tasks, whether they match or not.
    pub max_looked_at: u64,
}

impl Default for TaskListOptions {
    fn default() -> Self {
        Self {
            before: None,
            limit: 50,
            services: false,
            max_looked_at: DEFAULT_MAX_LOOKED_AT,
        }
    }
}

/// Lists the tasks that match a query.
pub async fn list_tasks(
    broker: &dyn Broker,
    query: &TaskQuery,
    options: &TaskListOptions,
) -> Result<TaskList> {
    let now = Timestamp::now();
    let limit = options.limit as usize;
    let at_once = options
        .limit
        .saturating_add(1)
        .clamp(*PAGE.start(), *PAGE.end());
    let oldest = query.oldest(now).map(Timestamp::as_nanosecond);
    let filter = narrow(query);
    let before = match (options.before, query.first_id_after(now)) {
        (Some(before), Some(end)) => Some(before.min(end)),
        (before, end) => before.or(end),
    };
    let mut list = TaskList {
        next: before,
        ..TaskList::default()
    };
    while list.looked_at < options.max_looked_at {
        let page = TaskFilter {
            before: list.next,
            limit: at_once,
            services: options.services,
            ..filter.clone()
        };
        let tasks = broker.tasks(page).await?;
        let is_last = tasks.len() < at_once as usize;
        for task in tasks {
            if oldest.is_some_and(|oldest| i128::from(task.tid.unix_nanos()) < oldest) {
                list.complete = true;
                return Ok(TaskList { next: None, ..list });
            }
            let matches = query.matches(&task, now);
            if matches && list.items.len() == limit {
                return Ok(list);
            }
            list.looked_at += 1;
            list.next = Some(task.tid);
            if matches {
                list.items.push(task);
            }
        }
        if is_last {
            list.complete = true;
            return Ok(TaskList { next: None, ..list });
        }
    }
    Ok(list)
}

/// The part of a query that engines serve. The rest is tested on each task.
fn narrow(query: &TaskQuery) -> TaskFilter {
    // Engines have no pattern for a star.
    let plain = |field| query.exact(field).map(str::to_owned);
    let states = query.states();
    let full = |field| match query.ids(field) {
        Some([TidArg::Full(tid)]) => Some(*tid),
        _ => None,
    };
    let among = query.ids(IdField::Id).and_then(|ids| {
        let tids = ids.iter().map(|id| match id {
            TidArg::Full(tid) => Some(*tid),
            TidArg::Short(_) => None,
        });
        tids.collect()
    });
    let short = match query.ids(IdField::Id) {
        Some([TidArg::Short(short)]) => Some(*short),
        _ => None,
    };
    TaskFilter {
        states: if states.len() == TaskState::ALL.len() {
            Vec::new()
        } else {
            states
        },
        name: plain(TextField::Name).filter(|name| !name.contains('*')),
        queue: plain(TextField::Queue),
        batch: plain(TextField::Batch),
        dead: query.requires(FlagField::Dead, true),
        worker: full(IdField::Worker),
        among,
        short,
        ..TaskFilter::default()
    }
}

fn as_records<S: Serializer>(tasks: &[TaskView], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(tasks.iter().map(task_record))
}
