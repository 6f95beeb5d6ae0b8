//! Writes a certificate and its key: atomically, the key readable by its owner only, and without
//! overwriting by accident.

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
    /// A file exists, and may be in use.
    #[error("{} exists already: write to another directory, or ask for a replacement", .0.display())]
    Exists(PathBuf),
    /// A file cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        reason: io::Error,
    },
}

/// Writes a certificate to `STEM-cert.pem` and its key to `STEM-key.pem`. Makes the directory, for
/// its owner only, if it is missing. Existing files are kept unless `replace` is set. Returns the
/// paths, the certificate first.
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
    // Check both before changing anything.
    if !replace
        && let Some(there) = [&certificate, &key]
            .into_iter()
            .find(|path| path.symlink_metadata().is_ok())
    {
        return Err(FilesError::Exists(there.clone()));
    }
    // Write both drafts before renaming either, so that a full disk or missing permission changes
    // nothing.
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
        .persist(&certificate, replace)
        .map_err(failed(&certificate))?;
    key_draft.persist(&key, replace).map_err(|reason| {
        if !replace {
            // Without its key the certificate would block the next attempt.
            let _ = fs::remove_file(&certificate);
        }
        failed(&key)(reason)
    })?;
    Ok((certificate, key))
}

/// A temporary file next to its destination. Removed on drop.
struct Draft(PathBuf);

impl Draft {
    fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<Self> {
        let directory = path.parent().unwrap_or(Path::new("."));
        let draft = Self(directory.join(format!(".{}.tmp", Uuid::now_v7())));
        put(&draft.0, content, mode)?;
        Ok(draft)
    }

    /// Moves the file to its destination, atomically.
    fn persist(self, path: &Path, replace: bool) -> io::Result<()> {
        if replace {
            fs::rename(&self.0, path)?;
        } else {
            // Unlike a rename, a hard link fails if the destination exists.
            fs::hard_link(&self.0, path)?;
        }
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Fails after a rename, which has moved the file.
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
    fn keys_are_private_and_not_overwritten_by_accident() {
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
            "no draft remains"
        );
    }

    #[test]
    fn failed_write_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        // A directory in place of the certificate.
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
        // An existing key stays with its certificate.
        fs::write(home.path().join("x-key.pem"), "key 0").unwrap();
        assert!(write_pair(home.path(), "x", &pair("1"), true).is_err());
        assert_eq!(
            fs::read_to_string(home.path().join("x-key.pem")).unwrap(),
            "key 0"
        );
        assert_eq!(
            fs::read_dir(home.path()).unwrap().count(),
            2,
            "no draft remains"
        );
    }
}
