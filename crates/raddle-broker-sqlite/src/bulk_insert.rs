//! Multi-row statements: executing a statement costs SQLite more than a row does.

use raddle_model::Tid;
use rusqlite::{Connection, Statement, ToSql};

/// The numbers of rows that a statement may have, largest first. Rows that do not fill one go to
/// the next.
const SIZES: [usize; 3] = [64, 8, 1];

/// One statement in all sizes.
pub(super) struct BulkStatement {
    sql: [String; SIZES.len()],
}

/// Binds the values of one row to a multi-row statement.
pub(super) struct BoundRow<'s, 'c> {
    statement: &'s mut Statement<'c>,
    next: usize,
}

impl BulkStatement {
    /// Inserts rows of `columns` columns into `target`, a table with its column list.
    ///
    /// `OR ROLLBACK` saves SQLite the statement journal. No such row can exist; if one did, the
    /// whole transaction would have to fail.
    pub(super) fn insert(target: &str, columns: usize) -> Self {
        let values = tuple(columns);
        let sql = |rows| {
            format!(
                "INSERT OR ROLLBACK INTO {target} VALUES {}",
                vec![values.as_str(); rows].join(", ")
            )
        };
        Self {
            sql: SIZES.map(sql),
        }
    }

    /// A statement that ends in `IN`, chaining by keys.
    pub(super) fn keys(sql: &str) -> Self {
        Self {
            sql: SIZES.map(|keys| format!("{sql} {}", tuple(keys))),
        }
    }

    /// Runs the statement for `rows`; `bind` binds the values of each.
    pub(super) fn write<R>(
        &self,
        db: &Connection,
        rows: &[R],
        bind: impl Fn(&mut BoundRow<'_, '_>, &R) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        self.each(db, rows, bind, |statement| {
            statement.raw_execute().map(drop)
        })
    }

    /// Runs the statement for `keys` and passes the resulting rows to `found`.
    pub(super) fn find(
        &self,
        db: &Connection,
        keys: &[Tid],
        mut found: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        self.each(
            db,
            keys,
            |row, key| row.bind(key.as_i64()),
            |statement| {
                let mut rows = statement.raw_query();
                while let Some(row) = rows.next()? {
                    found(row)?;
                }
                Ok(())
            },
        )
    }

    fn each<R>(
        &self,
        db: &Connection,
        rows: &[R],
        bind: impl Fn(&mut BoundRow<'_, '_>, &R) -> rusqlite::Result<()>,
        mut run: impl FnMut(&mut Statement<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let mut rest = rows;
        for (size, sql) in SIZES.into_iter().zip(&self.sql) {
            if rest.len() < size {
                continue;
            }
            let mut statement = db.prepare_cached(sql)?;
            while rest.len() >= size {
                let (chunk, left) = rest.split_at(size);
                let mut row = BoundRow {
                    statement: &mut statement,
                    next: 0,
                };
                chunk.iter().try_for_each(|values| bind(&mut row, values))?;
                run(&mut statement)?;
                rest = left;
            }
        }
        Ok(())
    }
}

impl BoundRow<'_, '_> {
    pub(super) fn bind(&mut self, value: impl ToSql) -> rusqlite::Result<()> {
        self.next += 1;
        self.statement.raw_bind_parameter(self.next, value)
    }
}

fn tuple(values: usize) -> String {
    format!("({})", vec!["?"; values].join(", "))
}
