//! Finds tasks by a query, a bounded number of records at a time.

use raddle_broker::TaskFilter;
use raddle_model::{TaskView, Tid, query::TaskQuery, tid::TidArg};
use raddle_view::{
    find::resolve_short_id,
    tasks::{TaskListOptions, list_tasks},
};

use super::context::Context;
use crate::problem::{Problem, Result};

/// How many tasks a page shows.
pub(super) const PAGE: usize = 50;
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
pub(super) async fn find(cx: &Context, query: &TaskQuery, before: Option<Tid>) -> Result<Found> {
    let options = TaskListOptions {
        before,
        limit: PAGE as u32,
        ..TaskListOptions::default()
    };
    let list = list_tasks(cx.broker(), query, &options).await?;
    Ok(Found {
        tasks: list.items,
        next: list.next,
        looked_at: list.looked_at,
    })
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
pub(super) async fn count_newer(
    cx: &Context,
    query: &TaskQuery,
    than: Option<Tid>,
) -> Result<usize> {
    let found = find(cx, query, None).await?;
    Ok(found
        .tasks
        .iter()
        .filter(|task| Some(task.tid) > than)
        .count())
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
    resolve(
        cx,
        arg.map_err(|error| Problem::not_found(error.to_string()))?,
    )
    .await
}
