//! A program that calls its own functions in other processes: see docs/start/first-pool.md.

use raddle::WorkerPool;

/// The sum of all numbers up to `n`, and the process that computed it.
#[raddle::routine]
async fn sum(n: u64) -> (u64, u32) {
    ((1..=n).sum(), std::process::id())
}

#[raddle::main]
async fn main() -> raddle::Result<()> {
    let pool = WorkerPool::builder().size(2).start().await?;
    pool.scope(async {
        for n in [10, 100, 1000] {
            let (sum, pid) = sum(n).await?;
            println!("{sum} by process {pid}");
        }
        Ok(())
    })
    .await
}
