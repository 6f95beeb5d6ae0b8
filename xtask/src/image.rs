//! `cargo xtask image`: the image of worker, spawner and command line, built without pulling anything.

use std::process::{Command, ExitCode};

use crate::{DEV, RELEASE, become_program, built};

/// What `deploy/docker/build.sh` calls the image, unless told otherwise.
const TAG: &str = "raddle";
const SCRIPT: &str = "deploy/docker/build.sh";

/// What to build.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    release: bool,
    tag: String,
    /// What the program is built with besides what is usual.
    features: String,
    /// Commands of this machine that are put in, too.
    with: Vec<String>,
}

impl Options {
    /// Reads the arguments after `image`.
    pub(crate) fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self { release: true, tag: TAG.into(), features: String::new(), with: Vec::new() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().cloned().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--debug" => options.release = false,
                "--tag" => options.tag = value()?,
                "--features" => options.features = value()?,
                "--with" => options.with.push(value()?),
                other => return Err(format!("unknown option '{other}'")),
            }
        }
        Ok(options)
    }
}

/// Builds the program, and then the image.
pub(crate) fn run(options: &Options) -> ExitCode {
    let program = ["-p", "raddle-cli", "--bin", "raddle", "--features", &options.features];
    let profile = if options.release { RELEASE } else { DEV };
    match built("build", &program, "raddle", profile) {
        Ok(program) => become_program(Command::new(SCRIPT).arg(program).arg(&options.tag).args(&options.with)),
        Err(code) => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Options, String> {
        Options::parse(&args.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read() {
        assert_eq!(
            parse(&[]),
            Ok(Options { release: true, tag: "raddle".into(), features: String::new(), with: vec![] })
        );
        let options =
            parse(&["--debug", "--with", "sh", "--tag", "mine:1", "--with", "sleep", "--features", "kubernetes"]);
        let with = vec!["sh".to_owned(), "sleep".to_owned()];
        assert_eq!(options, Ok(Options { release: false, tag: "mine:1".into(), features: "kubernetes".into(), with }));
        assert!(parse(&["--with"]).is_err());
        assert!(parse(&["--push"]).is_err_and(|error| error.contains("'--push'")));
    }
}
