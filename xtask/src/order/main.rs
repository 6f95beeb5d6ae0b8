//! `cargo xtask order`: which functions `raddle run` calls, for the linker to put side by side.
//!
//! The program has 20 MB of text, and a run calls a twelfth of it, from one end to the other. The system maps a file's pages sixteen at a time
//! around each one that is asked for, and most of a hundred times for pages that nobody needs: that is a tenth of what a run takes.

mod map;
mod script;
#[cfg(target_arch = "x86_64")]
mod trace;

use std::{env, fs, path::Path, process::ExitCode};

use map::Map;

#[cfg(not(target_arch = "x86_64"))]
mod trace {
    use std::{io, path::Path};

    /// How a processor is stopped is each processor's own.
    pub(crate) fn called(_: &Path, _: &[&str], _: &Path, _: &[u64]) -> io::Result<Vec<u64>> {
        Err(io::Error::other("only on x86-64 is it known how"))
    }
}

/// What `raddle` is asked to do, in a folder that is empty at first: most runs are the second of their folder, but the first takes longest.
const RUNS: [&[&str]; 2] = [&["run", "--", "true"], &["run", "--", "echo", "said"]];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let [program, map, script] = &args[..] else {
        eprintln!("usage: raddle-order PROGRAM MAP SCRIPT: 'cargo xtask order' makes all three");
        return ExitCode::from(2);
    };
    match order(Path::new(program), Path::new(map), Path::new(script)) {
        Ok(told) => {
            println!("{script}: {told}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("raddle-order: {error}");
            ExitCode::FAILURE
        }
    }
}

fn order(program: &Path, map: &Path, script: &Path) -> Result<String, Box<dyn std::error::Error>> {
    let map = Map::parse(&fs::read_to_string(map).map_err(|error| format!("{}: {error}", map.display()))?);
    let folder = tempfile::tempdir()?;
    let mut called = Vec::new();
    for args in RUNS {
        let traced = trace::called(program, args, folder.path(), map.entries()).map_err(|error| {
            format!(
                "'{} {}' cannot be traced: {error}; is that allowed here (kernel.yama.ptrace_scope, containers)?",
                program.display(),
                args.join(" ")
            )
        })?;
        called.extend(traced);
    }
    let sections = map.sections_at(&called);
    if sections.is_empty() {
        return Err("nothing that was called is in the map: was it written by lld, for this program?".into());
    }
    fs::write(script, script::write(&sections))?;
    let size: u64 = sections.iter().map(|section| section.size).sum();
    Ok(format!("{} functions, {} KB", sections.len(), size / 1024))
}
