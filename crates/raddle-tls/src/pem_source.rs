//! Where PEM comes from: a file, which may change, or a text, which does not.

use std::{
    borrow::Cow,
    fmt,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::error::{CredentialOrigin, CredentialPart, CredentialsError};

/// Where PEM comes from. A text may be a key: it is not shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PemSource {
    /// From this file, which is read again when it has changed.
    File(PathBuf),
    /// This text.
    Text(String),
}

/// The largest file that is read. All the CAs that browsers trust are a quarter of it.
const LARGEST: u64 = 1024 * 1024;

impl PemSource {
    /// From a file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::File(path.into())
    }

    /// From what is in memory.
    pub fn bytes(pem: impl AsRef<[u8]>) -> Self {
        // What is no text is no part of PEM either: remarks between the parts may be anything.
        Self::Text(String::from_utf8_lossy(pem.as_ref()).into_owned())
    }

    /// With a path that means the same in every directory.
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

    pub(super) fn place(&self, part: CredentialPart) -> CredentialOrigin {
        CredentialOrigin {
            part,
            path: self.path().map(ToOwned::to_owned),
        }
    }

    /// What is in it.
    pub(super) fn read(&self, part: CredentialPart) -> Result<Cow<'_, [u8]>, CredentialsError> {
        match self {
            Self::Text(text) => Ok(Cow::Borrowed(text.as_bytes())),
            Self::File(path) => match read(path) {
                Ok(bytes) => Ok(Cow::Owned(bytes)),
                Err(reason) => Err(CredentialsError::Unreadable {
                    place: self.place(part),
                    reason,
                }),
            },
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe would have to be waited for, and could not be read again.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?
        .take(LARGEST + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "it is larger than 1 MiB",
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
