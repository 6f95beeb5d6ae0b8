//! Finds tasks by a query, a bounded number of records at a time.

use raddle_broker::TaskFilter;
use raddle_model::{
    TaskView, Tid,
    query::TaskQuery,
    tid::TidArg,
};
use raddle_view::find::resolve_short_id;

use super::context::Context;
use crate::problem::{Problem, Result};

/// How many tasks a page shows.
pub(super) const PAGE: usize = 50;
/// How many records one request looks at, at most.
const LOOK_AT: u64 = 20_000;
/// How many records are read at once.
const SLICE: u32 = 1_000;

/// A page of tasks, newest first.
pub(super) struct Found {
    pub(super) tasks: Vec<TaskView>,
    /// Where the next page begins; `None` at the end.
    pub(super) next: Option<Tid>,
    pub(super) looked_at: u64,
}

/// Parses the query of a request.
pub(super) fn parse(text: &str) -> Result<TaskQuery> {
    text.parse::<TaskQuery>().map_err(|error| {
        let problem = Problem::bad_request(error.to_string());
        Problem {
            position: Some(error.position),
            ..problem.with_hint("the page Help lists the fields of a query")
        }
    })
}

/// Finds a page of tasks that are older than `before`.
pub(super) async fn find(cx: &Context, query: &TaskQuery, mut before: Option<Tid>) -> Result<Found> {
    let (mut tasks, mut looked_at) = (Vec::new(), 0);
    let oldest = query.oldest(cx.now);
    loop {
        let filter = TaskFilter {
            states: query.states(),
            before,
            limit: SLICE,
            ..TaskFilter::default()
        };
        let slice = cx.broker().tasks(filter).await?;
        let is_last = slice.len() < SLICE as usize;
        for task in slice {
            looked_at += 1;
            if oldest.is_some_and(|oldest| task.created_at < oldest) {
                return Ok(Found {
                    tasks,
                    next: None,
                    looked_at,
                });
            }
            before = Some(task.tid);
            if query.matches(&task, cx.now) {
                tasks.push(task);
            }
            if tasks.len() == PAGE {
                return Ok(Found {
                    tasks,
                    next: before,
                    looked_at,
                });
            }
        }
        if is_last || looked_at >= LOOK_AT {
            let next = before.filter(|_| !is_last);
            return Ok(Found {
                tasks,
                next,
                looked_at,
            });
        }
    }
}

/// The tasks with these ids, newest first, whatever they are now.
pub(super) async fn among(cx: &Context, tids: Vec<Tid>) -> Result<Vec<TaskView>> {
    let filter = TaskFilter {
        among: Some(tids),
        services: true,
        ..TaskFilter::default()
    };
    Ok(cx.broker().tasks(filter).await?)
}

/// How many matching tasks are newer than `than`, up to a page of them.
pub(super) async fn count_newer(cx: &Context, query: &TaskQuery, than: Tid) -> Result<usize> {
    let found = find(cx, query, None).await?;
    Ok(found.tasks.iter().filter(|task| task.tid > than).count())
}

/// The task that ten or nineteen digits name.
pub(super) async fn resolve(cx: &Context, arg: TidArg) -> Result<Tid> {
    match arg {
        TidArg::Full(tid) => Ok(tid),
        TidArg::Short(short) => Ok(resolve_short_id(cx.broker(), short).await?),
    }
}

/// The task that a segment of a path names.
pub(super) async fn tid_of(cx: &Context, text: &str) -> Result<Tid> {
    let arg = text.parse::<TidArg>();
    resolve(cx, arg.map_err(|error| Problem::not_found(error.to_string()))?).await
}
