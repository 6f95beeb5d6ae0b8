//! `cargo xtask chaos`: runs tasks in real processes on a real engine, injects faults, and checks
//! that no task was lost.
//!
//! The campaign uses Raddle through its binary only. Tasks record what they do in a side file that
//! Raddle does not know.

mod broker;
mod campaign;
mod campaign_dir;
mod check;
mod fault_injector;
mod fleet;
mod host;
mod managers;
mod options;
mod parent_death;
mod plan;
mod processes;
mod proxy;
mod redis;
mod report;
mod rng;
mod server;
mod side_file;
mod specs;
mod task;

use std::{env, process::ExitCode};

use campaign::CampaignError;
use options::{HELP, Options};

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1).peekable();
    // Tasks and processes of the campaign execute this program too.
    match args.peek().and_then(|arg| arg.to_str()) {
        Some("task") => {
            let words: Vec<String> = args
                .skip(1)
                .map(|arg| arg.to_string_lossy().into_owned())
                .collect();
            return task::main(
                words.first().map_or("", String::as_str),
                words.get(1).is_some_and(|word| word == "orphan"),
            );
        }
        Some("host") => return host::main(),
        Some("exec-with-parent") => return parent_death::main(args.skip(1)),
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
        duration,
        kills,
        losses,
        workers,
        managers,
        groups,
        hosts,
        ..
    } = &options;
    println!(
        "chaos: {} with seed {seed}: {tasks} tasks, {kills} kills in {:.0} s, {workers} workers, {managers} root managers, {groups} group managers, {hosts} workers with hosts",
        engine.name(),
        duration.as_secs_f64()
    );
    match campaign::run(&options) {
        Ok(true) => {
            println!("chaos: ok");
            ExitCode::SUCCESS
        }
        Ok(false) => {
            let minutes = duration.as_secs_f64() / 60.0;
            println!(
                "chaos: FAILED; to repeat this plan: --engine {} --seed {seed} --tasks {tasks} --kills {kills} \
     --losses {losses} --minutes {minutes} --workers {workers} --managers {managers} --groups {groups} --hosts {hosts}",
                engine.name()
            );
            ExitCode::FAILURE
        }
        Err(CampaignError::Interrupted) => {
            eprintln!("raddle-chaos: interrupted");
            ExitCode::from(130)
        }
        Err(CampaignError::Failed(message)) => {
            eprintln!("raddle-chaos: {message}");
            ExitCode::from(125)
        }
    }
}
