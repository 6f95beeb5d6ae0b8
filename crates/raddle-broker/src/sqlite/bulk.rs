//! Many rows with one statement: a step of the engine costs more than a row.

use raddle_core::Tid;
use rusqlite::{Connection, Statement, ToSql};

/// How many rows one statement takes. What is left over goes one by one, so that only two statements are ever prepared.
const AT_ONCE: usize = 16;

/// The values of one row, as they are bound to a statement for many.
pub(super) struct Row<'s, 'c> {
    statement: &'s mut Statement<'c>,
    next: usize,
}

impl Row<'_, '_> {
    pub(super) fn bind(&mut self, value: impl ToSql) -> rusqlite::Result<()> {
        self.next += 1;
        self.statement.raw_bind_parameter(self.next, value)
    }
}

/// Inserts `rows` into `target`, a table with its columns.
///
/// `OR ROLLBACK` spares SQLite the journal that would undo half a statement: no such row can be there already, and if one were, the
/// whole transaction must go.
pub(super) fn insert<R>(
    db: &Connection,
    target: &str,
    columns: usize,
    rows: &[R],
    bind: impl Fn(&mut Row<'_, '_>, &R) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let values = tuple(columns);
    for chunk in chunks(rows) {
        let sql = format!("INSERT OR ROLLBACK INTO {target} VALUES {}", vec![values.as_str(); chunk.len()].join(", "));
        let mut statement = db.prepare_cached(&sql)?;
        let mut row = Row { statement: &mut statement, next: 0 };
        chunk.iter().try_for_each(|values| bind(&mut row, values))?;
        statement.raw_execute()?;
    }
    Ok(())
}

/// Runs a statement that ends in `IN` for `keys`.
pub(super) fn for_keys(
    db: &Connection,
    sql: &str,
    keys: &[Tid],
    mut run: impl FnMut(&mut Statement<'_>) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    for chunk in chunks(keys) {
        let mut statement = db.prepare_cached(&format!("{sql} {}", tuple(chunk.len())))?;
        for (index, key) in chunk.iter().enumerate() {
            statement.raw_bind_parameter(index + 1, key.as_i64())?;
        }
        run(&mut statement)?;
    }
    Ok(())
}

/// Cuts a list into pieces of [`AT_ONCE`], and the rest into single ones.
fn chunks<T>(list: &[T]) -> impl Iterator<Item = &[T]> {
    let many = list.chunks_exact(AT_ONCE);
    let rest = many.remainder();
    many.chain(rest.chunks(1))
}

fn tuple(values: usize) -> String {
    format!("({})", vec!["?"; values].join(", "))
}
