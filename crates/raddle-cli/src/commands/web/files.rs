//! The files of `raddle web` in the project: the owner's token, and where the server is.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use crate::{
    context::Context,
    error::{Failure, OrFail, Outcome},
    file_trust,
    project::{Source, current_directory},
};

/// The owner's token.
const TOKEN: &str = "web.token";
/// The URL of the server, while it runs.
const ADDRESS: &str = "web.url";
/// The log of a server in the background.
const LOG: &str = "web.log";
/// Readable only by its owner.
const MODE: u32 = 0o600;

/// The directory of the project for files: `.raddle/`.
pub(super) fn directory(context: &Context) -> Outcome<PathBuf> {
    if let Some(directory) = context.project.raddle_dir() {
        return Ok(directory.to_owned());
    }
    let base = match &context.project.source {
        Source::File(path) => path.parent().unwrap_or(Path::new("/")).to_owned(),
        Source::Explicit | Source::CurrentDirectory => current_directory()?,
    };
    Ok(base.join(".raddle"))
}

/// The path of the log.
pub(super) fn log(context: &Context) -> Outcome<PathBuf> {
    Ok(directory(context)?.join(LOG))
}

/// The owner's token. The first call makes it.
pub(super) fn owner_token(directory: &Path) -> Outcome<String> {
    let path = directory.join(TOKEN);
    let shown = path.display();
    create_directory(directory)?;
    let mut options = OpenOptions::new();
    match options.write(true).create_new(true).mode(MODE).open(&path) {
        Ok(mut file) => {
            let token = raddle_web::auth::new_token();
            let written = file.write_all(format!("{token}\n").as_bytes());
            written
                .and_then(|()| file.sync_all())
                .or_raddle_at(format_args!("cannot write {shown}"))?;
            Ok(token)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let text = file_trust::read(&path)?.unwrap_or_default();
            let found = fs::metadata(&path).or_usage_at(format_args!("cannot read {shown}"))?;
            if found.mode() & 0o077 != 0 {
                return Err(Failure::Usage(format!(
                    "other users can read {shown}, so it is no secret: remove it, and 'raddle web' makes another one"
                )));
            }
            let token = text.trim();
            if token.len() < 32 {
                return Err(Failure::Usage(format!(
                    "{shown} holds no token: remove it, and 'raddle web' makes another one"
                )));
            }
            Ok(token.to_owned())
        }
        Err(error) => Err(Failure::Usage(format!("cannot create {shown}: {error}"))),
    }
}

/// Creates the directory, out of sight of version control: it holds a secret.
fn create_directory(directory: &Path) -> Outcome<()> {
    let cannot = format!("cannot create {}", directory.display());
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => fs::write(directory.join(".gitignore"), "*\n").or_usage_at(cannot),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(Failure::Usage(format!("{cannot}: {error}"))),
    }
}

/// The file with the URL of the server. Removed on drop, unless another server has replaced it.
pub(super) struct AddressFile {
    path: PathBuf,
    url: String,
}

impl AddressFile {
    /// Writes the URL.
    pub(super) fn write(directory: &Path, url: &str) -> Outcome<Self> {
        let path = directory.join(ADDRESS);
        let cannot = format!("cannot write {}", path.display());
        // A rename, so that no reader sees half of it.
        let new = directory.join(format!("{ADDRESS}.{}", std::process::id()));
        let mut file: File = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(MODE)
            .open(&new)
            .or_raddle_at(&cannot)?;
        file.write_all(format!("{url}\n").as_bytes())
            .and_then(|()| fs::rename(&new, &path))
            .or_raddle_at(&cannot)?;
        Ok(Self {
            path,
            url: url.to_owned(),
        })
    }

    /// Reads the URL of the server of this project, if one runs.
    pub(super) fn read(directory: &Path) -> Outcome<Option<String>> {
        let text = file_trust::read(&directory.join(ADDRESS))?;
        Ok(text.map(|text| text.trim().to_owned()))
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        if fs::read_to_string(&self.path).is_ok_and(|text| text.trim() == self.url) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
