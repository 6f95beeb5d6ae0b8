//! The program of the network tests: `pool serve` serves its routines, and `load` calls them.
//!
//! `load SETTINGS`, with settings as JSON, calls until its standard input ends, and prints the
//! outcome of each call as a JSON line. Times are in milliseconds of `CLOCK_MONOTONIC`, which all
//! hosts of a machine share.

mod monotonic;

use std::{
    io::{Read, Write},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use raddle::{
    WorkerPool,
    discovery::{LanDiscovery, StaticDiscovery},
    pool::{PoolBuilder, WorkerMetadata},
    tls::WorkerCredentials,
};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use self::monotonic::now;

/// Settings of the load.
#[derive(Deserialize)]
struct Settings {
    /// The workers to call. Without a list, those of the LAN namespace `lan`.
    workers: Option<Vec<WorkerMetadata>>,
    lan: Option<String>,
    /// The number of concurrent callers.
    callers: usize,
    /// The pause after each call, in milliseconds.
    rest: u64,
    /// The timeout of a call, in milliseconds.
    timeout: Option<u64>,
    /// The duration of the routine, in milliseconds.
    linger: u64,
    /// CA, certificate and key.
    credentials: Option<[PathBuf; 3]>,
}

/// The outcome of a call.
#[derive(Serialize)]
struct CallRecord {
    began: u64,
    ended: u64,
    /// The host and the process that ran it.
    host: Option<String>,
    process: Option<u32>,
    error: Option<String>,
    may_have_begun: bool,
}

/// Returns the host and the pid after a while.
#[raddle::routine(name = "linger")]
async fn linger(millis: u64) -> (String, u32) {
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    (host.trim().to_owned(), std::process::id())
}

fn print_line(value: &impl Serialize) {
    let mut line = serde_json::to_string(value).unwrap_or_default();
    line.push('\n');
    // The test has closed the pipe.
    if std::io::stdout().lock().write_all(line.as_bytes()).is_err() {
        std::process::exit(0);
    }
}

async fn builder(settings: &Settings) -> raddle::Result<PoolBuilder> {
    let builder = WorkerPool::builder();
    let builder = match (&settings.workers, &settings.lan) {
        (Some(workers), _) => builder.discovery(StaticDiscovery::new(workers.clone())),
        (None, name) => builder.discovery(LanDiscovery::new(name.as_deref().unwrap_or("default"))?),
    };
    Ok(match &settings.credentials {
        Some([ca, certificate, key]) => builder.credentials(
            WorkerCredentials::from_files(ca, certificate, key).map_err(raddle::Error::from)?,
        ),
        None => builder,
    })
}

async fn load(settings: Settings) -> raddle::Result<()> {
    let pool = Arc::new(builder(&settings).await?.start().await?);
    let Settings {
        callers,
        rest,
        timeout,
        linger: millis,
        ..
    } = settings;
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let pool = Arc::clone(&pool);
        tasks.spawn(async move {
            loop {
                let (began, mut call) = (now(), linger(millis).on(&*pool));
                if let Some(timeout) = timeout {
                    call = call.timeout(Duration::from_millis(timeout));
                }
                let outcome = call.await;
                let may_have_begun = outcome.as_ref().is_err_and(|error| error.may_have_begun());
                let error = outcome.as_ref().err().map(ToString::to_string);
                let (host, process) = outcome.ok().unzip();
                print_line(&CallRecord {
                    began,
                    ended: now(),
                    host,
                    process,
                    error,
                    may_have_begun,
                });
                tokio::time::sleep(Duration::from_millis(rest)).await;
            }
        });
    }
    // The test holds the other end.
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    // The callers stop before the runtime does: a shutdown of the runtime drops tasks in any order,
    // so a caller would see its pool's connection tasks disappear and report a failed call.
    tasks.shutdown().await;
    Ok(())
}

#[raddle::main]
async fn main() -> raddle::Result<()> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("load"), Some(settings)) => load(serde_json::from_str(&settings)?).await,
        _ => Err(raddle::Error::msg("usage: pool serve … | load SETTINGS")),
    }
}
