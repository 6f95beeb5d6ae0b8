//! A new database as a file: what SQLite would write after `CREATE TABLE`s, without asking it to.
//!
//! Compiling and running the statements takes longer than starting a process, and `raddle run` in a new folder would wait for it. The
//! format is documented (<https://www.sqlite.org/fileformat2.html>) and will not change: a first page with a header and the
//! schema, then one empty page for each table and index. A test holds it against what SQLite makes of the same statements.

use std::{
    io::{self, IoSlice, Write},
    iter,
};

use super::schema::{APPLICATION_ID, STATEMENTS, VERSION};

pub(super) const PAGE_BYTES: usize = 4096;
const HEADER_BYTES: usize = 100;
/// Kinds of pages: the end of a tree of rows, and of one of keys.
const ROW_LEAF: u8 = 0x0d;
const KEY_LEAF: u8 = 0x0a;
/// The release of SQLite whose format this is: 3.37.0, any from there on reads it.
const WRITTEN_BY: u32 = 3_037_000;

pub(super) type Page = [u8; PAGE_BYTES];

/// The whole file. All its pages but the first are one of two, so that it takes the memory of three.
pub(super) struct Image {
    first: Page,
    /// A tree without rows, and one without keys.
    leaves: [Page; 2],
    /// Which of them each page after the first is.
    which: [usize; STATEMENTS.len()],
}

impl Image {
    pub(super) const PAGES: usize = 1 + STATEMENTS.len();

    pub(super) fn new() -> Self {
        let mut image = Self { first: [0; PAGE_BYTES], leaves: [[0; PAGE_BYTES]; 2], which: [0; STATEMENTS.len()] };
        for (page, kind) in image.leaves.iter_mut().zip([ROW_LEAF, KEY_LEAF]) {
            leaf(page, 0, kind, &[]);
        }
        let mut cells = Vec::with_capacity(STATEMENTS.len());
        // Row by row, the first with the second page of the file.
        for ((statement, row), which) in STATEMENTS.iter().zip(1..).zip(&mut image.which) {
            let entry = Entry::parse(statement);
            *which = usize::from(!entry.has_rows);
            cells.push(entry.cell(row, row + 1));
        }
        leaf(&mut image.first, HEADER_BYTES, ROW_LEAF, &cells);
        image.first[..HEADER_BYTES].copy_from_slice(&header(Self::PAGES as u32));
        image
    }

    pub(super) fn pages(&self) -> impl Iterator<Item = &Page> {
        iter::once(&self.first).chain(self.which.iter().map(|which| &self.leaves[*which]))
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
    assert!(place <= start, "the schema fits into the first page");
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
        // Text of n bytes is of type 13 + 2n, a number of one byte of type 1.
        let text = |text: &str| 13 + 2 * text.len() as u64;
        let types = [text(self.kind), text(self.name), text(self.table), 1, text(self.sql)];
        let mut record = Vec::with_capacity(self.sql.len() + 64);
        // The length of this head comes first in it, and is one byte long.
        record.push(0);
        types.into_iter().for_each(|kind| varint(&mut record, kind));
        record[0] = record.len() as u8;
        for text in [self.kind, self.name, self.table] {
            record.extend_from_slice(text.as_bytes());
        }
        record.push(root_page);
        record.extend_from_slice(self.sql.as_bytes());
        let mut cell = Vec::with_capacity(record.len() + 4);
        varint(&mut cell, record.len() as u64);
        varint(&mut cell, u64::from(row));
        cell.extend_from_slice(&record);
        cell
    }
}

/// Writes a number of up to two bytes' worth in SQLite's way: seven bits a byte, the highest first.
fn varint(into: &mut Vec<u8>, number: u64) {
    debug_assert!(number < 1 << 14, "no statement is that long");
    if number >= 1 << 7 {
        into.push((number >> 7) as u8 | 0x80);
    }
    into.push((number & 0x7f) as u8);
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
}
