//! A program of several machines, for the tests of hosts: `far pool serve` serves its routines, and `far load` calls them.
//!
//! `far load SETTINGS`, which are JSON, calls until its input ends, and says what becomes of each call, a line each. Times are in milliseconds
//! since the machine was started: hosts have the same clock.

mod steady;

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

use self::steady::now;

/// What a caller is to do.
#[derive(Deserialize)]
struct Settings {
    /// These workers, or else those of this name on the network.
    workers: Option<Vec<WorkerMetadata>>,
    lan: Option<String>,
    /// How many call at a time.
    callers: usize,
    /// How long each rests after a call.
    rest: u64,
    /// How long a call may take.
    timeout: Option<u64>,
    /// How long the routine takes.
    linger: u64,
    /// CA, certificate and key.
    credentials: Option<[PathBuf; 3]>,
}

/// What became of a call.
#[derive(Serialize)]
struct Called {
    began: u64,
    ended: u64,
    /// Where it ran: the name of the host, and the process.
    host: Option<String>,
    process: Option<u32>,
    error: Option<String>,
    may_have_begun: bool,
}

/// Says where it runs, after a while.
#[raddle::routine(name = "linger")]
async fn linger(millis: u64) -> (String, u32) {
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    (host.trim().to_owned(), std::process::id())
}

fn say(what: &impl Serialize) {
    let mut line = serde_json::to_string(what).unwrap_or_default();
    line.push('\n');
    // Nobody listens any more: that is the end.
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
    for _ in 0..callers {
        let pool = Arc::clone(&pool);
        // They end with the process.
        tokio::spawn(async move {
            loop {
                let (began, mut call) = (now(), linger(millis).on(&*pool));
                if let Some(timeout) = timeout {
                    call = call.timeout(Duration::from_millis(timeout));
                }
                let outcome = call.await;
                let may_have_begun = outcome.as_ref().is_err_and(|error| error.may_have_begun());
                let error = outcome.as_ref().err().map(ToString::to_string);
                let (host, process) = outcome.ok().unzip();
                say(&Called {
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
    Ok(())
}

#[raddle::main]
async fn main() -> raddle::Result<()> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("load"), Some(settings)) => load(serde_json::from_str(&settings)?).await,
        _ => Err(raddle::Error::msg("far pool serve …, or far load SETTINGS")),
    }
}
