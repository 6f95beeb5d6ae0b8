//! Output of attempts: small output in rows, large or live output in files beside the database.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use raddle_model::{TaskState, Tid};
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;

use super::{
    HandleState, LOCK_TIMEOUT, Sqlite, file_mode, log,
    notify::Topic,
    open,
    tx::{TxError, find_attempt, find_waiting},
};
use raddle_broker::{
    AttemptId, Error, Output, OutputStream, Result, TaskCursor, TaskUpdate,
    engine::follow::{self, FollowStep, TaskPosition},
};

#[async_trait]
impl Output for Sqlite {
    async fn read_output(
        &self,
        tid: Tid,
        attempt: u32,
        stream: OutputStream,
        offset: u64,
        max: u32,
    ) -> Result<Vec<u8>> {
        let directory = self.shared.output_directory();
        self.read(move |db| read(db, &directory, tid, attempt, stream, offset, max))
            .await
    }

    async fn follow(&self, tid: Tid, cursor: TaskCursor, wait: Duration) -> Result<TaskUpdate> {
        let mut cursor = cursor;
        let mut wait = self.wait(Topic::Log, wait);
        loop {
            let from = cursor;
            let query = move |db: &Connection| {
                Ok((position(db, tid)?, log::select_of(db, tid, from.event)?))
            };
            let (position, range) = self.read(query).await?;
            let progress = follow::read_update(self, tid, position, range, from).await?;
            let step = follow::next_step(cursor, &progress);
            cursor = progress.cursor;
            if step == FollowStep::Return || step == FollowStep::Wait && !wait.next(None).await {
                return Ok(progress);
            }
        }
    }
}

impl Sqlite {
    /// Appends to the output of an attempt. Output of a stale attempt is dropped silently: its
    /// worker learns of that when it completes the attempt.
    pub(super) async fn append(
        &self,
        attempt_id: AttemptId,
        stream: OutputStream,
        bytes: Vec<u8>,
    ) -> Result<()> {
        self.write_in_order(move |shared, db| {
            if write_current(shared, db, attempt_id, stream, WritePosition::End, &bytes)?.is_some()
            {
                shared.notifier.notify(Topic::Log.into());
            }
            Ok(())
        })
        .await
    }

    /// Runs `work`, which writes output, after all earlier ones, so that each sees the end of the
    /// file. Skipped if the caller stops waiting before.
    ///
    /// It does not run on the writer thread, which may wait for the write lock while a stopped
    /// process holds it for hours; the command would block on its output. It has a connection of
    /// its own that only reads the WAL and takes no lock.
    ///
    /// The turn is awaited before a blocking thread is taken: if a file system hangs, one thread
    /// hangs with it, and not one per chunk until the pool is exhausted. Work that has begun is
    /// awaited without a limit, because its outcome is unknown.
    pub(super) async fn write_in_order<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&HandleState, &Connection) -> Result<T> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let turn = tokio::time::timeout(
            LOCK_TIMEOUT,
            Arc::clone(&shared.output_connection).lock_owned(),
        )
        .await;
        let mut output_connection = turn.map_err(|_| Error::Locked {
            path: shared.output_directory(),
            secs: LOCK_TIMEOUT.as_secs(),
            holder: " by output that is being written".into(),
        })?;
        let (reply, answer) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            if reply.is_closed() {
                return;
            }
            let connected = match &mut *output_connection {
                Some(db) => Ok(db),
                none => open::connection(&shared.location).map(|db| none.insert(db)),
            };
            let done = connected.and_then(|db| work(&shared, db));
            // Released before the reply: the caller may go on with the next chunk at once.
            drop(output_connection);
            let _ = reply.send(done);
        });
        answer.await.unwrap_or(Err(Error::Closed))
    }
}

/// Whether an attempt is still the current one.
fn is_current_attempt(
    shared: &HandleState,
    db: &Connection,
    attempt_id: AttemptId,
) -> Result<bool> {
    Ok(find_attempt(db, attempt_id)
        .map_err(|e| shared.error(&e))?
        .is_some())
}

/// The position of a write.
pub(super) enum WritePosition {
    /// At the end of the file.
    End,
    /// At this offset, over existing bytes: a write is repeated if the first was not committed.
    Offset(u64),
}

/// The result of a write.
pub(super) struct WrittenOutput {
    file: File,
    path: PathBuf,
    /// Whether the file was empty or did not exist.
    is_first: bool,
    /// The number of missing bytes before the written ones.
    pub(super) missing: u64,
}

impl WrittenOutput {
    /// Syncs the file, so that the last bytes of an attempt are as durable as the record that
    /// points to them. To be called outside of the turn, so that a slow disk delays no other
    /// output.
    pub(super) async fn sync(self, tid: Tid) {
        let synced = tokio::task::spawn_blocking(move || self.file.sync_data()).await;
        if let Err(error) = synced.map_err(io::Error::other).flatten() {
            // A power cut may lose this output, but not the task.
            tracing::warn!(%tid, %error, "output may not survive a power cut");
        }
    }
}

/// Writes to the file of one stream, all or nothing. `None` if the attempt is stale.
pub(super) fn write_current(
    shared: &HandleState,
    db: &Connection,
    attempt_id: AttemptId,
    stream: OutputStream,
    whereto: WritePosition,
    bytes: &[u8],
) -> Result<Option<WrittenOutput>> {
    if !is_current_attempt(shared, db, attempt_id)? {
        return Ok(None);
    }
    keep_if_current(
        shared,
        db,
        attempt_id,
        write(shared, attempt_id, stream, whereto, bytes)?,
    )
}

/// Removes a file that was created for a stale attempt. The process may have been stopped between
/// checking the attempt and writing until the task was purged; nothing else would remove the file.
fn keep_if_current(
    shared: &HandleState,
    db: &Connection,
    attempt_id: AttemptId,
    written: WrittenOutput,
) -> Result<Option<WrittenOutput>> {
    if written.is_first && !is_current_attempt(shared, db, attempt_id)? {
        let _ = fs::remove_file(&written.path);
        return Ok(None);
    }
    Ok(Some(written))
}

fn write(
    shared: &HandleState,
    attempt_id: AttemptId,
    stream: OutputStream,
    whereto: WritePosition,
    bytes: &[u8],
) -> Result<WrittenOutput> {
    let directory = shared.output_directory();
    let path = file_of(&directory, attempt_id.tid, attempt_id.attempt, stream);
    let open = || {
        file_mode::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
    };
    let write = || -> io::Result<WrittenOutput> {
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_directory(shared, &directory)?;
                open()?
            }
            opened => opened?,
        };
        let found = file.metadata()?;
        let length = found.len();
        if length == 0 {
            file_mode::keep(&file, &found)?;
            file_mode::give(&file, &shared.path)?;
        }
        let wanted = match whereto {
            WritePosition::End => length,
            WritePosition::Offset(offset) => offset,
        };
        let offset = wanted.min(length);
        file.write_all_at(bytes, offset).inspect_err(|_| {
            // Remove a partial write: the caller sends all of it again.
            let _ = file.set_len(offset);
        })?;
        Ok(WrittenOutput {
            file,
            path: path.clone(),
            is_first: length == 0,
            missing: wanted - offset,
        })
    };
    write().map_err(|error| Error::io(&path, &error))
}

fn make_directory(shared: &HandleState, directory: &Path) -> io::Result<()> {
    match file_mode::make_directory(directory) {
        Ok(()) => file_mode::give(File::open(directory)?, &shared.path),
        // Another slot has created it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Deletes the output files of all attempts of a task.
pub(super) fn remove(directory: &Path, tid: Tid, attempts: u32) {
    for attempt in 1..=attempts {
        for stream in OutputStream::BOTH {
            let _ = fs::remove_file(file_of(directory, tid, attempt, stream));
        }
    }
}

fn file_of(directory: &Path, tid: Tid, attempt: u32, stream: OutputStream) -> PathBuf {
    let suffix = match stream {
        OutputStream::Stdout => "out",
        OutputStream::Stderr => "err",
    };
    directory.join(format!("{tid}.{attempt}.{suffix}"))
}

fn read(
    db: &Connection,
    directory: &Path,
    tid: Tid,
    attempt: u32,
    stream: OutputStream,
    offset: u64,
    max: u32,
) -> Result<Vec<u8>, TxError> {
    let path = file_of(directory, tid, attempt, stream);
    match File::open(&path) {
        Ok(file) => {
            // Never allocate more than there is, whatever a remote client asks for.
            let there = file
                .metadata()
                .map_or(0, |file| file.len())
                .saturating_sub(offset);
            let mut bytes = vec![0; there.min(max.into()) as usize];
            let mut filled = 0;
            while filled < bytes.len() {
                match file.read_at(&mut bytes[filled..], offset + filled as u64) {
                    Ok(0) => break,
                    Ok(read) => filled += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(Error::io(&path, &error).into()),
                }
            }
            bytes.truncate(filled);
            Ok(bytes)
        }
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            let bytes = db
                .prepare_cached(
                    "SELECT substr(bytes, ?4, ?5) FROM outputs WHERE tid = ?1 AND attempt = ?2 AND stream = ?3",
                )?
                .query_row(params![tid.as_i64(), attempt, stream as u8, offset.saturating_add(1) as i64, max], |row| {
                    row.get(0)
                })
                .optional()?;
            Ok(bytes.unwrap_or_default())
        }
        Err(error) => Err(Error::io(&path, &error).into()),
    }
}

fn position(db: &Connection, tid: Tid) -> Result<TaskPosition, TxError> {
    let sql = "SELECT attempt, NULL FROM active WHERE tid = ?1 UNION ALL SELECT attempt, state FROM finished WHERE tid = ?1";
    let found = db.prepare_cached(sql)?.query_row([tid.as_i64()], |row| {
        Ok(TaskPosition {
            attempt: row.get(0)?,
            done: row.get::<_, Option<u8>>(1)?.and_then(TaskState::from_u8),
        })
    });
    match found.optional()? {
        Some(position) => Ok(position),
        None => {
            let waiting = find_waiting(db, tid)?.ok_or(Error::NotFound(tid))?;
            Ok(TaskPosition {
                attempt: waiting.counters.attempt,
                done: None,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn removes_the_file_of_a_late_write_to_a_purged_task() {
        let directory = tempfile::tempdir().unwrap();
        let broker = Sqlite::open(&directory.path().join("broker.db"))
            .await
            .unwrap();
        let tid: Tid = "1794800817069096960".parse().unwrap();
        let attempt_id = AttemptId {
            tid,
            attempt: 1,
            owner: tid,
        };
        // Skips the first check, as if the task had still existed then.
        let work = move |shared: &HandleState, db: &Connection| {
            let written = write(
                shared,
                attempt_id,
                OutputStream::Stdout,
                WritePosition::End,
                b"late",
            )?;
            assert!(written.path.exists());
            keep_if_current(shared, db, attempt_id, written).map(|kept| kept.is_some())
        };
        assert!(!broker.write_in_order(work).await.unwrap());
        assert_eq!(
            fs::read_dir(broker.shared.output_directory())
                .unwrap()
                .count(),
            0
        );
    }
}
