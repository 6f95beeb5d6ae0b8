//! The chores of this repository: `cargo xtask test` and `cargo xtask bench`. Users of Raddle need none of it.

mod count;
mod install;
mod step;
mod test;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
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
    let mut build = step::cargo(&build);
    // Only cargo knows where it builds to: that depends on the environment, on the configuration and on the target.
    build.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let built = match build.output() {
        Ok(built) if built.status.success() => String::from_utf8_lossy(&built.stdout).into_owned(),
        Ok(_) => return ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: cannot run cargo: {error}");
            return ExitCode::from(125);
        }
    };
    let Some(program) = built_program(&built, "raddle-bench") else {
        eprintln!("xtask: cargo does not say where it has built the benchmarks");
        return ExitCode::from(125);
    };
    match Command::new(program).args(args).status() {
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(125)),
        Err(error) => {
            eprintln!("xtask: the benchmarks could not be started: {error}");
            ExitCode::from(125)
        }
    }
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
{"reason":"compiler-artifact","target":{"name":"raddle"},"executable":"/far/x86_64-unknown-linux-gnu/release/raddle","fresh":true}
{"reason":"compiler-artifact","target":{"name":"raddle-bench"},"executable":"/far/x86_64-unknown-linux-gnu/release/raddle-bench","fresh":true}
{"reason":"build-finished","success":true}"#;
        let found = built_program(messages, "raddle-bench");
        assert_eq!(found, Some("/far/x86_64-unknown-linux-gnu/release/raddle-bench".into()));
        assert_eq!(built_program(messages, "libc"), None);
    }
}
