//! The handlers of one worker: found, allowed, and chosen from.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use raddle_model::{
    CapSet, TaskSpec,
    handler::{HandlerOffer, select_handler},
    spec::{ANY_HANDLER, handler_tag},
};

use raddle_client::handler::of_this_program;

mod file;

/// A handler as a worker knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// Its name and what it provides.
    pub offer: HandlerOffer,
    /// How it is run.
    pub way: HandlerKind,
}

/// How a handler is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandlerKind {
    /// By the worker's own program.
    Function,
    /// As a command, which is told its task on standard input and answers on standard output.
    Command {
        /// The program and its arguments.
        argv: Vec<String>,
        /// The directory it is run in when the task names none: where its file is.
        directory: PathBuf,
    },
    /// In hosts: processes of this program that run many tasks, by the host protocol.
    Host {
        /// The program and its arguments.
        argv: Vec<String>,
        /// The directory it is run in: where its file is.
        directory: PathBuf,
    },
}

/// Why a worker's handlers could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginLoadError {
    /// The directory cannot be read.
    #[error("the handlers' directory {path} cannot be read: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file cannot be understood.
    #[error("{path} describes no handler: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A name that tasks could not use.
    #[error(
        "'{name}' cannot be the name of a handler: use 1 to 128 letters, digits, or . _ - : @ /, and not 'any'"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// Two of the same name.
    #[error("two handlers are called '{name}': give one of them another name")]
    Clash {
        /// The name.
        name: String,
    },
    /// One that was asked for is not there.
    #[error("there is no handler '{name}' to allow: {}", listed(.known))]
    Unknown {
        /// The name.
        name: String,
        /// Those there are.
        known: Vec<String>,
    },
}

/// The handlers of one worker, in the order in which they are tried.
#[derive(Clone, Debug, Default)]
pub struct Plugins {
    offers: Vec<HandlerOffer>,
    ways: Vec<HandlerKind>,
}

impl Plugins {
    /// Those of this program, then those in the directory; with `allowed`, only these.
    pub fn load(
        directory: Option<&Path>,
        allowed: Option<&[String]>,
    ) -> Result<Self, PluginLoadError> {
        let own = of_this_program().map(|handler| Plugin {
            offer: HandlerOffer {
                name: handler.name(),
                provides: handler.provides(),
            },
            way: HandlerKind::Function,
        });
        let external = directory
            .map(file::in_directory)
            .transpose()?
            .unwrap_or_default();
        Self::new(own.chain(external), allowed)
    }

    fn new(
        found: impl IntoIterator<Item = Plugin>,
        allowed: Option<&[String]>,
    ) -> Result<Self, PluginLoadError> {
        let (mut plugins, mut names) = (Self::default(), BTreeSet::new());
        for Plugin { offer, way } in found {
            let HandlerOffer { name, .. } = &offer;
            if name == ANY_HANDLER || !raddle_model::spec::is_label(name) {
                return Err(PluginLoadError::Name { name: name.clone() });
            }
            if !names.insert(name.clone()) {
                return Err(PluginLoadError::Clash { name: name.clone() });
            }
            if allowed.is_none_or(|allowed| allowed.contains(name)) {
                plugins.offers.push(offer);
                plugins.ways.push(way);
            }
        }
        // A misspelt name would otherwise let tasks wait for ever.
        if let Some(name) = allowed
            .unwrap_or_default()
            .iter()
            .find(|name| !names.contains(*name))
        {
            return Err(PluginLoadError::Unknown {
                name: name.clone(),
                known: names.into_iter().collect(),
            });
        }
        Ok(plugins)
    }

    /// What a worker with these capabilities offers by having them: the handlers that may run something there. A worker that offered the others would
    /// claim their tasks, only to give them back.
    pub fn tags<'a>(&'a self, caps: &'a CapSet) -> impl Iterator<Item = String> + 'a {
        let usable = self
            .offers
            .iter()
            .filter(|offer| offer.provides.is_subset(caps));
        let any = usable.clone().next().map(|_| handler_tag(ANY_HANDLER));
        usable.map(|offer| handler_tag(&offer.name)).chain(any)
    }

    /// Those that may run nothing on a worker with these capabilities, because they provide more.
    pub fn unusable<'a>(&'a self, caps: &'a CapSet) -> impl Iterator<Item = &'a HandlerOffer> {
        self.offers
            .iter()
            .filter(|offer| !offer.provides.is_subset(caps))
    }

    /// The handlers that run in hosts: name, program and directory.
    pub fn hosts<'a>(
        &'a self,
        caps: &'a CapSet,
    ) -> impl Iterator<Item = (&'a str, &'a [String], &'a Path)> {
        let all = self.offers.iter().zip(&self.ways);
        all.filter(|(offer, _)| offer.provides.is_subset(caps))
            .filter_map(|(offer, way)| match way {
                HandlerKind::Host { argv, directory } => {
                    Some((offer.name.as_str(), argv.as_slice(), directory.as_path()))
                }
                _ => None,
            })
    }

    /// The one that runs this task on a worker with these capabilities: its name, and how.
    pub fn pick(&self, spec: &TaskSpec, caps: &CapSet) -> Result<(&str, &HandlerKind), String> {
        let number = select_handler(&self.offers, spec, caps)?;
        Ok((&self.offers[number].name, &self.ways[number]))
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        "there are none".into()
    } else {
        format!("there are {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn load(files: &[(&str, &str)], allowed: Option<&[&str]>) -> Result<Plugins, String> {
        let directory = tempfile::tempdir().unwrap();
        files
            .iter()
            .for_each(|(name, text)| fs::write(directory.path().join(name), text).unwrap());
        let allowed =
            allowed.map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>());
        Plugins::load(Some(directory.path()), allowed.as_deref()).map_err(|error| error.to_string())
    }

    const A: (&str, &str) = (
        "a.handler.toml",
        "name = 'A'\nprovides = ['cpu']\ncommand = ['./a.py', 'x']",
    );
    const B: (&str, &str) = ("b.handler.toml", "name = 'B'\ncommand = ['python3']");

    #[test]
    fn files_are_read_in_order_and_paths_count_from_them() {
        let plugins = load(&[B, A, ("notes.toml", "not a handler")], None).unwrap();
        let tags = |caps: &str| plugins.tags(&caps.parse().unwrap()).collect::<Vec<_>>();
        assert_eq!(tags("cpu"), ["@handler:A", "@handler:B", "@handler:any"]);
        assert_eq!(
            tags(""),
            ["@handler:B", "@handler:any"],
            "the other may run nothing here"
        );
        let HandlerKind::Command { argv, directory } = &plugins.ways[0] else {
            panic!("{plugins:?}")
        };
        assert_eq!(
            argv,
            &[
                directory.join("./a.py").to_string_lossy().into_owned(),
                "x".to_owned()
            ]
        );
        let HandlerKind::Command { argv, .. } = &plugins.ways[1] else {
            panic!("{plugins:?}")
        };
        assert_eq!(argv, &["python3"]);
        assert_eq!(
            plugins
                .unusable(&CapSet::new())
                .map(|offer| &offer.name)
                .collect::<Vec<_>>(),
            ["A"]
        );
    }

    #[test]
    fn only_those_allowed_are_there() {
        let tags = |allowed: &[&str]| {
            load(&[A, B], Some(allowed))
                .unwrap()
                .tags(&CapSet::new())
                .collect::<Vec<_>>()
        };
        assert_eq!(tags(&["B"]), ["@handler:B", "@handler:any"]);
        assert_eq!(
            (tags(&["A"]), tags(&[])),
            (Vec::<String>::new(), Vec::new())
        );
        let unknown = load(&[A, B], Some(&["C"])).unwrap_err();
        assert_eq!(unknown, "there is no handler 'C' to allow: there are A, B");
    }

    #[test]
    fn bad_files_are_named() {
        let why = |name: &str, text: &str| load(&[(name, text)], None).unwrap_err();
        assert!(why("x.handler.toml", "name = 1").contains("x.handler.toml describes no handler"));
        assert!(
            why(
                "x.handler.toml",
                "name = 'X'\ncommand = ['c']\nprovide = []"
            )
            .contains("provide")
        );
        assert!(why("x.handler.toml", "name = 'X'\ncommand = []").contains("command is empty"));
        assert!(
            why(
                "x.handler.toml",
                "name = 'X'\nprovides = ['a b']\ncommand = ['c']"
            )
            .contains("'a b'")
        );
        assert!(
            why("x.handler.toml", "name = 'any'\ncommand = ['c']").contains("cannot be the name")
        );
        assert!(
            load(&[A, ("c.handler.toml", A.1)], None)
                .unwrap_err()
                .contains("two handlers are called 'A'")
        );
    }
}
