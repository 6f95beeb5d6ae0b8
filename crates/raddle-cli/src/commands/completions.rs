//! `raddle completions`.

use clap::CommandFactory;

use crate::{args::Cli, error::Outcome, output};

pub(super) fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "raddle", &mut script);
    output::raw(&script)?;
    Ok(0)
}
