//! Writes the reference of the command line: `reference markdown FILE` for the book, `reference api
//! FILE` for the HTTP API, `reference man
//! DIR` as manual pages. `cargo xtask reference` and `cargo xtask man` call it.

mod markdown;

use std::{env, fs, io, path::Path, process::ExitCode};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let written = match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["markdown", file] => fs::write(file, markdown::page(raddle_cli::command())),
        ["api", file] => fs::write(file, raddle_web::reference()),
        ["man", directory] => write_manual(Path::new(directory)),
        _ => {
            eprintln!("usage: reference markdown FILE | reference api FILE | reference man DIR");
            return ExitCode::from(2);
        }
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reference: cannot write to {}: {error}", args[1]);
            ExitCode::FAILURE
        }
    }
}

/// One page for each command: `raddle.1`, `raddle-task-list.1`.
fn write_manual(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(raddle_cli::command(), directory)
}
