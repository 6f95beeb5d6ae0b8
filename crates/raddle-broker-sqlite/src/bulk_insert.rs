//! Many rows with one statement: a step of the engine costs more than a row.

use raddle_model::Tid;
use rusqlite::{Connection, Statement, ToSql};

/// How many rows a statement may take, the most first. What does not fill one goes to the next.
const SIZES: [usize; 3] = [64, 8, 1];

/// One statement, written out for each size.
pub(super) struct BulkStatement {
    sql: [String; SIZES.len()],
}

/// The values of one row, as they are bound to a statement for many.
pub(super) struct BoundRow<'s, 'c> {
    statement: &'s mut Statement<'c>,
    next: usize,
}

impl BulkStatement {
    /// Inserts rows of so many columns into `target`, a table with its columns.
    ///
    /// `OR ROLLBACK` spares SQLite the journal that would undo half a statement: no such row can be there already, and if one were,
    /// the whole transaction must go.
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

    /// A statement that ends in `IN`, followed by keys.
    pub(super) fn keys(sql: &str) -> Self {
        Self {
            sql: SIZES.map(|keys| format!("{sql} {}", tuple(keys))),
        }
    }

    /// Runs the statement for `rows`, whose values `bind` gives one by one.
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

    /// Runs the statement for `keys`, and gives what it finds to `found`.
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
