//! The chores of this repository: `cargo xtask test` and `cargo xtask bench`. Users of Raddle need none of it.

mod count;
mod install;
mod step;
mod test;

use std::{
    env,
    path::PathBuf,
    process::{Command, ExitCode},
};

const HELP: &str = "\
The chores of this repository.

Usage: cargo xtask <COMMAND>

Commands:
  test [--filter EXPR] [--quick]   install what the tests need, then check and test everything
  bench [--quick] [--rounds N] [NAME…]
                                   measure against the floor of this machine, in release mode
  help                             show this

Options of test:
  --filter EXPR   run only the tests that this nextest expression selects: 'package(raddle-core)'
  --quick         leave out the documentation and its examples
";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    // Cargo says where this package is; the workspace is one folder up.
    if let Some(xtask) = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from)
        && let Some(root) = xtask.parent()
        && let Err(error) = env::set_current_dir(root)
    {
        eprintln!("xtask: cannot enter {}: {error}", root.display());
        return ExitCode::from(125);
    }
    match args.split_first() {
        Some((command, rest)) if command == "test" => match test::Options::parse(rest) {
            Ok(options) => test::run(&options),
            Err(message) => usage(&message),
        },
        Some((command, rest)) if command == "bench" => bench(rest),
        Some((command, _)) if ["help", "--help", "-h"].contains(&command.as_str()) => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Some((command, _)) => usage(&format!("unknown command '{command}'")),
        None => usage("no command given"),
    }
}

/// Builds the binary and the benchmarks in release mode, then runs them. A program of its own, so that the tests need not build it.
fn bench(args: &[String]) -> ExitCode {
    let build = ["build", "--release", "-p", "raddle-cli", "-p", "xtask", "--features", "xtask/bench", "--bins"];
    let built = Command::new("cargo").args(build).status();
    if !built.is_ok_and(|status| status.success()) {
        return ExitCode::FAILURE;
    }
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    match Command::new(target.join("release/raddle-bench")).args(args).status() {
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(125)),
        Err(error) => {
            eprintln!("xtask: the benchmarks could not be started: {error}");
            ExitCode::from(125)
        }
    }
}

fn usage(message: &str) -> ExitCode {
    eprintln!("xtask: {message}\n\n{HELP}");
    ExitCode::from(2)
}
