//! Writing a certificate and its key so that there is never half a file, nor a key that others can read, nor one that is lost by mistake.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use uuid::Uuid;

use super::IssuedCertificate;

/// Why files were not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// There is one, and it may be in use.
    #[error("{} is there already: write elsewhere, or say that it is to be replaced", .0.display())]
    Exists(PathBuf),
    /// It cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Unwritable {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        reason: io::Error,
    },
}

/// Writes a certificate to `STEM-cert.pem` in a directory, which is made for its owner alone if there is none, and the key to `STEM-key.pem`. What is there
/// stays, unless it is to be replaced. Returns where they are, the certificate first.
pub fn write_pair(
    directory: &Path,
    stem: &str,
    pair: &IssuedCertificate,
    replace: bool,
) -> Result<(PathBuf, PathBuf), FilesError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |reason| FilesError::Unwritable { path, reason }
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed(directory))?;
    let (certificate, key) = (
        directory.join(format!("{stem}-cert.pem")),
        directory.join(format!("{stem}-key.pem")),
    );
    // Both, before anything is changed.
    if !replace
        && let Some(there) = [&certificate, &key]
            .into_iter()
            .find(|path| path.symlink_metadata().is_ok())
    {
        return Err(FilesError::Exists(there.clone()));
    }
    // Both are written before either has its name: what has no room, or may not be written, leaves what was there.
    let drafts = [
        (&certificate, &pair.certificate, 0o644),
        (&key, &pair.key, 0o600),
    ];
    let drafts = drafts.map(|(path, content, mode)| {
        Draft::write(path, content.as_bytes(), mode).map_err(failed(path))
    });
    let [certificate_draft, key_draft] = drafts;
    let (certificate_draft, key_draft) = (certificate_draft?, key_draft?);
    certificate_draft
        .place(&certificate, replace)
        .map_err(failed(&certificate))?;
    key_draft.place(&key, replace).map_err(|reason| {
        if !replace {
            // Alone it would be in the way of the next try.
            let _ = fs::remove_file(&certificate);
        }
        failed(&key)(reason)
    })?;
    Ok((certificate, key))
}

/// A file beside the one that it is to be. Gone with this.
struct Draft(PathBuf);

impl Draft {
    fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<Self> {
        let directory = path.parent().unwrap_or(Path::new("."));
        let draft = Self(directory.join(format!(".{}.tmp", Uuid::now_v7())));
        put(&draft.0, content, mode)?;
        Ok(draft)
    }

    /// Gives it its name, all at once.
    fn place(self, path: &Path, replace: bool) -> io::Result<()> {
        if replace {
            fs::rename(&self.0, path)?;
        } else {
            // Unlike a rename, it fails when there is something.
            fs::hard_link(&self.0, path)?;
        }
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After a rename it is not there any more.
        let _ = fs::remove_file(&self.0);
    }
}

fn put(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, time::SystemTime};

    use super::*;
    use crate::issue::Validity;

    fn pair(text: &str) -> IssuedCertificate {
        let validity = Validity::days(SystemTime::now(), 1);
        IssuedCertificate {
            certificate: format!("certificate {text}"),
            key: format!("key {text}"),
            validity,
        }
    }

    #[test]
    fn keys_are_for_their_owner_and_are_not_replaced_by_mistake() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("a/b");
        let (certificate, key) = write_pair(&directory, "x", &pair("1"), false).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&key)), (0o700, 0o600));
        assert!(
            matches!(write_pair(&directory, "x", &pair("2"), false), Err(FilesError::Exists(path)) if path == certificate)
        );
        assert_eq!(fs::read_to_string(&key).unwrap(), "key 1");
        fs::remove_file(&certificate).unwrap();
        assert!(
            matches!(write_pair(&directory, "x", &pair("2"), false), Err(FilesError::Exists(path)) if path == key)
        );
        write_pair(&directory, "x", &pair("2"), true).unwrap();
        assert_eq!(fs::read_to_string(&key).unwrap(), "key 2");
        assert_eq!(mode(&key), 0o600);
        assert_eq!(
            fs::read_dir(&directory).unwrap().count(),
            2,
            "no draft is left"
        );
    }

    #[test]
    fn what_fails_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        // A directory where the certificate is to be.
        fs::create_dir(home.path().join("x-cert.pem")).unwrap();
        assert!(matches!(
            write_pair(home.path(), "x", &pair("1"), true),
            Err(FilesError::Unwritable { .. })
        ));
        let left: Vec<_> = fs::read_dir(home.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["x-cert.pem"]);
        // A key that is in use stays with the certificate that it is of.
        fs::write(home.path().join("x-key.pem"), "key 0").unwrap();
        assert!(write_pair(home.path(), "x", &pair("1"), true).is_err());
        assert_eq!(
            fs::read_to_string(home.path().join("x-key.pem")).unwrap(),
            "key 0"
        );
        assert_eq!(
            fs::read_dir(home.path()).unwrap().count(),
            2,
            "no draft is left"
        );
    }
}
