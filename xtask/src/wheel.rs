//! `cargo xtask wheel`: the Python package and the binary in one wheel.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use crate::{build_program, dist, step};

/// The script that writes the wheel.
const SCRIPT: &str = "xtask/wheel.py";
/// The profile whose binary is static, and runs with every C library.
const DIST: &str = "dist";

/// Build the wheel of the Python package, with the binary in it.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The profile of the binary. Another one than 'dist' makes a wheel for this machine
    #[arg(long, default_value = DIST)]
    profile: String,
    /// Use this binary instead of building one
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Where to write the wheel
    #[arg(long, value_name = "DIR", default_value = "target/wheels")]
    out: PathBuf,
}

/// Builds the binary and the wheel, and prints the path of the wheel.
pub(crate) fn run(options: &Options) -> ExitCode {
    let program = match &options.binary {
        Some(binary) => binary.clone(),
        None if options.profile == DIST => match dist::build() {
            Ok(program) => program,
            Err(code) => return code,
        },
        None => {
            let build_args = ["-p", "raddle-cli", "--bin", "raddle"];
            match build_program(&build_args, "raddle", &options.profile) {
                Ok(program) => program,
                Err(code) => return code,
            }
        }
    };
    let is_static = options.profile == DIST && options.binary.is_none();
    if step::run("wheel", write(&program, &options.out, is_static)).ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn write(program: &Path, out: &Path, is_static: bool) -> Command {
    let mut script = Command::new("python3");
    script.arg(SCRIPT).arg(program).arg(out);
    if is_static {
        script.arg("--static");
    }
    script
}
