//! `cargo xtask image`: the image of worker, spawner and command line, built without pulling an
//! image.

use std::process::{Command, ExitCode};

use crate::{DEV, RELEASE, become_program, build_program};

const SCRIPT: &str = "deploy/docker/build.sh";

/// Build the container image from scratch.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Build the program with the development profile
    #[arg(long)]
    debug: bool,
    /// The tag of the image
    #[arg(long, default_value = "raddle")]
    tag: String,
    /// Additional features of the program
    #[arg(long, value_name = "LIST", default_value = "")]
    features: String,
    /// A command of this machine to include; can be repeated
    #[arg(long, value_name = "COMMAND")]
    with: Vec<String>,
}

/// Builds the program, then the image.
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
    match build_program(&program, "raddle", profile) {
        Ok(program) => become_program(
            Command::new(SCRIPT)
                .arg(program)
                .arg(&options.tag)
                .args(&options.with),
        ),
        Err(code) => code,
    }
}
