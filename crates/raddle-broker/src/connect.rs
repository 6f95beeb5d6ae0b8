//! From a URL to an engine.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc};

use crate::{Broker, Result, memory, sqlite};

/// Where a broker is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Url {
    /// In this process, gone with it.
    Memory,
    /// In a file on this machine.
    Sqlite(PathBuf),
}

/// The text does not say where a broker is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a queue URL: use sqlite:PATH, or mem:// for a broker that lives in one process")]
pub struct ParseUrlError {
    text: String,
}

/// Opens the broker at `url`, making it if it is not there.
pub async fn connect(url: &Url) -> Result<Arc<dyn Broker>> {
    Ok(match url {
        Url::Memory => Arc::new(memory::Memory::new()),
        Url::Sqlite(path) => Arc::new(sqlite::Sqlite::open(path).await?),
    })
}

/// As [`connect`], for a process that does one thing after another and has nothing else to do while a call is under way.
pub async fn connect_here(url: &Url) -> Result<Arc<dyn Broker>> {
    Ok(match url {
        Url::Memory => Arc::new(memory::Memory::new()),
        Url::Sqlite(path) => Arc::new(sqlite::Sqlite::open_here(path)?),
    })
}

impl FromStr for Url {
    type Err = ParseUrlError;

    fn from_str(text: &str) -> Result<Self, ParseUrlError> {
        match text {
            "mem://" | "stub://" => Ok(Self::Memory),
            _ => match text.strip_prefix("sqlite:") {
                Some(path) if !path.trim_start_matches('/').is_empty() => {
                    Ok(Self::Sqlite(path.strip_prefix("//").unwrap_or(path).into()))
                }
                // Nothing of the text is repeated beyond its scheme: a mistyped URL may hold a password.
                _ => Err(ParseUrlError { text: text.split(':').next().unwrap_or_default().into() }),
            },
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("mem://"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
        }
    }
}
