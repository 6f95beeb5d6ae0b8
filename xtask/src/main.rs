//! The chores of this repository: `cargo xtask test`, `bench`, `chaos`, `image` and `dist`. Users of Raddle need none of it.

mod count;
mod crates;
mod dist;
mod docs;
mod image;
mod install;
mod lint_words;
mod publish;
mod record;
mod step;
mod test;

use std::{
    env,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use clap::{Args, Parser};

/// The chores of this repository
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Install what the tests need, then check and test everything
    Test(test::Options),
    /// Measure against the floor of this machine, in release mode
    #[command(disable_help_flag = true)]
    Bench(PassedOn),
    /// Break things while tasks run, and check that none is lost; see chaos --help
    #[command(disable_help_flag = true)]
    Chaos(PassedOn),
    /// Build the container image 'raddle' from nothing, and commands of this machine into it
    Image(image::Options),
    /// Build the released binary: optimised as a whole, static-PIE
    Dist(dist::Options),
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

/// Arguments of another program.
#[derive(Args)]
struct PassedOn {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// The profile of `cargo build`.
pub(crate) const DEV: &str = "dev";
/// The profile of `cargo build --release`.
pub(crate) const RELEASE: &str = "release";

fn main() -> ExitCode {
    let chore = Chore::parse();
    // Cargo says where this package is; the workspace is one directory up.
    if let Some(xtask) = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from)
        && let Some(root) = xtask.parent()
        && let Err(error) = env::set_current_dir(root)
    {
        eprintln!("xtask: cannot enter {}: {error}", root.display());
        return ExitCode::from(125);
    }
    match chore {
        Chore::Test(options) => test::run(&options),
        Chore::Bench(PassedOn { args }) => {
            // On a new machine there is no `redis-server`, and the benchmarks would fail halfway.
            install::programs();
            run_program("bench", RELEASE, &args.iter().collect::<Vec<_>>())
        }
        Chore::Chaos(PassedOn { args }) => {
            let (release, args): (Vec<_>, Vec<_>) =
                args.iter().partition(|arg| *arg == "--release");
            run_program(
                "chaos",
                if release.is_empty() { DEV } else { RELEASE },
                &args,
            )
        }
        Chore::Image(options) => image::run(&options),
        Chore::Dist(options) => dist::run(&options),
        Chore::LintWords => lint_words::run(),
        Chore::Docs(options) => docs::build(&options),
        Chore::Reference => docs::reference(),
        Chore::Man(options) => docs::man(&options),
        Chore::Record(options) => record::run(&options),
        Chore::Publish(options) => publish::run(&options),
    }
}

/// Builds the binary `raddle` and, beside it, a program of this package that has a feature of its own, so that the tests need not build it. Then runs that.
fn run_program(feature: &str, profile: &str, args: &[&String]) -> ExitCode {
    let what = [
        "-p",
        "raddle-cli",
        "-p",
        "xtask",
        "--bins",
        "--features",
        &format!("xtask/{feature}"),
    ];
    match built(&what, &format!("raddle-{feature}"), profile) {
        Ok(program) => become_program(Command::new(program).args(args)),
        Err(code) => code,
    }
}

/// Builds what these arguments of `cargo build` say. Returns where the program of this name is.
pub(crate) fn built(what: &[&str], name: &str, profile: &str) -> Result<PathBuf, ExitCode> {
    // Only cargo knows where it builds to: that depends on the environment, on the configuration and on the target.
    let mut build = step::cargo(&[
        "build",
        "--locked",
        "--message-format=json-render-diagnostics",
        "--profile",
        profile,
    ]);
    build.args(what).stderr(Stdio::inherit());
    let built = match build.output() {
        Ok(built) if built.status.success() => String::from_utf8_lossy(&built.stdout).into_owned(),
        Ok(_) => return Err(ExitCode::FAILURE),
        Err(error) => {
            eprintln!("xtask: cannot run cargo: {error}");
            return Err(ExitCode::from(125));
        }
    };
    built_program(&built, name).ok_or_else(|| {
        eprintln!("xtask: cargo does not say where it has built {name}");
        ExitCode::from(125)
    })
}

/// Runs a program in place of this one, so that Ctrl-C is for it alone and nobody returns before it has cleaned up.
fn become_program(command: &mut Command) -> ExitCode {
    let error = command.exec();
    eprintln!(
        "xtask: {} could not be started: {error}",
        command.get_program().display()
    );
    ExitCode::from(125)
}

/// Where cargo has put the program of this name, from what it said while it built: one JSON object a line.
fn built_program(messages: &str, name: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let quoted = line.split_once(r#""executable":""#)?.1;
        // A quote or a backslash in a path is escaped, which nobody has in theirs: such a path is not found.
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
        Chore::command().debug_assert();
    }

    #[test]
    fn cargo_says_where_it_has_built() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"libc"},"executable":null,"fresh":true}
{"reason":"compiler-artifact","target":{"name":"raddle"},"executable":"/far/release/raddle","fresh":true}
{"reason":"compiler-artifact","target":{"name":"raddle-bench"},"executable":"/far/release/raddle-bench","fresh":true}
{"reason":"build-finished","success":true}"#;
        let found = built_program(messages, "raddle-bench");
        assert_eq!(found, Some("/far/release/raddle-bench".into()));
        assert_eq!(built_program(messages, "libc"), None);
    }
}
