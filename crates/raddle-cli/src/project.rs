//! Which broker is meant: `--queue-url`, else `QUEUE_URL`, else `raddle.toml` in this or a parent folder, else `.raddle/` here.

use std::{
    env,
    path::{Path, PathBuf},
};

use raddle_broker::{ParseUrlError, Url};
use serde::Deserialize;

use crate::{
    error::{Failure, OrFail, Outcome},
    trust::{self, Found},
};

/// The file that makes a folder and those below it a project.
pub(crate) const FILE: &str = "raddle.toml";
const FOLDER: &str = ".raddle";
const DATABASE: &str = "raddle.db";

/// Where the work is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Project {
    /// The broker.
    pub(crate) url: Url,
    /// What said so.
    pub(crate) source: Source,
}

/// What said where the broker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// `--queue-url` or `QUEUE_URL`.
    Asked,
    /// A `raddle.toml`.
    File(PathBuf),
    /// Nothing: the folder one stands in.
    Here,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    queue_url: Option<String>,
    /// The groups there: read by 'raddle up'.
    #[serde(default, rename = "process")]
    _process: Option<serde::de::IgnoredAny>,
}

impl Project {
    /// Finds the broker for someone who stands in `here`.
    pub(crate) fn find(asked: Option<&str>, here: &Path) -> Outcome<Self> {
        // An empty QUEUE_URL is how a script unsets it.
        if let Some(text) = asked.filter(|text| !text.is_empty()) {
            return Ok(Self { url: parse(text, here).or_usage()?, source: Source::Asked });
        }
        for folder in here.ancestors() {
            let path = folder.join(FILE);
            if let Some(project) = Self::of_file(path)? {
                return Ok(project);
            }
        }
        check_embedded(here)?;
        Ok(Self { url: embedded(here), source: Source::Here })
    }

    /// The broker that a file names, or the one beside it. Nothing, if there is no such file.
    pub(crate) fn of_file(path: PathBuf) -> Outcome<Option<Self>> {
        let Some(text) = trust::read(&path)? else { return Ok(None) };
        let folder = path.parent().unwrap_or(Path::new("/"));
        let file: Result<File, _> = toml::from_str(&text).map_err(|e| e.message().trim_end().to_owned());
        let url = match file.or_usage_at(path.display())?.queue_url {
            Some(url) => parse(&url, folder).or_usage_at(path.display())?,
            None => embedded(folder),
        };
        if url == embedded(folder) {
            check_embedded(folder)?;
        }
        Ok(Some(Self { url, source: Source::File(path) }))
    }

    /// The database file, where the broker is one.
    pub(crate) fn database(&self) -> Option<&Path> {
        match &self.url {
            Url::Sqlite(path) => Some(path),
            _ => None,
        }
    }

    /// The nearest directory above that of the database that has an embedded broker.
    pub(crate) fn enclosing(&self) -> Option<&Path> {
        let here = self.folder()?.parent()?;
        here.ancestors().skip(1).find(|above| above.join(FOLDER).join(DATABASE).is_file())
    }

    /// The `.raddle/` folder, where there is one to write to.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.database()?.parent().filter(|folder| folder.ends_with(FOLDER))
    }
}

fn embedded(folder: &Path) -> Url {
    Url::Sqlite(folder.join(FOLDER).join(DATABASE))
}

/// Refuses a database that somebody else has put there. Where there is no folder for it there is none.
fn check_embedded(folder: &Path) -> Outcome<()> {
    let folder = folder.join(FOLDER);
    if let Some(Found::Open) = trust::check(&folder)? {
        trust::check(&folder.join(DATABASE))?;
    }
    Ok(())
}

/// The folder that this process is in.
pub(crate) fn here() -> Outcome<PathBuf> {
    env::current_dir()
        .map_err(|e| Failure::Usage(format!("cannot tell the current folder ({e}): change to one that exists")))
}

/// Reads a URL; a relative path in it starts from `base`, wherever the process goes later.
fn parse(text: &str, base: &Path) -> Result<Url, ParseUrlError> {
    Ok(match text.parse()? {
        Url::Sqlite(path) => Url::Sqlite(base.join(path)),
        Url::Unix(path) => Url::Unix(base.join(path)),
        url => url,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_nearest_word_wins() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        let at = |path: &Path| Url::Sqlite(path.into());

        let here = Project::find(None, &deep).unwrap();
        assert_eq!((here.url.clone(), here.source.clone()), (at(&deep.join(".raddle/raddle.db")), Source::Here));
        assert_eq!(here.folder(), Some(deep.join(".raddle").as_path()));

        fs::write(root.path().join(FILE), "").unwrap();
        assert_eq!(Project::find(None, &deep).unwrap().url, at(&root.path().join(".raddle/raddle.db")));

        fs::write(root.path().join("a").join(FILE), "queue_url = 'sqlite:work.db'").unwrap();
        let found = Project::find(Some(""), &deep).unwrap();
        assert_eq!(found.url, at(&root.path().join("a/work.db")));
        assert_eq!(found.folder(), None);

        assert_eq!(Project::find(Some("sqlite:x.db"), &deep).unwrap().url, at(&deep.join("x.db")));
        assert_eq!(Project::find(Some("mem://"), &deep).unwrap().url, Url::Memory);
        let served = Project::find(Some("unix:x.sock"), &deep).unwrap();
        assert_eq!((served.url.clone(), served.folder()), (Url::Unix(deep.join("x.sock")), None));
        assert_eq!(served.url.to_string(), format!("unix:{}", deep.join("x.sock").display()));
    }

    #[test]
    fn a_file_that_says_something_else_is_named() {
        let root = tempfile::tempdir().unwrap();
        for text in ["queue_ulr = 'mem://'", "queue_url = 3", "queue_url = 'x'", "["] {
            fs::write(root.path().join(FILE), text).unwrap();
            match Project::find(None, root.path()).unwrap_err() {
                Failure::Usage(message) => assert!(message.contains("raddle.toml: "), "{message}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
