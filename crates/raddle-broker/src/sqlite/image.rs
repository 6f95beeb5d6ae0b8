//! A new database as a file: what SQLite would write after `CREATE TABLE`s, without asking it to.
//!
//! Compiling and running the statements takes longer than starting a process, and `raddle run` in a new folder would wait for it. The
//! format is documented (<https://www.sqlite.org/fileformat2.html>) and will not change: a first page with a header and the
//! schema, then one page for each table and index, which is empty or holds the few rows that a database begins with. Tests hold it against what SQLite
//! makes of the same statements.

use std::{
    io::{self, IoSlice, Write},
    iter,
};

use raddle_core::Tid;

use super::schema::{APPLICATION_ID, STATEMENTS, VERSION};

pub(super) const PAGE_BYTES: usize = 4096;
const HEADER_BYTES: usize = 100;
/// Kinds of pages: the end of a tree of rows, and of one of keys.
const ROW_LEAF: u8 = 0x0d;
const KEY_LEAF: u8 = 0x0a;
/// The release of SQLite whose format this is: 3.37.0, any from there on reads it.
const WRITTEN_BY: u32 = 3_037_000;

pub(super) type Page = [u8; PAGE_BYTES];

/// The longest record that stands on a page as a whole, in a tree of rows and in one of keys.
const LONGEST_ROW: usize = PAGE_BYTES - 35;
const LONGEST_KEY: usize = (PAGE_BYTES - 12) * 64 / 255 - 23;

/// The whole file. Most of its pages are one of two, so that it takes little memory.
pub(super) struct Image {
    first: Box<Page>,
    /// Which of [`EMPTY`] each page after the first is.
    which: [usize; STATEMENTS.len()],
    /// Those that are neither.
    filled: Vec<(usize, Box<Page>)>,
}

/// A tree without rows, and one without keys.
static EMPTY: [Page; 2] = [empty(ROW_LEAF), empty(KEY_LEAF)];

/// The only row of a table, or the only key of an index.
pub(super) struct Row<'a> {
    /// The table or index.
    pub(super) of: &'static str,
    /// Its number, in a table that has one; there the column that shows it is [`Value::Null`].
    pub(super) number: Option<i64>,
    /// All its columns, in their order.
    pub(super) values: &'a [Value<'a>],
}

/// What a column holds.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Null,
    Number(i64),
    Text(&'a str),
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<Tid> for Value<'_> {
    fn from(tid: Tid) -> Self {
        Self::Number(tid.as_i64())
    }
}

impl Image {
    pub(super) const PAGES: usize = 1 + STATEMENTS.len();

    pub(super) fn new() -> Self {
        let mut image = Self { first: blank(), which: [0; STATEMENTS.len()], filled: Vec::new() };
        let mut cells = Vec::with_capacity(STATEMENTS.len());
        // Row by row, the first with the second page of the file.
        for ((statement, row), which) in STATEMENTS.iter().zip(1..).zip(&mut image.which) {
            let entry = Entry::parse(statement);
            *which = usize::from(!entry.has_rows);
            cells.push(entry.cell(row, row + 1));
        }
        leaf(&mut *image.first, HEADER_BYTES, ROW_LEAF, &cells);
        image.first[..HEADER_BYTES].copy_from_slice(&header(Self::PAGES as u32));
        image
    }

    /// As [`new`](Self::new), with rows. `None` if one of them does not fit on a page.
    pub(super) fn with(rows: &[Row<'_>]) -> Option<Self> {
        let mut image = Self::new();
        for row in rows {
            let at = STATEMENTS.iter().position(|statement| Entry::parse(statement).name == row.of);
            let at = at.expect("rows are of tables that there are");
            let (kind, longest) = if image.which[at] == 0 { (ROW_LEAF, LONGEST_ROW) } else { (KEY_LEAF, LONGEST_KEY) };
            let record = record(row.values);
            if record.len() > longest {
                return None;
            }
            let mut cell = Vec::with_capacity(record.len() + 2 * LONGEST_VARINT);
            varint(&mut cell, record.len() as u64);
            row.number.into_iter().for_each(|number| varint(&mut cell, number as u64));
            cell.extend(record);
            let mut page = blank();
            leaf(&mut *page, 0, kind, &[cell]);
            image.filled.push((at, page));
        }
        Some(image)
    }

    pub(super) fn pages(&self) -> impl Iterator<Item = &Page> {
        let page = |(at, which): (usize, &usize)| {
            let filled = self.filled.iter().find(|(filled, _)| *filled == at);
            filled.map_or(&EMPTY[*which], |(_, page)| page)
        };
        iter::once(&*self.first).chain(self.which.iter().enumerate().map(page))
    }

    pub(super) fn write(&self, file: &mut impl Write) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = self.pages().map(|page| IoSlice::new(page)).collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            match file.write_vectored(rest)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => IoSlice::advance_slices(&mut rest, written),
            }
        }
        Ok(())
    }
}

fn header(pages: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..16].copy_from_slice(b"SQLite format 3\0");
    header[16..18].copy_from_slice(&(PAGE_BYTES as u16).to_be_bytes());
    // Written and read with a write-ahead log; no bytes reserved; the three fractions that must be these.
    header[18..24].copy_from_slice(&[2, 2, 0, 64, 32, 32]);
    let numbers = [
        (24, 1), // how often the file was changed
        (28, pages),
        (40, 1), // how often the schema was changed
        (44, 4), // the format of the schema
        (56, 1), // text is UTF-8
        (60, VERSION),
        (68, APPLICATION_ID as u32),
        (92, 1), // the change for which the number of pages holds
        (96, WRITTEN_BY),
    ];
    for (at, number) in numbers {
        header[at..at + 4].copy_from_slice(&u32::to_be_bytes(number));
    }
    header
}

/// A page of zeros, which is not made on the stack first.
fn blank() -> Box<Page> {
    vec![0; PAGE_BYTES].into_boxed_slice().try_into().expect("it is as long as a page")
}

/// A page without cells: the place of the first one is the end of the page.
const fn empty(kind: u8) -> Page {
    let mut page = [0; PAGE_BYTES];
    page[0] = kind;
    [page[5], page[6]] = (PAGE_BYTES as u16).to_be_bytes();
    page
}

/// Fills a page with cells: a head and their places from the front, `at` bytes in, the cells themselves from the back.
fn leaf(page: &mut [u8], at: usize, kind: u8, cells: &[Vec<u8>]) {
    let mut start = page.len();
    let mut place = at + 8;
    for cell in cells {
        start -= cell.len();
        page[start..start + cell.len()].copy_from_slice(cell);
        page[place..place + 2].copy_from_slice(&(start as u16).to_be_bytes());
        place += 2;
    }
    assert!(place <= start, "what stands on a page fits there");
    page[at] = kind;
    page[at + 3..at + 5].copy_from_slice(&(cells.len() as u16).to_be_bytes());
    page[at + 5..at + 7].copy_from_slice(&(start as u16).to_be_bytes());
}

/// What the schema says of one table or index.
struct Entry<'a> {
    kind: &'static str,
    name: &'a str,
    table: &'a str,
    sql: &'a str,
    /// Whether its tree holds rows by number, and not keys.
    has_rows: bool,
}

impl<'a> Entry<'a> {
    fn parse(sql: &'a str) -> Self {
        let mut words = sql.split_ascii_whitespace().filter(|word| *word != "UNIQUE").skip(1);
        let mut next = || words.next().expect("the schema states tables and indexes");
        match (next(), next()) {
            ("TABLE", name) => {
                Self { kind: "table", name, table: name, sql, has_rows: !sql.ends_with("WITHOUT ROWID") }
            }
            // The name of the table comes behind an ON.
            (_, name) => Self { kind: "index", name, table: (next(), next()).1, sql, has_rows: false },
        }
    }

    /// The row of the schema, as it stands on a page.
    fn cell(&self, row: u8, root_page: u8) -> Vec<u8> {
        let [kind, name, table, sql] = [self.kind, self.name, self.table, self.sql].map(Value::Text);
        let record = record(&[kind, name, table, Value::Number(root_page.into()), sql]);
        let mut cell = Vec::with_capacity(record.len() + 4);
        varint(&mut cell, record.len() as u64);
        varint(&mut cell, u64::from(row));
        cell.extend_from_slice(&record);
        cell
    }
}

/// A row as it is stored: the length of its head, which is one byte, the types of its columns, and what is in them.
fn record(values: &[Value<'_>]) -> Vec<u8> {
    let text = |value: &Value<'_>| if let Value::Text(text) = value { text.len() } else { 8 };
    let mut record = Vec::with_capacity(1 + values.iter().map(|value| text(value) + 3).sum::<usize>());
    record.push(0);
    values.iter().for_each(|value| varint(&mut record, value.kind()));
    record[0] = u8::try_from(record.len()).ok().filter(|len| *len < 0x80).expect("no table has that many columns");
    values.iter().for_each(|value| value.write(&mut record));
    record
}

impl Value<'_> {
    /// How many bytes a number takes that is neither 0 nor 1.
    fn width(number: i64) -> usize {
        let bits = 65 - (if number < 0 { !number } else { number }).leading_zeros() as usize;
        [1, 2, 3, 4, 6].into_iter().find(|bytes| bits <= bytes * 8).unwrap_or(8)
    }

    /// The type of a column that holds it.
    fn kind(&self) -> u64 {
        match self {
            Self::Null => 0,
            Self::Number(number @ (0 | 1)) => 8 + *number as u64,
            Self::Number(number) => match Self::width(*number) {
                8 => 6,
                6 => 5,
                bytes => bytes as u64,
            },
            Self::Text(text) => 13 + 2 * text.len() as u64,
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        match self {
            Self::Null | Self::Number(0 | 1) => {}
            Self::Number(number) => into.extend_from_slice(&number.to_be_bytes()[8 - Self::width(*number)..]),
            Self::Text(text) => into.extend_from_slice(text.as_bytes()),
        }
    }
}

const LONGEST_VARINT: usize = 9;

/// Writes a number in SQLite's way: seven bits a byte, the highest first; where that makes nine, the last has all its eight.
fn varint(into: &mut Vec<u8>, number: u64) {
    let (rest, last) = if number >> 56 != 0 { (number >> 8, Some(number as u8)) } else { (number, None) };
    let bytes = if last.is_some() { 8 } else { (64 - rest.leading_zeros()).div_ceil(7).max(1) };
    for at in (0..bytes).rev() {
        let goes_on = at > 0 || last.is_some();
        into.push((rest >> (7 * at)) as u8 & 0x7f | if goes_on { 0x80 } else { 0 });
    }
    into.extend(last);
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    fn schema(database: &Connection) -> Vec<(String, String, String, String)> {
        let mut rows = database.prepare("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY rowid").unwrap();
        rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap()
    }

    #[test]
    fn the_image_is_what_sqlite_makes_of_the_statements() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.db");
        Image::new().write(&mut std::fs::File::create(&path).unwrap()).unwrap();
        let image = Connection::open(&path).unwrap();
        let by_sqlite = Connection::open_in_memory().unwrap();
        STATEMENTS.iter().for_each(|statement| by_sqlite.execute_batch(statement).unwrap());

        assert_eq!(schema(&image), schema(&by_sqlite));
        let text = |pragma| image.pragma_query_value(None, pragma, |row| row.get::<_, String>(0)).unwrap();
        let number = |pragma| image.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(text("integrity_check"), "ok");
        assert_eq!(text("journal_mode"), "wal");
        assert_eq!(text("encoding"), "UTF-8");
        assert_eq!(number("user_version"), i64::from(VERSION));
        assert_eq!(number("application_id"), i64::from(APPLICATION_ID));
        assert_eq!(number("page_count"), Image::PAGES as i64);
    }

    #[test]
    fn rows_are_read_as_they_were_meant() {
        let numbers =
            [0, 1, -1, 2, 127, 128, -128, -129, 32_767, -32_769, 1 << 23, -(1 << 31), 1 << 31, 1 << 47, i64::MIN];
        for number in numbers.into_iter().chain([i64::MAX, 1_794_927_185_214_395_111]) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("image.db");
            let (long, none) = ("x".repeat(3000), Value::Number(0));
            let rows = [
                Row { of: "meta", number: None, values: &[Value::Text("key"), Value::Number(number)] },
                Row { of: "uniques", number: Some(number), values: &[Value::Null, Value::Text(&long)] },
                Row { of: "delayed_by_time", number: None, values: &[Value::Number(number), Value::Number(7)] },
                Row { of: "delayed", number: Some(7), values: &[Value::Null, Value::Number(number), none, none, none] },
            ];
            Image::with(&rows).unwrap().write(&mut std::fs::File::create(&path).unwrap()).unwrap();
            let image = Connection::open(&path).unwrap();
            let found: (i64, i64, String, i64) = image
                .query_row("SELECT value, uniques.tid, uniques.key, run_at FROM meta, uniques, delayed", [], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
                })
                .unwrap();
            assert_eq!(found, (number, number, long, number));
            let found: i64 =
                image.query_row("SELECT tid FROM delayed WHERE run_at = ?1", [number], |row| row.get(0)).unwrap();
            assert_eq!(found, 7, "the index leads to the row");
        }
    }

    #[test]
    fn what_needs_more_than_a_page_is_left_to_sqlite() {
        let (row, key) = ("x".repeat(LONGEST_ROW), "x".repeat(LONGEST_KEY));
        assert!(
            Image::with(&[Row { of: "uniques", number: Some(1), values: &[Value::Null, Value::Text(&row)] }]).is_none()
        );
        assert!(Image::with(&[Row { of: "meta", number: None, values: &[Value::Text(&key), Value::Null] }]).is_none());
    }
}
