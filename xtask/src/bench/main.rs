//! `cargo xtask bench`: Raddle against the floor of the machine, in the same run.
//!
//! Machines are shared and noisy, so no absolute time is judged. Every figure is measured in turn
//! with its floor, in several rounds, and the result is the median of the rounds' ratios. `run` has
//! more rounds and an absolute bound.

mod calls;
mod claim;
mod floor;
mod groups;
mod hang;
mod idle;
mod oneshot;
mod project_dir;
mod queue;
mod redis;
mod root_manager;
mod run;
mod sandbox;
mod schedule;
mod spawn;
mod stats;
mod store;
mod venv;

use std::process::ExitCode;

use stats::Requirement;

/// How much to measure.
#[derive(Clone, Debug)]
struct Plan {
    rounds: usize,
    quick: bool,
    /// Also measure rivals, which are downloaded.
    with_peers: bool,
    only: Vec<String>,
}

const HELP: &str = "\
Usage: cargo xtask bench [--quick] [--peers] [--rounds N] [NAME…]

Names: spawn enqueue finish run idle claim store redis latency oneshot warm sandbox docker calls schedule groups prime (all of them when none is given)
";

type Bench = fn(&Plan) -> Vec<Requirement>;

const BENCHES: [(&str, Bench); 17] = [
    ("spawn", spawn::bench),
    ("enqueue", queue::bench_enqueue),
    ("finish", queue::bench_finish),
    ("run", run::bench),
    ("idle", idle::bench),
    ("claim", claim::bench),
    ("store", store::bench),
    ("redis", redis::bench),
    ("latency", redis::latency),
    ("oneshot", oneshot::bench),
    ("warm", oneshot::warm::bench),
    ("sandbox", sandbox::bench),
    ("docker", oneshot::docker::bench),
    ("calls", calls::bench),
    ("schedule", schedule::bench),
    ("groups", groups::bench),
    ("prime", root_manager::bench),
];

fn main() -> ExitCode {
    let plan = match parse(std::env::args().skip(1)) {
        Ok(plan) => plan,
        Err(message) => {
            eprintln!("raddle-bench: {message}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    let mut requirements = Vec::new();
    for (name, bench) in BENCHES {
        if plan.only.is_empty() || plan.only.iter().any(|only| only == name) {
            println!("\n== {name}");
            requirements.extend(bench(&plan));
        }
    }
    println!("\n== requirements");
    requirements
        .iter()
        .for_each(|requirement| println!("{requirement}"));
    if requirements.iter().all(|requirement| requirement.is_met()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn parse(args: impl Iterator<Item = String>) -> Result<Plan, String> {
    let mut plan = Plan {
        rounds: 5,
        quick: false,
        with_peers: false,
        only: Vec::new(),
    };
    let mut args = args;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => (plan.quick, plan.rounds) = (true, 1),
            "--peers" => plan.with_peers = true,
            "--rounds" => {
                let count = args
                    .next()
                    .and_then(|count| count.parse().ok())
                    .filter(|count| *count > 0);
                plan.rounds = count.ok_or("--rounds takes a number")?;
            }
            name if BENCHES.iter().any(|(known, _)| *known == name) => plan.only.push(arg),
            _ => return Err(format!("unknown argument '{arg}'")),
        }
    }
    Ok(plan)
}
