//! A program whose function runs as a task, each time in its own process. It is its own worker: see
//! docs/start/first-function.md.

use raddle::prelude::*;

/// The sum of all numbers up to `n`, and the process that has added them up.
#[raddle::routine(name = "sum", isolation = "process")]
fn sum(n: u64) -> (u64, u32) {
    println!("adding up {n} numbers");
    ((1..=n).sum(), std::process::id())
}

#[raddle::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = connect(&"sqlite:.raddle/raddle.db".parse()?).await?;
    let mut calls = Vec::new();
    for n in [10, 100, 1000] {
        calls.push(sum::task(n).retry(3).submit(&broker).await?);
    }
    for call in calls {
        let (sum, pid) = call.result().await?;
        println!("{sum} by process {pid}");
    }
    Ok(())
}
