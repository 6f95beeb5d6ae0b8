//! `cargo xtask dist`: the release binary, link-time optimised and linked as a static PIE.
//! `--check` runs it with other C libraries.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use crate::{build_program, install, step};

/// A Debian release with an older C library than most build machines, and one with a newer one.
const OTHER_RELEASES: [&str; 2] = ["bullseye", "trixie"];
const IMAGE: &str = "raddle-dist-check";
/// All features, also those that a build from source leaves out to be quick.
const FEATURES: &str = "kubernetes,otlp,tls";
/// A static binary runs on every distribution, and in an empty container.
const STATIC: &str = "build.rustflags=['-C','target-feature=+crt-static']";

/// Build the release binary.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run it in containers of other Debian releases
    #[arg(long)]
    check: bool,
}

/// Builds the binary.
pub(crate) fn build() -> Result<PathBuf, ExitCode> {
    // `--target` keeps the flags from build scripts and procedural macros, which the compiler loads
    // dynamically.
    let build_args = [
        "--target",
        "host-tuple",
        "--config",
        STATIC,
        "-p",
        "raddle-cli",
        "--bin",
        "raddle",
        "--features",
        FEATURES,
    ];
    build_program(&build_args, "raddle", "dist")
}

/// Builds the binary, prints its path, and checks it with `--check`.
pub(crate) fn run(options: &Options) -> ExitCode {
    let program = match build() {
        Ok(program) => program,
        Err(code) => return code,
    };
    println!("{}", program.display());
    if options.check && !check(&program) {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Runs a task in a container of each release.
fn check(program: &Path) -> bool {
    install::package("debootstrap", "debootstrap")
        && OTHER_RELEASES.iter().all(|release| {
            let mut script = Command::new("sh");
            script
                .args(["-eu", "-c", SCRIPT, "sh", release, IMAGE])
                .arg(program);
            step::run(release, script).ok
        })
}

/// Bootstraps another release, imports it as an image, and runs one task there.
const SCRIPT: &str = r#"
release=$1 image=$2:$1 program=$3
root=$(mktemp -d)
trap 'rm -rf "$root"; docker rmi --force "$image" >/dev/null 2>&1 || true' EXIT
mirror=$(apt-get indextargets --format '$(REPO_URI)' | head -n 1)
debootstrap --variant=minbase "$release" "$root" "$mirror" >"$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; rm -f "$root.log"; exit 1; }
rm -f "$root.log"
cp "$program" "$root/usr/local/bin/raddle"
tar -C "$root" -c . | docker import - "$image" >/dev/null
docker run --rm --network none "$image" sh -euc '
    ldd --version | head -n 1
    cd /tmp && test "$(raddle run -- echo hello)" = hello
    raddle submit -- echo queued && raddle status'
"#;
