//! The chores of this repository: `cargo xtask test`, `bench`, `chaos`, `image` and `dist`. Users of Raddle need none of it.

mod count;
mod crates;
mod dist;
mod image;
mod install;
mod step;
mod test;

use std::{
    env, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

const HELP: &str = "\
The chores of this repository.

Usage: cargo xtask <COMMAND>

Commands:
  test [--filter EXPR] [--quick]   install what the tests need, then check and test everything
  bench [--quick] [--peers] [--rounds N] [NAME…]
                                   measure against the floor of this machine, in release mode
  chaos [--engine NAME] [--tasks N] [--seed S] [--minutes M] [--kills K] …
                                   break things while tasks run, and check that none is lost; see chaos --help
  image [--debug] [--tag TAG] [--features LIST] [--with COMMAND]…
                                   build the container image 'raddle' from nothing, and commands of this machine into it
  dist [--check]                   build the released binary: optimised as a whole, static-PIE; --check starts it in a container
                                   of another Debian release
  help                             show this

Options of test:
  --filter EXPR   run only the tests that this nextest expression selects: 'package(raddle-core)'
  --quick         leave out the documentation, its examples and the chaos campaigns
";

/// The profile of `cargo build`.
pub(crate) const DEV: &str = "dev";
/// The profile of `cargo build --release`.
pub(crate) const RELEASE: &str = "release";

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
        Some((command, rest)) if command == "chaos" => chaos(rest),
        Some((command, rest)) if command == "image" => match image::Options::parse(rest) {
            Ok(options) => image::run(&options),
            Err(message) => usage(&message),
        },
        Some((command, rest)) if command == "dist" => match dist::Options::parse(rest) {
            Ok(options) => dist::run(&options),
            Err(message) => usage(&message),
        },
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
    match build("bench", "raddle-bench", RELEASE) {
        Ok(program) => become_program(Command::new(program).args(args)),
        Err(code) => code,
    }
}

/// Builds the binary and the chaos campaign, for development unless `--release` is given, then runs it.
fn chaos(args: &[String]) -> ExitCode {
    let (release, args): (Vec<_>, Vec<_>) = args.iter().partition(|arg| *arg == "--release");
    match build("chaos", "raddle-chaos", if release.is_empty() { DEV } else { RELEASE }) {
        Ok(program) => become_program(Command::new(program).args(args)),
        Err(code) => code,
    }
}

/// Builds the binary `raddle` and a program of this package that needs a feature. Returns where that is; `raddle` is beside it.
pub(crate) fn build(feature: &str, name: &str, profile: &str) -> Result<PathBuf, ExitCode> {
    let feature = format!("xtask/{feature}");
    built("build", &["-p", "raddle-cli", "-p", "xtask", "--bins", "--features", &feature], name, profile)
}

/// Builds what these arguments of a command of cargo say. Returns where the program of this name is.
pub(crate) fn built(command: &str, what: &[&str], name: &str, profile: &str) -> Result<PathBuf, ExitCode> {
    // Only cargo knows where it builds to: that depends on the environment, on the configuration and on the target.
    let mut build =
        step::cargo(&[command, "--locked", "--message-format=json-render-diagnostics", "--profile", profile]);
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
    not_started(Path::new(command.get_program()), &error)
}

fn not_started(program: &Path, error: &io::Error) -> ExitCode {
    eprintln!("xtask: {} could not be started: {error}", program.display());
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

fn usage(message: &str) -> ExitCode {
    eprintln!("xtask: {message}\n\n{HELP}");
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use super::*;

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
