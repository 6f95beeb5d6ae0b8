//! Finds the broker: `--queue-url`, then `QUEUE_URL`, then `raddle.toml` in this or a parent
//! directory, then `.raddle/` here.

use std::{
    env,
    path::{Path, PathBuf},
};

use raddle_broker_connect::{BrokerUrl, ParseBrokerUrlError};
use serde::Deserialize;

use crate::{
    error::{Failure, OrFail, Outcome},
    file_trust::{self, DirectoryAccess},
};

/// The file that makes a directory and those below it a project.
pub(crate) const FILE: &str = "raddle.toml";
const DIRECTORY: &str = ".raddle";
const DATABASE: &str = "raddle.db";

/// A project: its broker, and how it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Project {
    /// The broker.
    pub(crate) url: BrokerUrl,
    /// How it was found.
    pub(crate) source: Source,
}

/// How a project was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// `--queue-url` or `QUEUE_URL`.
    Explicit,
    /// A `raddle.toml`.
    File(PathBuf),
    /// The default: the current directory.
    CurrentDirectory,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    queue_url: Option<String>,
    /// The groups, which `raddle up` reads.
    #[serde(default, rename = "process")]
    _process: Option<serde::de::IgnoredAny>,
}

impl Project {
    /// Finds the broker: `url`, or the project of this directory.
    pub(crate) fn find(url: Option<&str>, directory: &Path) -> Outcome<Self> {
        // Scripts unset QUEUE_URL by making it empty.
        if let Some(text) = url.filter(|text| !text.is_empty()) {
            return Ok(Self {
                url: parse(text, directory).or_usage()?,
                source: Source::Explicit,
            });
        }
        for ancestor in directory.ancestors() {
            let path = ancestor.join(FILE);
            if let Some(project) = Self::from_file(path)? {
                return Ok(project);
            }
        }
        check_database_owner(directory)?;
        Ok(Self {
            url: default_url(directory),
            source: Source::CurrentDirectory,
        })
    }

    /// The broker that a file names, or the one beside it. Returns `None` if the file does not
    /// exist.
    pub(crate) fn from_file(path: PathBuf) -> Outcome<Option<Self>> {
        let Some(text) = file_trust::read(&path)? else {
            return Ok(None);
        };
        let directory = path.parent().unwrap_or(Path::new("/"));
        let file: Result<File, _> =
            toml::from_str(&text).map_err(|e| e.message().trim_end().to_owned());
        let url = match file.or_usage_at(path.display())?.queue_url {
            Some(url) => parse(&url, directory).or_usage_at(path.display())?,
            None => default_url(directory),
        };
        if url == default_url(directory) {
            check_database_owner(directory)?;
        }
        Ok(Some(Self {
            url,
            source: Source::File(path),
        }))
    }

    /// The path of the database, if the broker is SQLite.
    pub(crate) fn database(&self) -> Option<&Path> {
        match &self.url {
            BrokerUrl::Sqlite(path) => Some(path),
            _ => None,
        }
    }

    /// The nearest directory above that of the database that has a default database.
    pub(crate) fn parent_project(&self) -> Option<&Path> {
        let directory = self.raddle_dir()?.parent()?;
        directory
            .ancestors()
            .skip(1)
            .find(|above| above.join(DIRECTORY).join(DATABASE).is_file())
    }

    /// The `.raddle/` directory, if the project has one.
    pub(crate) fn raddle_dir(&self) -> Option<&Path> {
        self.database()?
            .parent()
            .filter(|directory| directory.ends_with(DIRECTORY))
    }
}

/// The URL of the default database of a directory.
fn default_url(directory: &Path) -> BrokerUrl {
    BrokerUrl::Sqlite(directory.join(DIRECTORY).join(DATABASE))
}

/// Refuses a database that another user has created.
fn check_database_owner(directory: &Path) -> Outcome<()> {
    let directory = directory.join(DIRECTORY);
    if let Some(DirectoryAccess::Open) = file_trust::check(&directory)? {
        file_trust::check(&directory.join(DATABASE))?;
    }
    Ok(())
}

/// The current directory.
pub(crate) fn current_directory() -> Outcome<PathBuf> {
    env::current_dir().map_err(|e| {
        Failure::Usage(format!(
            "cannot read the current directory ({e}): change to one that exists"
        ))
    })
}

/// Parses a URL. A relative path in it starts from `base`.
fn parse(text: &str, base: &Path) -> Result<BrokerUrl, ParseBrokerUrlError> {
    Ok(match text.parse()? {
        BrokerUrl::Sqlite(path) => BrokerUrl::Sqlite(base.join(path)),
        BrokerUrl::Unix(path) => BrokerUrl::Unix(base.join(path)),
        url => url,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_most_specific_setting_wins() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        let at = |path: &Path| BrokerUrl::Sqlite(path.into());

        let here = Project::find(None, &deep).unwrap();
        assert_eq!(
            (here.url.clone(), here.source.clone()),
            (
                at(&deep.join(".raddle/raddle.db")),
                Source::CurrentDirectory
            )
        );
        assert_eq!(here.raddle_dir(), Some(deep.join(".raddle").as_path()));

        fs::write(root.path().join(FILE), "").unwrap();
        assert_eq!(
            Project::find(None, &deep).unwrap().url,
            at(&root.path().join(".raddle/raddle.db"))
        );

        fs::write(
            root.path().join("a").join(FILE),
            "queue_url = 'sqlite:work.db'",
        )
        .unwrap();
        let found = Project::find(Some(""), &deep).unwrap();
        assert_eq!(found.url, at(&root.path().join("a/work.db")));
        assert_eq!(found.raddle_dir(), None);

        assert_eq!(
            Project::find(Some("sqlite:x.db"), &deep).unwrap().url,
            at(&deep.join("x.db"))
        );
        assert_eq!(
            Project::find(Some("mem://"), &deep).unwrap().url,
            BrokerUrl::Memory
        );
        let served = Project::find(Some("unix:x.sock"), &deep).unwrap();
        assert_eq!(
            (served.url.clone(), served.raddle_dir()),
            (BrokerUrl::Unix(deep.join("x.sock")), None)
        );
        assert_eq!(
            served.url.to_string(),
            format!("unix:{}", deep.join("x.sock").display())
        );
    }

    #[test]
    fn an_invalid_file_is_named() {
        let root = tempfile::tempdir().unwrap();
        for text in [
            "queue_ulr = 'mem://'",
            "queue_url = 3",
            "queue_url = 'x'",
            "[",
        ] {
            fs::write(root.path().join(FILE), text).unwrap();
            match Project::find(None, root.path()).unwrap_err() {
                Failure::Usage(message) => assert!(message.contains("raddle.toml: "), "{message}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
