//! Bind mounts: host files that are visible in a sandbox.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Top-level entries of every sandbox, where nothing else can be mounted.
const RESERVED_NAMES: [&str; 14] = [
    "bin", "dev", "etc", "handler", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "scratch",
    "sys", "tmp", "usr",
];

/// A directory or file of the host that is visible in a sandbox, as `HOST:PATH` (read-only) or
/// `HOST:PATH:rw`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Absolute path on the host.
    pub host: String,
    /// Absolute path in the sandbox, outside the system directories.
    pub path: String,
    /// Whether the task may write to it.
    pub writable: bool,
}

/// The text is not a mount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a mount: write HOST:PATH, or HOST:PATH:rw to let it be written, as ./data:/data"
)]
pub struct ParseMountError(String);

impl Mount {
    /// Returns why the mount is invalid, if it is.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let parts = |path: &str| {
            path.split('/')
                .skip(1)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let is_normalized = |path: &str| {
            path.starts_with('/')
                && parts(path)
                    .iter()
                    .all(|part| !matches!(part.as_str(), "" | "." | ".."))
        };
        if !self.host.starts_with('/') || self.host.contains('\0') {
            return Err("names a host path that is not absolute");
        }
        if !is_normalized(&self.path) || self.path.contains('\0') {
            return Err("names a path inside that is not absolute and straight, as /data");
        }
        if parts(&self.path)
            .first()
            .is_some_and(|top| RESERVED_NAMES.contains(&top.as_str()))
        {
            return Err(
                "names a path inside that the sandbox has already: choose another, as /data",
            );
        }
        Ok(())
    }
}

impl FromStr for Mount {
    type Err = ParseMountError;

    fn from_str(text: &str) -> Result<Self, ParseMountError> {
        let error = || ParseMountError(text.into());
        let (rest, writable) = match text.strip_suffix(":rw") {
            Some(rest) => (rest, true),
            None => (text.strip_suffix(":ro").unwrap_or(text), false),
        };
        let (host, path) = rest.rsplit_once(':').ok_or_else(error)?;
        if host.is_empty() || path.is_empty() {
            return Err(error());
        }
        Ok(Self {
            host: host.into(),
            path: path.into(),
            writable,
        })
    }
}

impl fmt::Display for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            host,
            path,
            writable,
        } = self;
        write!(f, "{host}:{path}{}", if *writable { ":rw" } else { "" })
    }
}

impl Serialize for Mount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Mount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_round_trip() {
        for (text, host, path, writable) in [
            ("/a:/b", "/a", "/b", false),
            ("/a:/b:ro", "/a", "/b", false),
            ("/a:/b:rw", "/a", "/b", true),
            ("/with:colon:/b/c", "/with:colon", "/b/c", false),
        ] {
            let mount: Mount = text.parse().unwrap();
            assert_eq!(
                mount,
                Mount {
                    host: host.into(),
                    path: path.into(),
                    writable
                }
            );
            assert_eq!(mount.to_string().parse(), Ok(mount.clone()));
            assert_eq!(mount.check(), Ok(()));
        }
        assert!(
            ["", "/a", ":/b", "/a:", "/a::rw"]
                .iter()
                .all(|text| text.parse::<Mount>().is_err())
        );
    }

    #[test]
    fn refuses_paths_that_a_sandbox_already_has() {
        for text in [
            "/a:/",
            "/a:/usr/x",
            "/a:/tmp/x",
            "/a:/scratch",
            "/a:b",
            "/a:/b/../usr",
            "/a:/b//c",
            "a:/b",
        ] {
            assert!(text.parse::<Mount>().unwrap().check().is_err(), "{text}");
        }
    }
}
