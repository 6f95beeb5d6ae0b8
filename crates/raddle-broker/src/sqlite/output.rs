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
use raddle_core::Tid;
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    Shared, Sqlite,
    bell::Topic,
    blocking, log, private,
    tx::{Fail, find_active, find_done, find_waiting, tally},
};
use crate::{
    Cursor, Error, Fence, Output, Progress, Result, Stream,
    follow::{self, AT_ONCE, Look, Piece, Standing, Then},
};

#[async_trait]
impl Output for Sqlite {
    async fn append_output(&self, fence: Fence, stream: Stream, bytes: Vec<u8>) -> Result<()> {
        // What comes late is passed over without a word: its worker learns of it with its next verdict.
        if !self.is_latest(fence).await? {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            write(&shared, fence, stream, Whereto::End, &bytes)?;
            shared.bell.ring(Topic::Log.into());
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
    /// Whether an attempt is still the latest of its task.
    pub(super) async fn is_latest(&self, fence: Fence) -> Result<bool> {
        self.read(move |db| Ok(find_active(db, fence.tid)?.is_some_and(|active| active.tally.attempt == fence.attempt)))
            .await
    }
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
