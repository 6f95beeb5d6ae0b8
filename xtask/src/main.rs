//! Development commands: `cargo xtask test`, `bench`, `chaos`, `image`, `dist` and `lint-words`.
//! Users of Raddle need none of them.

mod count;
mod crates;
mod dist;
mod docs;
mod image;
mod install;
mod lint_words;
mod publish;
mod python;
mod record;
mod step;
mod test;
mod wheel;

use std::{
    env,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use clap::{Args, Parser};

/// Development commands of this repository
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
enum Subcommand {
    /// Install what the tests need, then check and test everything
    Test(test::Options),
    /// Measure against the floor of this machine, in release mode
    #[command(disable_help_flag = true)]
    Bench(ProgramArgs),
    /// Inject faults while tasks run, and check that no task is lost; see chaos --help
    #[command(disable_help_flag = true)]
    Chaos(ProgramArgs),
    /// Build the container image 'raddle' from scratch, with commands of this machine
    Image(image::Options),
    /// Build the release binary: link-time optimised, static-PIE
    Dist(dist::Options),
    /// Build the wheel of the Python package, with the binary in it
    Wheel(wheel::Options),
    /// Check names and texts against the rules of docs/glossary.md
    LintWords,
    /// Build the book with mdBook, into target/book
    Docs(docs::Options),
    /// Write docs/reference/cli.md, the reference of the command line
    Reference,
    /// Write manual pages
    Man(docs::ManOptions),
    /// Make the images of the documents, from a real run and from the measured numbers
    Record(record::Options),
    /// Package all crates, and check what crates.io asks for; uploads nothing
    Publish(publish::Options),
}
/// Arguments that are passed on to another program.
#[derive(Args)]
struct ProgramArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// The profile of `cargo build`.
pub(crate) const DEV: &str = "dev";
/// The profile of `cargo build --release`.
pub(crate) const RELEASE: &str = "release";

fn main() -> ExitCode {
    let subcommand = Subcommand::parse();
    // CARGO_MANIFEST_DIR is this package; the workspace is one directory up.
    if let Some(xtask) = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from)
        && let Some(root) = xtask.parent()
        && let Err(error) = env::set_current_dir(root)
    {
        eprintln!("xtask: cannot enter {}: {error}", root.display());
        return ExitCode::from(125);
    }
    match subcommand {
        Subcommand::Test(options) => test::run(&options),
        Subcommand::Bench(ProgramArgs { args }) => {
            // A new machine has no `redis-server`, without which the benchmarks would fail halfway.
            install::programs();
            run_program("bench", RELEASE, &args.iter().collect::<Vec<_>>())
        }
        Subcommand::Chaos(ProgramArgs { args }) => {
            let (release, args): (Vec<_>, Vec<_>) =
                args.iter().partition(|arg| *arg == "--release");
            run_program(
                "chaos",
                if release.is_empty() { DEV } else { RELEASE },
                &args,
            )
        }
        Subcommand::Image(options) => image::run(&options),
        Subcommand::Dist(options) => dist::run(&options),
        Subcommand::Wheel(options) => wheel::run(&options),
        Subcommand::LintWords => lint_words::run(),
        Subcommand::Docs(options) => docs::build(&options),
        Subcommand::Reference => docs::reference(),
        Subcommand::Man(options) => docs::man(&options),
        Subcommand::Record(options) => record::run(&options),
        Subcommand::Publish(options) => publish::run(&options),
    }
}

/// Builds the binary `raddle` and a program of this package behind a feature (so that the tests
/// need not build it), then executes the program.
fn run_program(feature: &str, profile: &str, args: &[&String]) -> ExitCode {
    let build_args = [
        "-p",
        "raddle-cli",
        "-p",
        "xtask",
        "--bins",
        "--features",
        &format!("xtask/{feature}"),
    ];
    match build_program(&build_args, &format!("raddle-{feature}"), profile) {
        Ok(program) => become_program(Command::new(program).args(args)),
        Err(code) => code,
    }
}

/// Runs `cargo build` with these arguments. Returns the path of the program of this name.
pub(crate) fn build_program(
    build_args: &[&str],
    name: &str,
    profile: &str,
) -> Result<PathBuf, ExitCode> {
    // Only cargo knows its target directory: it depends on the environment, the configuration and
    // the target.
    let mut build = step::cargo(&[
        "build",
        "--locked",
        "--message-format=json-render-diagnostics",
        "--profile",
        profile,
    ]);
    build.args(build_args).stderr(Stdio::inherit());
    let built = match build.output() {
        Ok(built) if built.status.success() => String::from_utf8_lossy(&built.stdout).into_owned(),
        Ok(_) => return Err(ExitCode::FAILURE),
        Err(error) => {
            eprintln!("xtask: cannot run cargo: {error}");
            return Err(ExitCode::from(125));
        }
    };
    built_program(&built, name).ok_or_else(|| {
        eprintln!("xtask: cargo did not report where it built {name}");
        ExitCode::from(125)
    })
}

/// Replaces this process with the program, so that the program alone receives Ctrl-C, and the
/// caller waits until it has cleaned up.
fn become_program(command: &mut Command) -> ExitCode {
    let error = command.exec();
    eprintln!(
        "xtask: cannot start {}: {error}",
        command.get_program().display()
    );
    ExitCode::from(125)
}

/// The path of the program of this name in the messages of cargo, one JSON object per line.
fn built_program(messages: &str, name: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let quoted = line.split_once(r#""executable":""#)?.1;
        // A path with a quote or backslash is escaped in JSON and is not found; such paths are not
        // supported.
        let path = Path::new(quoted.split_once('"')?.0);
        (path.file_name()? == name).then(|| path.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Subcommand::command().debug_assert();
    }

    #[test]
    fn finds_the_path_of_a_built_program() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"libc"},"executable":null,"fresh":true}
{"reason":"compiler-artifact","target":{"name":"raddle"},"executable":"/far/release/raddle","fresh":true}
{"reason":"compiler-artifact","target":{"name":"raddle-bench"},"executable":"/far/release/raddle-bench","fresh":true}
{"reason":"build-finished","success":true}"#;
        let found = built_program(messages, "raddle-bench");
        assert_eq!(found, Some("/far/release/raddle-bench".into()));
        assert_eq!(built_program(messages, "libc"), None);
    }
}
