//! `cargo xtask image`: the image of worker, spawner and command line, built without pulling anything.

use std::process::{Command, ExitCode};

use crate::{DEV, RELEASE, become_program, built};

const SCRIPT: &str = "deploy/docker/build.sh";

/// Build the container image from nothing.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Build the program for development
    #[arg(long)]
    debug: bool,
    /// What the image is called
    #[arg(long, default_value = "raddle")]
    tag: String,
    /// What the program is built with besides what is usual
    #[arg(long, value_name = "LIST", default_value = "")]
    features: String,
    /// A command of this machine that is put in, too; can be repeated
    #[arg(long, value_name = "COMMAND")]
    with: Vec<String>,
}

/// Builds the program, and then the image.
pub(crate) fn run(options: &Options) -> ExitCode {
    let program = [
        "-p",
        "raddle-cli",
        "--bin",
        "raddle",
        "--features",
        &options.features,
    ];
    let profile = if options.debug { DEV } else { RELEASE };
    match built(&program, "raddle", profile) {
        Ok(program) => become_program(
            Command::new(SCRIPT)
                .arg(program)
                .arg(&options.tag)
                .args(&options.with),
        ),
        Err(code) => code,
    }
}
