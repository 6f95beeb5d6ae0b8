//! `cargo xtask record`: the images of the documents, from a real run and from the measured
//! numbers.

mod chart;
mod svg;
mod terminal;

use std::{fs, path::PathBuf, process::ExitCode};

use crate::{RELEASE, build_program};

const TERMINAL: &str = "docs/images/terminal.svg";
const CHART: &str = "docs/images/benchmarks.svg";
const BENCHMARKS: &str = "docs/explanation/benchmarks.md";

/// Make the images of the documents.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Record this build of raddle [default: a release build]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Draw only the chart of the benchmarks
    #[arg(long)]
    chart: bool,
}

/// Draws the chart, runs the recorded commands, and writes both images.
pub(crate) fn run(options: &Options) -> ExitCode {
    match draw(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn draw(options: &Options) -> Result<(), String> {
    let write = |path: &str, svg: String| {
        println!("{path}");
        fs::write(path, svg).map_err(|error| format!("cannot write {path}: {error}"))
    };
    let text = fs::read_to_string(BENCHMARKS)
        .map_err(|error| format!("cannot read {BENCHMARKS}: {error}"))?;
    write(CHART, chart::draw(&text)?)?;
    if options.chart {
        return Ok(());
    }
    let program = match &options.program {
        Some(program) => program.clone(),
        None => build_program(&["-p", "raddle-cli", "--bin", "raddle"], "raddle", RELEASE)
            .map_err(|_| "cannot build raddle".to_owned())?,
    };
    write(TERMINAL, terminal::record(&program)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_shows_the_numbers_of_the_page() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../");
        let read = |path: &str| fs::read_to_string(format!("{root}{path}")).expect("it is there");
        let is_current = chart::draw(&read(BENCHMARKS)) == Ok(read(CHART));
        assert!(
            is_current,
            "{CHART} is out of date: run 'cargo xtask record --chart'"
        );
    }
}
