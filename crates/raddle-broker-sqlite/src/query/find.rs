//! Lists of tasks, read in slices: no read is longer than some milliseconds, so that a search
//! through a million records keeps no old pages in the WAL and delays no other read.

mod candidates;

use std::time::{Duration, Instant};

use jiff::Timestamp;
use raddle_model::{TaskState, TaskView, Tid, tid::ShortTid};
use rusqlite::Connection;

use super::view;
use crate::{Sqlite, tx::TxError};
use candidates::Candidates;
use raddle_broker::{Error, Result, TaskFilter, TaskPage};

/// The time after which a slice ends.
const SLICE: Duration = Duration::from_millis(10);
/// The number of candidates between two looks at the clock.
const CLOCK_EVERY: u64 = 16;

impl Sqlite {
    pub(super) async fn find(&self, filter: TaskFilter) -> Result<TaskPage> {
        let mut found = TaskPage::default();
        let Some(mut filter) = filter.resolve(Timestamp::now()) else {
            return Ok(found);
        };
        loop {
            let (page, filter_back) = self
                .read(move |db| Ok((find_slice(db, &filter)?, filter)))
                .await?;
            filter = filter_back;
            filter.limit = filter.limit.saturating_sub(page.tasks.len() as u32);
            filter.max_examined = filter
                .max_examined
                .map(|most| most.saturating_sub(page.looked_at as u32));
            found.looked_at += page.looked_at;
            found.tasks.extend(page.tasks);
            found.next = page.next;
            if page.next.is_none() || filter.limit == 0 || filter.max_examined == Some(0) {
                return Ok(found);
            }
            filter.before = page.next;
        }
    }
}

/// The next tasks that match, among those that one slice looks at.
fn find_slice(db: &Connection, filter: &TaskFilter) -> Result<TaskPage, TxError> {
    let (began, mut page) = (Instant::now(), TaskPage::default());
    let resolved = filter
        .short
        .map(|short| resolve_short(db, short))
        .transpose()?;
    let mut candidates = match filter.named_ids(resolved.unwrap_or_default()) {
        Some(named) => Candidates::Named(named.into_iter()),
        None => Candidates::search(db, filter)?,
    };
    let most = filter.max_examined.map_or(u64::MAX, u64::from);
    let mut last = None;
    while let Some((tid, state)) = candidates.next(db)? {
        let is_over = page.looked_at > 0
            && page.looked_at.is_multiple_of(CLOCK_EVERY)
            && began.elapsed() >= SLICE;
        if is_over || page.looked_at >= most || page.tasks.len() >= filter.limit as usize {
            page.next = last;
            return Ok(page);
        }
        page.looked_at += 1;
        last = Some(tid);
        let is_possible = state.is_none_or(|state| has_wanted_state(filter, state));
        if is_possible {
            page.tasks.extend(find_fitting(db, filter, tid)?);
        }
    }
    Ok(page)
}

fn has_wanted_state(filter: &TaskFilter, state: TaskState) -> bool {
    filter.states.is_empty() || filter.states.contains(&state)
}

/// One task, if it matches.
pub(crate) fn find_fitting(
    db: &Connection,
    filter: &TaskFilter,
    tid: Tid,
) -> Result<Option<TaskView>, TxError> {
    match view(db, tid) {
        Ok(task) => {
            Ok(task.filter(|task| has_wanted_state(filter, task.state) && filter.matches(task)))
        }
        // An unreadable record must not hide the others.
        Err(TxError::Caller(Error::Record { .. })) if !filter.is_single_task() => Ok(None),
        Err(fail) => Err(fail),
    }
}

/// Finds ids by their last digits. Such ids are equidistant, so each candidate is one lookup by
/// primary key, without an index. Each lookup returns the next existing id below, so that gaps cost
/// nothing.
fn resolve_short(db: &Connection, short: ShortTid) -> Result<Vec<Tid>, TxError> {
    let mut below = db.prepare_cached("SELECT max(tid) FROM tasks WHERE tid <= ?1")?;
    let mut found = Vec::new();
    let mut candidate = short.at_most(i64::MAX as u64);
    while let Some(wanted) = candidate {
        let there: Option<i64> = below.query_row([wanted as i64], |row| row.get(0))?;
        let Some(there) = there.map(|tid| tid as u64) else {
            break;
        };
        if there == wanted {
            found.extend(Tid::from_u64(wanted));
        }
        candidate = short.at_most(there.min(wanted - 1));
    }
    Ok(found)
}
