//! `cargo xtask docs`, `reference` and `man`: the book as HTML, the reference of the command line
//! in it, and manual pages.

use std::{
    path::PathBuf,
    process::{Command, ExitCode},
};

use crate::{DEV, build_program, step};

/// The features of the released binary: its reference has all commands.
const FEATURES: &str = "raddle-cli/kubernetes,raddle-cli/otlp,raddle-cli/tls";
const REFERENCE: &str = "docs/reference/cli.md";
const API: &str = "docs/reference/api.md";
/// The version of mdBook that the book is written for.
const MDBOOK: &str = "0.5";

/// Build the book.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Serve the book on this machine, and build it again when a page changes
    #[arg(long)]
    serve: bool,
}

/// Write manual pages.
#[derive(clap::Args)]
pub(crate) struct ManOptions {
    /// The directory for them, such as ~/.local/share/man/man1
    directory: PathBuf,
}

/// Builds the book into `target/book` with mdBook, which is installed from crates.io if it is
/// missing.
pub(crate) fn build(options: &Options) -> ExitCode {
    let is_installed = Command::new("mdbook")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !is_installed {
        let args = ["install", "mdbook", "--locked", "--version", MDBOOK];
        if !step::run("install mdbook", step::cargo(&args)).ok {
            return ExitCode::FAILURE;
        }
    }
    let mut mdbook = Command::new("mdbook");
    mdbook.arg(if options.serve { "serve" } else { "build" });
    exit_code(step::run("book", mdbook).ok)
}

/// Writes the references of the command line and of the HTTP API into the book.
pub(crate) fn reference() -> ExitCode {
    match generate(&["markdown", REFERENCE]) {
        ExitCode::SUCCESS => generate(&["api", API]),
        failed => failed,
    }
}

/// Writes a manual page for each command.
pub(crate) fn man(options: &ManOptions) -> ExitCode {
    let Some(directory) = options.directory.to_str() else {
        eprintln!("xtask: the name of the directory is not UTF-8");
        return ExitCode::from(2);
    };
    generate(&["man", directory])
}

/// Runs the example `reference` of `raddle-cli`, which knows all commands.
fn generate(args: &[&str]) -> ExitCode {
    let what = [
        "-p",
        "raddle-cli",
        "--example",
        "reference",
        "--features",
        FEATURES,
    ];
    match build_program(&what, "reference", DEV) {
        Ok(program) => exit_code(
            Command::new(program)
                .args(args)
                .status()
                .is_ok_and(|status| status.success()),
        ),
        Err(code) => code,
    }
}

fn exit_code(ok: bool) -> ExitCode {
    if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
