//! A program whose workers the tests of calls use. `callee hold N` keeps a pool of N workers until it is killed, and says which they are.

#[path = "../calls/routines.rs"]
mod routines;

use raddle::WorkerPool;

#[raddle::main]
async fn main() -> raddle::Result<()> {
    let size = std::env::args().nth(2).and_then(|size| size.parse().ok()).unwrap_or(1);
    let pool = WorkerPool::builder().size(size).start().await?;
    for worker in pool.workers() {
        println!("{}", worker.pid);
    }
    println!("ready");
    std::future::pending().await
}
