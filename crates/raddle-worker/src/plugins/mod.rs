//! Handler plug-ins of a worker: loading them, and selecting one for a task.

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

/// A handler as a worker sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// Its name and the capabilities that it provides.
    pub offer: HandlerOffer,
    /// How to run it.
    pub kind: HandlerKind,
}

/// How a handler runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandlerKind {
    /// In a process that is forked from the worker's program.
    Function,
    /// As a command, with the task on stdin and the reply on stdout.
    Command {
        /// The program and its arguments.
        argv: Vec<String>,
        /// Working directory for tasks that name none: the directory of the handler's file.
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

/// Why handlers could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginLoadError {
    /// The directory could not be read.
    #[error("cannot read the handler directory {path}: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error of the read.
        source: io::Error,
    },
    /// A file is invalid.
    #[error("{path} describes no handler: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The name is invalid.
    #[error(
        "'{name}' cannot be the name of a handler: use 1 to 128 letters, digits, or . _ - : @ /, and not 'any'"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// Two handlers have the same name.
    #[error("two handlers have the name '{name}': rename one of them")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// An allowed handler does not exist.
    #[error("there is no handler '{name}' to allow: {}", list_names(.known))]
    Unknown {
        /// The name.
        name: String,
        /// The names of all handlers.
        known: Vec<String>,
    },
}

/// The handlers of a worker, in the order in which they are tried.
#[derive(Clone, Debug, Default)]
pub struct Plugins {
    offers: Vec<HandlerOffer>,
    kinds: Vec<HandlerKind>,
}

impl Plugins {
    /// Loads the handlers of this program, then those of the directory. `allowed` selects some of
    /// them.
    pub fn load(
        directory: Option<&Path>,
        allowed: Option<&[String]>,
    ) -> Result<Self, PluginLoadError> {
        let built_in = of_this_program().map(|handler| Plugin {
            offer: HandlerOffer {
                name: handler.name(),
                provides: handler.provides(),
            },
            kind: HandlerKind::Function,
        });
        let external = directory
            .map(file::read_directory)
            .transpose()?
            .unwrap_or_default();
        Self::new(built_in.chain(external), allowed)
    }

    fn new(
        found: impl IntoIterator<Item = Plugin>,
        allowed: Option<&[String]>,
    ) -> Result<Self, PluginLoadError> {
        let (mut plugins, mut names) = (Self::default(), BTreeSet::new());
        for Plugin { offer, kind } in found {
            let HandlerOffer { name, .. } = &offer;
            if name == ANY_HANDLER || !raddle_model::spec::is_label(name) {
                return Err(PluginLoadError::Name { name: name.clone() });
            }
            if !names.insert(name.clone()) {
                return Err(PluginLoadError::Duplicate { name: name.clone() });
            }
            if allowed.is_none_or(|allowed| allowed.contains(name)) {
                plugins.offers.push(offer);
                plugins.kinds.push(kind);
            }
        }
        // Without this error, tasks for a misspelt name would wait without limit.
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

    /// The capabilities that a worker gains from its handlers, given its own ones. Only handlers
    /// that can run here count: otherwise the worker would claim tasks only to release them.
    pub fn tags<'a>(&'a self, caps: &'a CapSet) -> impl Iterator<Item = String> + 'a {
        let usable = self
            .offers
            .iter()
            .filter(|offer| offer.provides.is_subset(caps));
        let any = usable.clone().next().map(|_| handler_tag(ANY_HANDLER));
        usable.map(|offer| handler_tag(&offer.name)).chain(any)
    }

    /// The handlers that can run nothing here, because they provide more than the worker offers.
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
        let all = self.offers.iter().zip(&self.kinds);
        all.filter(|(offer, _)| offer.provides.is_subset(caps))
            .filter_map(|(offer, kind)| match kind {
                HandlerKind::Host { argv, directory } => {
                    Some((offer.name.as_str(), argv.as_slice(), directory.as_path()))
                }
                _ => None,
            })
    }

    /// Selects the handler for a task: its name, and how it runs.
    pub fn select(&self, spec: &TaskSpec, caps: &CapSet) -> Result<(&str, &HandlerKind), String> {
        let index = select_handler(&self.offers, spec, caps)?;
        Ok((&self.offers[index].name, &self.kinds[index]))
    }
}

fn list_names(names: &[String]) -> String {
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
    fn reads_files_in_order_and_resolves_relative_paths() {
        let plugins = load(&[B, A, ("notes.toml", "not a handler")], None).unwrap();
        let tags = |caps: &str| plugins.tags(&caps.parse().unwrap()).collect::<Vec<_>>();
        assert_eq!(tags("cpu"), ["@handler:A", "@handler:B", "@handler:any"]);
        assert_eq!(
            tags(""),
            ["@handler:B", "@handler:any"],
            "the other handler cannot run here"
        );
        let HandlerKind::Command { argv, directory } = &plugins.kinds[0] else {
            panic!("{plugins:?}")
        };
        assert_eq!(
            argv,
            &[
                directory.join("./a.py").to_string_lossy().into_owned(),
                "x".to_owned()
            ]
        );
        let HandlerKind::Command { argv, .. } = &plugins.kinds[1] else {
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
    fn loads_only_allowed_handlers() {
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
    fn names_invalid_files() {
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
                .contains("two handlers have the name 'A'")
        );
    }
}
