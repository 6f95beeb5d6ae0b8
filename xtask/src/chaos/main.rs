//! `cargo xtask chaos`: real processes on a real engine, broken while they work, and a proof that nothing was lost.
//!
//! The campaign uses Raddle as users do, through its binary, and knows nothing of its insides. What tasks did it learns from the tasks
//! themselves, out of a side file that Raddle does not know.

mod broker;
mod campaign;
mod check;
mod dice;
mod fleet;
mod hierarchy;
mod leash;
mod ledger;
mod monkey;
mod options;
mod plan;
mod procs;
mod proxy;
mod redis;
mod report;
mod server;
mod site;
mod task;

use std::{env, process::ExitCode};

use campaign::Broken;
use options::{HELP, Options};

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1).peekable();
    // This program is also what its tasks run, and what starts its processes.
    match args.peek().and_then(|arg| arg.to_str()) {
        Some("task") => {
            let words: Vec<String> = args
                .skip(1)
                .map(|arg| arg.to_string_lossy().into_owned())
                .collect();
            return task::main(
                words.first().map_or("", String::as_str),
                words.get(1).is_some_and(|word| word == "kin"),
            );
        }
        Some("leash") => return leash::main(args.skip(1)),
        Some("--help" | "-h" | "help") => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let options = match Options::parse(args) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("raddle-chaos: {message}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    let Options {
        engine,
        tasks,
        seed,
        span,
        kills,
        losses,
        workers,
        managers,
        groups,
        ..
    } = &options;
    println!(
        "chaos: {} with seed {seed}: {tasks} tasks, {kills} kills in {:.0} s, {workers} workers, {managers} primes, {groups} of groups",
        engine.name(),
        span.as_secs_f64()
    );
    match campaign::run(&options) {
        Ok(true) => {
            println!("chaos: ok");
            ExitCode::SUCCESS
        }
        Ok(false) => {
            let minutes = span.as_secs_f64() / 60.0;
            println!(
                "chaos: FAILED; the plan again: --engine {} --seed {seed} --tasks {tasks} --kills {kills} \
                 --losses {losses} --minutes {minutes} --workers {workers} --managers {managers} --groups {groups}",
                engine.name()
            );
            ExitCode::FAILURE
        }
        Err(Broken::Interrupted) => {
            eprintln!("raddle-chaos: interrupted");
            ExitCode::from(130)
        }
        Err(Broken::Failed(message)) => {
            eprintln!("raddle-chaos: {message}");
            ExitCode::from(125)
        }
    }
}
