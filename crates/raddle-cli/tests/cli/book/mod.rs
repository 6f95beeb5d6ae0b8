//! The book and README.md: console blocks are executed, links lead somewhere, and generated pages
//! are up to date.
//!
//! The fence after one of these comments is treated apart from the others:
//!
//! | comment | meaning |
//! | --- | --- |
//! | `<!-- file: raddle.toml -->` | the block is written to this file |
//! | `<!-- file: src/main.rs = sum -->` | the same, and the block is the example `sum`, which `cargo run` starts |
//! | `<!-- not run: REASON -->` | the console block is not executed |

mod alike;
mod console;
mod links;
mod page;
mod reference;
mod schema;

use std::{fs, path::PathBuf};

/// The parts whose console blocks are all executed, or say why they are not.
const EXECUTED: [&str; 2] = ["docs/start", "docs/tutorials"];

/// The directory of the repository.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file of the repository.
#[track_caller]
fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The Markdown files below `docs`, as paths from the root of the repository.
fn pages() -> Vec<String> {
    let (mut pages, mut left) = (Vec::new(), vec!["docs".to_owned()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{directory}/{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                left.push(path);
            } else if path.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}
