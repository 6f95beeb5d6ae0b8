//! `raddle completions`: a completion script for a shell.

use clap::CommandFactory;
use serde_json::json;

use crate::{args::Cli, error::Outcome, output};

pub(super) fn completions(shell: clap_complete::Shell, as_json: bool) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "raddle", &mut script);
    if as_json {
        output::print_json(
            &json!({ "shell": shell.to_string(), "script": String::from_utf8_lossy(&script) }),
        )?;
    } else {
        output::print_raw(&script)?;
    }
    Ok(0)
}
