//! `PemSource`: a PEM file, which may change, or PEM text.

use std::{
    borrow::Cow,
    fmt,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::error::{CredentialOrigin, CredentialPart, CredentialsError};

/// Where PEM comes from. `Debug` does not show a text, which may be a key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PemSource {
    /// A file, which is read again when it changes.
    File(PathBuf),
    /// PEM text.
    Text(String),
}

/// Largest file that is read: four times the CAs that browsers trust.
const MAX_SIZE: u64 = 1024 * 1024;

impl PemSource {
    /// A file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::File(path.into())
    }

    /// PEM in memory.
    pub fn bytes(pem: impl AsRef<[u8]>) -> Self {
        // Lossy: only text between sections, which may be anything, can be invalid UTF-8.
        Self::Text(String::from_utf8_lossy(pem.as_ref()).into_owned())
    }

    /// Makes the path absolute, so that it is valid in a child process.
    pub(super) fn absolute(self) -> Self {
        match self {
            Self::File(path) => Self::File(std::path::absolute(&path).unwrap_or(path)),
            text => text,
        }
    }

    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Text(_) => None,
        }
    }

    pub(super) fn origin(&self, part: CredentialPart) -> CredentialOrigin {
        CredentialOrigin {
            part,
            path: self.path().map(ToOwned::to_owned),
        }
    }

    /// Reads the source.
    pub(super) fn read(&self, part: CredentialPart) -> Result<Cow<'_, [u8]>, CredentialsError> {
        match self {
            Self::Text(text) => Ok(Cow::Borrowed(text.as_bytes())),
            Self::File(path) => match read(path) {
                Ok(bytes) => Ok(Cow::Owned(bytes)),
                Err(reason) => Err(CredentialsError::Unreadable {
                    origin: self.origin(part),
                    reason,
                }),
            },
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Reading a pipe could block, and would consume it.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_SIZE + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "larger than 1 MiB",
        ));
    }
    Ok(bytes)
}

impl fmt::Debug for PemSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Text(_) => f.write_str("Text(..)"),
        }
    }
}
