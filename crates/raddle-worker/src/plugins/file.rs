//! `NAME.handler.toml`: a handler that is an external program.

use std::{fs, io, path::Path};

use raddle_model::{CapSet, handler::HandlerOffer};
use serde::Deserialize;

use super::{HandlerKind, Plugin, PluginLoadError};

const SUFFIX: &str = ".handler.toml";

/// The contents of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HandlerFile {
    name: String,
    #[serde(default)]
    provides: Vec<String>,
    #[serde(default)]
    kind: FileKind,
    command: Vec<String>,
}

/// How the program runs.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FileKind {
    /// A new process for each task.
    #[default]
    Command,
    /// As a host, for many tasks.
    Host,
}

/// Reads the handlers of a directory, ordered by file name.
pub(super) fn read_directory(directory: &Path) -> Result<Vec<Plugin>, PluginLoadError> {
    let unreadable = |source: io::Error| PluginLoadError::Directory {
        path: directory.into(),
        source,
    };
    let directory = std::path::absolute(directory).map_err(unreadable)?;
    let mut paths = Vec::new();
    for entry in fs::read_dir(&directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().ends_with(SUFFIX))
        {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|path| read(path, &directory)).collect()
}

fn read(path: &Path, directory: &Path) -> Result<Plugin, PluginLoadError> {
    let invalid = |reason: String| PluginLoadError::File {
        path: path.into(),
        reason,
    };
    let text = fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
    let HandlerFile {
        name,
        provides,
        kind,
        mut command,
    } = toml::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    let provides = CapSet::from_people(&provides.join(","))
        .map_err(|error| invalid(format!("provides: {error}")))?;
    match command.first_mut() {
        Some(program) if !program.is_empty() => {
            // Relative paths start at the directory of the file, wherever the worker was started.
            if program.contains('/') {
                *program = directory.join(&*program).to_string_lossy().into_owned();
            }
        }
        _ => return Err(invalid("command is empty: name a program to run".into())),
    }
    Ok(Plugin {
        offer: HandlerOffer { name, provides },
        kind: match kind {
            FileKind::Command => HandlerKind::Command {
                argv: command,
                directory: directory.into(),
            },
            FileKind::Host => HandlerKind::Host {
                argv: command,
                directory: directory.into(),
            },
        },
    })
}
