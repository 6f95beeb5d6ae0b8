//! A program whose function runs as a task, on a worker that is the same program: see
//! docs/how-to/handlers.md.

use raddle::prelude::*;

#[raddle::routine]
async fn add(a: u64, b: u64) -> u64 {
    a + b
}

#[raddle::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = connect(&"sqlite:.raddle/raddle.db".parse()?).await?;
    let handle = add::task(1, 2).retry(5).submit(&broker).await?;
    println!("{}", handle.result().await?);
    Ok(())
}
