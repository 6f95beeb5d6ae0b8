//! A program whose functions are called in other processes, one of them a stream: see
//! docs/how-to/calls.md.

use raddle::{Stream, WorkerPool};

#[raddle::routine]
async fn add(a: u64, b: u64) -> u64 {
    a + b
}

#[raddle::routine]
fn countdown(from: u32) -> impl Stream<Item = u32> {
    futures_util::stream::iter((1..=from).rev())
}

#[raddle::main]
async fn main() -> raddle::Result<()> {
    let pool = WorkerPool::builder().size(4).start().await?;
    pool.scope(async {
        assert_eq!(add(1, 2).await?, 3);
        let mut n = countdown(3);
        while let Some(i) = n.next().await {
            println!("{}", i?);
        }
        Ok(())
    })
    .await
}
