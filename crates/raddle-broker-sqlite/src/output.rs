//! What attempts wrote: small output in rows, large or live output in files beside the database.

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
    HandleState, LOCK_PATIENCE, Sqlite, file_mode, log,
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
            let look = move |db: &Connection| {
                Ok((standing(db, tid)?, log::select_of(db, tid, from.event)?))
            };
            let (standing, stretch) = self.read(look).await?;
            let progress = follow::read_update(self, tid, standing, stretch, from).await?;
            let then = follow::next_step(cursor, &progress);
            cursor = progress.cursor;
            if then == FollowStep::Return || then == FollowStep::Wait && !wait.again(None).await {
                return Ok(progress);
            }
        }
    }
}

impl Sqlite {
    /// Adds to the output of an attempt. What comes late is passed over without a word: its worker learns of it with its next verdict.
    pub(super) async fn append(
        &self,
        attempt_id: AttemptId,
        stream: OutputStream,
        bytes: Vec<u8>,
    ) -> Result<()> {
        self.in_turn(move |shared, db| {
            if write_latest(shared, db, attempt_id, stream, WritePosition::End, &bytes)?.is_some() {
                shared.bell.ring(Topic::Log.into());
            }
            Ok(())
        })
        .await
    }

    /// Does what writes output, one piece after the other, so that each finds the end of the one before. What nobody waits for any more when
    /// its turn comes is passed over.
    ///
    /// The thread that has the database may stand still for the write lock, which a stopped process can hold for hours, and the command stands
    /// still with its output. So what has to be looked up for it is looked up elsewhere, where only the log is read and no lock is taken.
    ///
    /// The turn is waited for before there is a thread for it: where a file system stands still, one thread stands still with it, and not one for each
    /// piece until there are no more. What has begun is waited for without an end, because nobody can say whether it will be written.
    pub(super) async fn in_turn<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&HandleState, &Connection) -> Result<T> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let turn =
            tokio::time::timeout(LOCK_PATIENCE, Arc::clone(&shared.outlet).lock_owned()).await;
        let mut outlet = turn.map_err(|_| Error::Locked {
            path: shared.output_directory(),
            secs: LOCK_PATIENCE.as_secs(),
            holder: " by output that is being written".into(),
        })?;
        let (reply, answer) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            if reply.is_closed() {
                return;
            }
            let connected = match &mut *outlet {
                Some(db) => Ok(db),
                none => open::connection(&shared.place).map(|db| none.insert(db)),
            };
            let done = connected.and_then(|db| work(&shared, db));
            // Whoever hears of it may have the next turn.
            drop(outlet);
            let _ = reply.send(done);
        });
        answer.await.unwrap_or(Err(Error::Closed))
    }
}

/// Whether an attempt is still the latest of its task.
fn is_latest(shared: &HandleState, db: &Connection, attempt_id: AttemptId) -> Result<bool> {
    Ok(find_attempt(db, attempt_id)
        .map_err(|e| shared.error(&e))?
        .is_some())
}

/// Where in a file to write.
pub(super) enum WritePosition {
    /// Behind what is there.
    End,
    /// Here, and over what is there: the same write may come twice when the first was not committed.
    Offset(u64),
}

/// What was written to a file.
pub(super) struct WrittenOutput {
    file: File,
    path: PathBuf,
    /// Whether the file was empty, or is new.
    is_first: bool,
    /// How many bytes are missing before it.
    pub(super) missing: u64,
}

impl WrittenOutput {
    /// Syncs a file whose last bytes these are: it is to be as durable as the record that will point to it. This is for after the turn, so that a slow disk
    /// holds up no other output.
    pub(super) async fn sync(self, tid: Tid) {
        let synced = tokio::task::spawn_blocking(move || self.file.sync_data()).await;
        if let Err(error) = synced.map_err(io::Error::other).flatten() {
            // It costs output after a power cut, not the task.
            tracing::warn!(%tid, %error, "output may not survive a power cut");
        }
    }
}

/// Writes to the file of one stream, all or nothing. `None` if the attempt is not the latest of its task any more.
pub(super) fn write_latest(
    shared: &HandleState,
    db: &Connection,
    attempt_id: AttemptId,
    stream: OutputStream,
    whereto: WritePosition,
    bytes: &[u8],
) -> Result<Option<WrittenOutput>> {
    if !is_latest(shared, db, attempt_id)? {
        return Ok(None);
    }
    keep_if_latest(
        shared,
        db,
        attempt_id,
        write(shared, attempt_id, stream, whereto, bytes)?,
    )
}

/// Removes a file that was made for an attempt which is not the latest any more. This process may have been stopped between its look at the attempt and
/// its write, until the task was purged: then nothing else would remove the file.
fn keep_if_latest(
    shared: &HandleState,
    db: &Connection,
    attempt_id: AttemptId,
    written: WrittenOutput,
) -> Result<Option<WrittenOutput>> {
    if written.is_first && !is_latest(shared, db, attempt_id)? {
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
            // Half of it must not stay: the whole will come again.
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
        // Another slot has made it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes the files of a task's attempts.
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
            // No more than there is, whatever a client of an agent asks for.
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

fn standing(db: &Connection, tid: Tid) -> Result<TaskPosition, TxError> {
    let sql = "SELECT attempt, NULL FROM active WHERE tid = ?1 UNION ALL SELECT attempt, state FROM done WHERE tid = ?1";
    let found = db.prepare_cached(sql)?.query_row([tid.as_i64()], |row| {
        Ok(TaskPosition {
            attempt: row.get(0)?,
            done: row.get::<_, Option<u8>>(1)?.and_then(TaskState::from_u8),
        })
    });
    match found.optional()? {
        Some(standing) => Ok(standing),
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
    async fn a_late_write_of_a_purged_task_leaves_no_file_behind() {
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
        // As if the task had been there when its attempt was looked up.
        let work = move |shared: &HandleState, db: &Connection| {
            let written = write(
                shared,
                attempt_id,
                OutputStream::Stdout,
                WritePosition::End,
                b"late",
            )?;
            assert!(written.path.exists());
            keep_if_latest(shared, db, attempt_id, written).map(|kept| kept.is_some())
        };
        assert!(!broker.in_turn(work).await.unwrap());
        assert_eq!(
            fs::read_dir(broker.shared.output_directory())
                .unwrap()
                .count(),
            0
        );
    }
}
