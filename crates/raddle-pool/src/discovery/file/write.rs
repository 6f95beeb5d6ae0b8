//! Writing a worker down, and striking it out.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use super::{
    entry,
    reader::{ENDING, entries, read},
};
use crate::{Uid, WorkerMetadata, connection::Address};

/// Writes the entry of a worker into a folder, in place of any that there is.
pub(super) fn put(folder: &Path, worker: &WorkerMetadata) -> io::Result<()> {
    let text = entry::write(worker).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ if !folder.is_dir() => {
            let message = "it is a file: name a folder to publish workers in";
            return Err(io::Error::new(io::ErrorKind::NotADirectory, message));
        }
        _ => {}
    }
    // Whoever publishes a worker is the only one who does, so that nobody else has this name.
    let draft = folder.join(format!(".{}.draft", worker.uid));
    let written = write(&draft, &text).and_then(|()| fs::rename(&draft, entry_of(folder, worker.uid)));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
        return written;
    }
    replace(folder, worker);
    Ok(())
}

/// Removes the entry of a worker.
pub(super) fn remove(folder: &Path, uid: Uid) -> io::Result<()> {
    match fs::remove_file(entry_of(folder, uid)) {
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Err(error),
        _ => Ok(()),
    }
}

fn write(draft: &Path, text: &[u8]) -> io::Result<()> {
    // One that was left there by somebody who was killed, and no link that leads elsewhere.
    match fs::remove_file(draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Others are to read it.
    let mut file = File::options().write(true).create_new(true).mode(0o644).open(draft)?;
    file.write_all(text)
}

/// Removes what was left by those who were killed where this worker serves now.
fn replace(folder: &Path, worker: &WorkerMetadata) {
    if !worker.address.parse::<Address>().is_ok_and(|address| address.is_the_same_everywhere()) {
        return;
    }
    let own = entry_of(folder, worker.uid);
    for path in entries(folder).unwrap_or_default().into_iter().filter(|path| *path != own) {
        let Some(workers) = read(&path).ok().and_then(|(_, text)| entry::read(&text).ok()) else { continue };
        if let [other] = workers.as_slice()
            && other.address == worker.address
        {
            tracing::info!(entry = %path.display(), worker = %worker.uid, "replaced: another worker serves there now");
            let _ = fs::remove_file(path);
        }
    }
}

fn entry_of(folder: &Path, uid: Uid) -> PathBuf {
    folder.join(format!("{uid}{ENDING}"))
}
