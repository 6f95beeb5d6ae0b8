//! A program whose functions run on this machine and on every machine that serves them: see
//! docs/tutorials/many-machines.md.

use raddle::{WorkerPool, discovery::LanDiscovery, pool::WorkerCredentials};

/// The sum of all numbers up to `n`, and the machine that has added them up.
#[raddle::routine]
async fn sum(n: u64) -> (u64, String) {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    ((1..=n).sum(), host.trim().to_owned())
}

#[raddle::main]
async fn main() -> raddle::Result<()> {
    let own = WorkerCredentials::from_files("ca-cert.pem", "own-cert.pem", "own-key.pem")?;
    let pool = WorkerPool::builder()
        .size(1)
        .discovery(LanDiscovery::new("sums")?)
        .credentials(own)
        .start()
        .await?;
    pool.scope(async {
        for n in [10, 100, 1000] {
            let (sum, host) = sum(n).await?;
            println!("{sum} on {host}");
        }
        Ok(())
    })
    .await
}
