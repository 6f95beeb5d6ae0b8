//! The speed of the machine without Raddle.

use std::{
    ffi::{CStr, CString},
    os::unix::ffi::OsStrExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rusqlite::Connection;

/// Spawns `/bin/true` and waits for it `count` times, `parallel` at a time.
pub(crate) fn spawns(count: usize, parallel: usize) -> Duration {
    spawns_of_program(Path::new("/bin/true"), count, parallel)
}

/// The same with another program that exits at once.
pub(crate) fn spawns_of_program(program: &Path, count: usize, parallel: usize) -> Duration {
    let program = CString::new(program.as_os_str().as_bytes()).expect("no NUL in it");
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..parallel {
            scope.spawn(|| (0..count / parallel).for_each(|_| spawn_and_wait(&program)));
        }
    });
    began.elapsed()
}

fn spawn_and_wait(program: &CStr) {
    let argv = [program.as_ptr().cast_mut(), std::ptr::null_mut()];
    let mut pid = 0;
    // SAFETY: the arrays end with a null pointer and live until the call returns.
    let error = unsafe {
        libc::posix_spawn(
            &mut pid,
            program.as_ptr(),
            std::ptr::null(),
            std::ptr::null(),
            argv.as_ptr(),
            environ,
        )
    };
    assert_eq!(error, 0, "{program:?} can be started");
    let mut status = 0;
    // SAFETY: `pid` is a child of this process that was not waited for.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!((waited, status), (pid, 0));
}

unsafe extern "C" {
    static environ: *const *mut libc::c_char;
}

/// A table in a fresh database, for rows of `payload`.
pub(crate) struct Inserts {
    connection: Connection,
    payload: String,
}

impl Inserts {
    /// Opens the database. Every commit is synced to disk, as in a durable submit.
    pub(crate) fn new(directory: &Path, payload: &str) -> Self {
        let connection =
            Connection::open(directory.join("floor.db")).expect("a database can be made");
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 4000;
                 CREATE TABLE rows (id INTEGER PRIMARY KEY, body TEXT NOT NULL);",
            )
            .expect("a table can be made");
        let inserts = Self {
            connection,
            payload: payload.into(),
        };
        // The first commit also writes the header of the WAL.
        inserts.insert(1, 1);
        inserts
    }

    /// Inserts `count` rows in transactions of `group`.
    pub(crate) fn insert(&self, count: usize, group: usize) -> Duration {
        let began = Instant::now();
        for _ in 0..count / group {
            let transaction = self
                .connection
                .unchecked_transaction()
                .expect("there is no other writer");
            {
                let mut insert = transaction
                    .prepare_cached("INSERT INTO rows (body) VALUES (?1)")
                    .expect("it is SQL");
                for _ in 0..group {
                    insert.execute([&self.payload]).expect("there is room");
                }
            }
            transaction.commit().expect("there is room");
        }
        began.elapsed()
    }
}
