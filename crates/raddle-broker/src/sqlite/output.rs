//! What attempts wrote: small output in rows, large or live output in files beside the database.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use raddle_core::Tid;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;

use super::{
    LOCK_PATIENCE, Shared, Sqlite,
    bell::Topic,
    log, open, private,
    tx::{Fail, find_active, find_done, find_waiting, tally},
};
use crate::{
    Cursor, Error, Fence, Output, Progress, Result, Stream,
    follow::{self, AT_ONCE, Look, Piece, Standing, Then},
};

#[async_trait]
impl Output for Sqlite {
    async fn append_output(&self, fence: Fence, stream: Stream, bytes: Vec<u8>) -> Result<()> {
        self.in_turn(move |shared, db| {
            // What comes late is passed over without a word: its worker learns of it with its next verdict.
            if is_latest(shared, db, fence)? {
                write(shared, fence, stream, Whereto::End, &bytes)?;
                shared.bell.ring(Topic::Log.into());
            }
            Ok(())
        })
        .await
    }

    async fn read_output(&self, fence: Fence, stream: Stream, offset: u64, max: u32) -> Result<Vec<u8>> {
        let folder = self.shared.output_folder();
        self.read(move |db| read(db, &folder, fence, stream, offset, max)).await
    }

    async fn follow(&self, tid: Tid, cursor: Cursor, wait: Duration) -> Result<Progress> {
        let mut cursor = cursor;
        let mut wait = self.wait(Topic::Log, wait);
        loop {
            let (folder, from) = (self.shared.output_folder(), cursor);
            let progress = self.read(move |db| progress(db, &folder, tid, from)).await?;
            let then = follow::then(cursor, &progress);
            cursor = progress.cursor;
            if then == Then::Give || then == Then::Wait && !wait.again(None).await {
                return Ok(progress);
            }
        }
    }
}

impl Sqlite {
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
        F: FnOnce(&Shared, &Connection) -> Result<T> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let turn = tokio::time::timeout(LOCK_PATIENCE, Arc::clone(&shared.outlet).lock_owned()).await;
        let mut outlet = turn.map_err(|_| Error::Locked {
            path: shared.output_folder(),
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
pub(super) fn is_latest(shared: &Shared, db: &Connection, fence: Fence) -> Result<bool> {
    let active = find_active(db, fence.tid).map_err(|e| shared.error(&e))?;
    Ok(active.is_some_and(|active| active.tally.attempt == fence.attempt))
}

/// Where in a file to write.
pub(super) enum Whereto {
    /// Behind what is there.
    End,
    /// Here, and over what is there: the same write may come twice when the first was not committed.
    Offset(u64),
}

/// Writes to the file of one stream, all or nothing. Returns how many bytes are missing before them.
pub(super) fn write(shared: &Shared, fence: Fence, stream: Stream, whereto: Whereto, bytes: &[u8]) -> Result<u64> {
    let folder = shared.output_folder();
    let path = file_of(&folder, fence, stream);
    let open = || private::options().write(true).create(true).truncate(false).open(&path);
    let write = || -> io::Result<u64> {
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_folder(shared, &folder)?;
                open()?
            }
            opened => opened?,
        };
        let found = file.metadata()?;
        let length = found.len();
        if length == 0 {
            private::keep(&file, &found)?;
            private::give(&file, &shared.path)?;
        }
        let wanted = match whereto {
            Whereto::End => length,
            Whereto::Offset(offset) => offset,
        };
        let offset = wanted.min(length);
        file.write_all_at(bytes, offset).inspect_err(|_| {
            // Half of it must not stay: the whole will come again.
            let _ = file.set_len(offset);
        })?;
        Ok(wanted - offset)
    };
    write().map_err(|error| Error::io(&path, &error))
}

fn make_folder(shared: &Shared, folder: &Path) -> io::Result<()> {
    match private::make_folder(folder) {
        Ok(()) => private::give(File::open(folder)?, &shared.path),
        // Another slot has made it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes the files of an attempt as durable as the record that will point to them.
pub(super) fn sync(shared: &Shared, fence: Fence, stream: Stream) -> io::Result<()> {
    File::open(file_of(&shared.output_folder(), fence, stream))?.sync_data()
}

/// Removes the files of a task's attempts.
pub(super) fn remove(folder: &Path, tid: Tid, attempts: u32) {
    for attempt in 1..=attempts {
        for stream in Stream::BOTH {
            let _ = fs::remove_file(file_of(folder, Fence { tid, attempt }, stream));
        }
    }
}

/// The oldest tasks after an id that have files there, at most so many, with these files. What is not named like one is somebody else's.
pub(super) fn files_after(folder: &Path, after: i64, most: usize) -> BTreeMap<Tid, Vec<PathBuf>> {
    let mut found: BTreeMap<Tid, Vec<PathBuf>> = BTreeMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Some(tid) = entry.file_name().to_str().and_then(task_of).filter(|tid| tid.as_i64() > after) else {
            continue;
        };
        found.entry(tid).or_default().push(entry.path());
        if found.len() > most {
            found.pop_last();
        }
    }
    found
}

/// The task whose file has this name.
fn task_of(name: &str) -> Option<Tid> {
    let (stem, _) = name.rsplit_once('.').filter(|(_, suffix)| ["out", "err"].contains(suffix))?;
    let (tid, attempt) = stem.split_once('.')?;
    attempt.parse::<u32>().ok()?;
    tid.parse().ok()
}

fn file_of(folder: &Path, fence: Fence, stream: Stream) -> PathBuf {
    let suffix = match stream {
        Stream::Stdout => "out",
        Stream::Stderr => "err",
    };
    folder.join(format!("{}.{}.{suffix}", fence.tid, fence.attempt))
}

fn read(db: &Connection, folder: &Path, fence: Fence, stream: Stream, offset: u64, max: u32) -> Result<Vec<u8>, Fail> {
    let path = file_of(folder, fence, stream);
    match File::open(&path) {
        Ok(file) => {
            // No more than there is, whatever a client of an agent asks for.
            let there = file.metadata().map_or(0, |file| file.len()).saturating_sub(offset);
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
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            let bytes = db
                .prepare_cached(
                    "SELECT substr(bytes, ?4, ?5) FROM outputs WHERE tid = ?1 AND attempt = ?2 AND stream = ?3",
                )?
                .query_row(
                    params![fence.tid.as_i64(), fence.attempt, stream as u8, offset.saturating_add(1) as i64, max],
                    |row| row.get(0),
                )
                .optional()?;
            Ok(bytes.unwrap_or_default())
        }
        Err(error) => Err(Error::io(&path, &error).into()),
    }
}

fn progress(db: &Connection, folder: &Path, tid: Tid, from: Cursor) -> Result<Progress, Fail> {
    let standing = standing(db, tid)?;
    let stretch = log::select_of(db, tid, from.event)?;
    let mut look = Look::new(tid, standing, stretch, from);
    while let Some(Piece { fence, stream, offset }) = look.wanted() {
        look.add(read(db, folder, fence, stream, offset, AT_ONCE)?);
    }
    Ok(look.progress())
}

fn standing(db: &Connection, tid: Tid) -> Result<Standing, Fail> {
    if let Some(active) = find_active(db, tid)? {
        return Ok(Standing { attempt: active.tally.attempt, done: None });
    }
    if let Some(state) = find_done(db, tid)? {
        let last = db
            .prepare_cached("SELECT attempt, failures, losses FROM done WHERE tid = ?1")?
            .query_row([tid.as_i64()], |row| tally(row, 0))?;
        return Ok(Standing { attempt: last.attempt, done: Some(state) });
    }
    let waiting = find_waiting(db, tid)?.ok_or(Error::NotFound(tid))?;
    Ok(Standing { attempt: waiting.tally.attempt, done: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_their_tasks_the_oldest_first() {
        let folder = tempfile::tempdir().unwrap();
        let tids: Vec<Tid> = (0..4).map(|n| Tid::from_u64(1_763_248_964_000_000_000 + n).unwrap()).collect();
        for tid in tids.iter().rev() {
            for (attempt, stream) in [(1, Stream::Stdout), (2, Stream::Stderr)] {
                fs::write(file_of(folder.path(), Fence { tid: *tid, attempt }, stream), "x").unwrap();
            }
        }
        for other in ["notes.out", "1763248964000000000.out", "1763248964000000000.x.out", "1763248964000000000.1.log"]
        {
            fs::write(folder.path().join(other), "x").unwrap();
        }
        let found = |after, most| -> Vec<(Tid, usize)> {
            files_after(folder.path(), after, most).iter().map(|(tid, files)| (*tid, files.len())).collect()
        };
        assert_eq!(found(0, 9), tids.iter().map(|tid| (*tid, 2)).collect::<Vec<_>>());
        assert_eq!(found(0, 2), [(tids[0], 2), (tids[1], 2)]);
        assert_eq!(found(tids[1].as_i64(), 1), [(tids[2], 2)]);
        assert!(files_after(&folder.path().join("absent"), 0, 1).is_empty());
    }
}
