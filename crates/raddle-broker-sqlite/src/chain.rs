//! Tasks that running attempts have chained.
//!
//! They are rows of `chained`; `active` holds their totals, NULL for almost all attempts, so that
//! the completion of an attempt without chained tasks costs nothing more. Chained tasks need no
//! sync of their own: they precede the completion in the WAL, which is synced, and without the
//! completion the attempt is lost too and runs again.

use std::sync::LazyLock;

use raddle_model::Tid;
use rusqlite::{OptionalExtension, params, types::Type};

use super::{
    bulk_insert::BulkStatement,
    complete::refuse,
    submit::{PreparedTask, submit},
    tx::{Tx, TxError},
};
use raddle_broker::{AttemptId, Error, engine::ChainTotals};

static INSERT: LazyLock<BulkStatement> =
    LazyLock::new(|| BulkStatement::insert("chained (tid, n, spec)", 3));

/// Chains serialised tasks to an attempt. Returns how many it has chained, or `None` if it is
/// stale.
pub(super) fn chain(
    tx: &mut Tx<'_>,
    attempt_id: AttemptId,
    specs: &[String],
    offset: Option<u64>,
) -> Result<Option<u64>, TxError> {
    let tid = attempt_id.tid.as_i64();
    // The task of a worker itself is never completed by an attempt.
    let found: Option<Option<String>> = tx
        .db()
        .prepare_cached("SELECT chained FROM active WHERE tid = ?1 AND attempt = ?2 AND owner = ?3 AND owner != tid")?
        .query_row(params![tid, attempt_id.attempt, attempt_id.owner.as_i64()], |row| row.get(0))
        .optional()?;
    let Some(text) = found else {
        if !tx
            .db()
            .prepare_cached("SELECT 1 FROM tasks WHERE tid = ?1")?
            .exists([tid])?
        {
            return Err(Error::NotFound(attempt_id.tid).into());
        }
        refuse(tx, attempt_id)?;
        return Ok(None);
    };
    let mut account = parse(attempt_id.tid, text.as_deref())?;
    let first = account.tasks;
    let sizes: Vec<usize> = specs.iter().map(String::len).collect();
    let known = account.add(attempt_id, offset, &sizes)?;
    let rows: Vec<(u64, &String)> = (first..).zip(&specs[known..]).collect();
    INSERT.write(tx.db(), &rows, |row, (n, spec)| {
        row.bind(tid)?;
        row.bind(*n as i64)?;
        row.bind(spec.as_str())
    })?;
    tx.db()
        .prepare_cached("UPDATE active SET chained = ?2 WHERE tid = ?1")?
        .execute(params![tid, account.to_string()])?;
    Ok(Some(account.tasks))
}

/// Submits the tasks that successful attempts have chained. Their own unique keys are free by now,
/// so a task may chain itself.
pub(super) fn follow_up(tx: &mut Tx<'_>, parents: &[Tid]) -> Result<(), TxError> {
    let mut follow_ups = Vec::new();
    for parent in parents {
        let specs: Vec<String> = tx
            .db()
            .prepare_cached("SELECT spec FROM chained WHERE tid = ?1 ORDER BY n")?
            .query_map([parent.as_i64()], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        for text in specs {
            // An unreadable spec must not be lost silently. The transaction is rolled back; the
            // attempt is reclaimed and chains again.
            let unreadable =
                |e| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(e));
            let spec = serde_json::from_str(&text).map_err(unreadable)?;
            follow_ups.push(PreparedTask {
                spec,
                text,
                parent: Some(*parent),
            });
        }
        discard(tx, *parent)?;
    }
    if !follow_ups.is_empty() {
        submit(tx, follow_ups)?;
    }
    Ok(())
}

/// Deletes what an attempt has chained.
pub(super) fn discard(tx: &Tx<'_>, tid: Tid) -> rusqlite::Result<()> {
    tx.db()
        .prepare_cached("DELETE FROM chained WHERE tid = ?1")?
        .execute([tid.as_i64()])?;
    Ok(())
}

/// Parses the totals of an attempt as `active` holds them.
pub(super) fn parse(tid: Tid, text: Option<&str>) -> Result<ChainTotals, Error> {
    let account = text.map(str::parse).transpose();
    account
        .map(Option::unwrap_or_default)
        .map_err(|reason: &str| Error::Record {
            tid,
            reason: reason.into(),
        })
}
