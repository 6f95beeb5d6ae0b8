//! `cargo xtask publish`: packages every published crate, and checks what crates.io asks for. It
//! uploads nothing.

use std::process::ExitCode;

use crate::step;

/// Check that the crates can be published.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Also build each crate from its package; takes as long as a clean build
    #[arg(long)]
    verify: bool,
}

/// Runs `cargo publish --dry-run` for all crates, in the order of their dependencies.
pub(crate) fn run(options: &Options) -> ExitCode {
    let mut args = vec!["publish", "--workspace", "--dry-run", "--allow-dirty"];
    for private in ["xtask", "raddle-testnet"] {
        args.extend(["--exclude", private]);
    }
    if !options.verify {
        args.push("--no-verify");
    }
    let published = step::run("packages", step::cargo(&args));
    // Cargo warns about a package without a description, licence or repository, and goes on.
    let is_complete = !published.output.contains("manifest has no");
    if published.ok && is_complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
