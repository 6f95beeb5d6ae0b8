//! The program of the LAN tests, which runs in hosts of a test network.
//!
//! Its first argument is JSON ([`Settings`]). Each line of its input is a command; each line of its
//! output is a JSON reply or event.

use std::{io::Write, path::PathBuf, sync::Arc, time::Duration};

use raddle::{
    WorkerPool,
    discovery::{Discovery, DiscoveryEvent, LanDiscovery, Publisher, Subscription, WorkerFilter},
    pool::{WorkerMetadata, worker::LocalWorker},
    tls::{CredentialSource, PeerName, PemSource, WorkerCredentials},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Settings of the program.
#[derive(Deserialize)]
struct Settings {
    namespace: String,
    interfaces: Option<Vec<String>>,
    advertise: Option<String>,
    /// Whether to print discovery events, of all workers or of those with this tag.
    watch: Option<bool>,
    tag: Option<String>,
    pool: Option<PoolSettings>,
}

/// Settings of its pool.
#[derive(Clone, Deserialize)]
struct PoolSettings {
    #[serde(default)]
    size: usize,
    /// The bind address of its workers.
    bind: Option<String>,
    #[serde(default)]
    publish: bool,
    #[serde(default)]
    discover: bool,
    /// A CA, a certificate and its key.
    credentials: Option<[PathBuf; 3]>,
}

/// The host and the pid.
#[raddle::routine]
async fn whereabouts() -> (String, u32) {
    (
        std::fs::read_to_string("/proc/sys/kernel/hostname")
            .unwrap_or_default()
            .trim()
            .to_owned(),
        std::process::id(),
    )
}

/// The hosts of the workers that it calls in turn, so many times.
#[raddle::routine]
async fn others(times: u32) -> Vec<String> {
    let mut hosts = Vec::new();
    for _ in 0..times {
        hosts.push(
            whereabouts()
                .timeout(Duration::from_secs(5))
                .await
                .map_or_else(|error| error.to_string(), |(host, _)| host),
        );
    }
    hosts
}

#[raddle::main]
async fn main() -> raddle::Result<()> {
    let settings: Settings = serde_json::from_str(&std::env::args().nth(1).unwrap_or_default())?;
    let mut lan = LanDiscovery::new(&settings.namespace)?;
    if let Some(interfaces) = &settings.interfaces {
        lan = lan.interfaces(interfaces.clone());
    }
    if let Some(address) = &settings.advertise {
        lan = lan.advertise(address)?;
    }
    if settings.watch == Some(true) {
        let filter = settings.tag.clone().map(|tag| {
            Arc::new(move |worker: &WorkerMetadata| worker.tags.contains(&tag)) as WorkerFilter
        });
        match lan.subscribe(filter).await {
            // The task ends with the program.
            Ok(subscription) => drop(tokio::spawn(watch(subscription))),
            Err(error) => print_line(&json!({"error": error.to_string()})),
        }
    }
    let mut pool = match &settings.pool {
        Some(settings) => Some(start(settings.clone(), &lan).await?),
        None => None,
    };
    print_line(&json!("ready"));
    let (send, mut commands) = tokio::sync::mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if send.blocking_send(line).is_err() {
                return;
            }
        }
    });
    while let Some(line) = commands.recv().await {
        let (command, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match command {
            "added" | "updated" | "dropped" => {
                publish(&lan, command, serde_json::from_str(rest)?).await
            }
            "recheck" => {
                lan.request_recheck(&serde_json::from_str(rest)?);
                json!("ok")
            }
            "workers" => json!(pool.as_ref().map(WorkerPool::workers)),
            "call" => call(pool.as_ref(), rest).await,
            "stop" => {
                if let Some(pool) = pool.take() {
                    pool.stop().await;
                }
                json!("ok")
            }
            _ => break,
        };
        print_line(&json!({ "answer": answer }));
    }
    Ok(())
}

/// Makes one call (`call`) or several (`call others 3`).
async fn call(pool: Option<&WorkerPool>, rest: &str) -> Value {
    let Some(pool) = pool else {
        return json!("no pool");
    };
    let timeout = Duration::from_secs(10);
    let outcome = match rest.strip_prefix("others ") {
        Some(times) => others(times.parse().unwrap_or(1))
            .timeout(timeout)
            .on(pool)
            .await
            .map(|hosts| json!(hosts)),
        None => whereabouts()
            .timeout(timeout)
            .on(pool)
            .await
            .map(|(host, pid)| json!([host, pid])),
    };
    outcome.unwrap_or_else(|error| json!({"error": error.to_string()}))
}

async fn publish(lan: &LanDiscovery, command: &str, worker: WorkerMetadata) -> Value {
    let event = match command {
        "added" => DiscoveryEvent::Added(worker),
        "updated" => DiscoveryEvent::Updated(worker),
        _ => DiscoveryEvent::Dropped(worker),
    };
    lan.publish(event).await.map_or_else(
        |error| json!({"error": error.to_string()}),
        |()| json!("ok"),
    )
}

async fn start(settings: PoolSettings, lan: &LanDiscovery) -> raddle::Result<WorkerPool> {
    let credentials = settings.credentials.map(load).transpose()?;
    let (worker_credentials, bind) = (credentials.clone(), settings.bind);
    let worker = move |tags: &_| {
        let mut worker = LocalWorker::new(tags);
        if let Some(bind) = &bind {
            worker = worker.address_of(bind.clone());
        }
        match &worker_credentials {
            Some(credentials) => worker.credentials(credentials.clone()),
            None => worker.insecure(),
        }
    };
    let mut builder = WorkerPool::builder().size(settings.size).worker(worker);
    if settings.publish {
        builder = builder.publisher(lan.clone());
    }
    if settings.discover {
        builder = builder.discovery(lan.clone());
    }
    if let Some(credentials) = credentials {
        builder = builder.credentials(credentials);
    }
    Ok(builder.start().await?)
}

fn load([ca, certificate, key]: [PathBuf; 3]) -> raddle::Result<WorkerCredentials> {
    let expected: PeerName = "spiffe://test/worker".parse()?;
    let source = CredentialSource::new(PemSource::file(ca))
        .identity(PemSource::file(certificate), PemSource::file(key));
    Ok(source.expecting([expected]).load()?)
}

/// Prints discovery events.
async fn watch(mut subscription: Subscription) {
    #[derive(Serialize)]
    struct SeenWorker {
        event: &'static str,
        worker: WorkerMetadata,
    }
    while let Some(event) = subscription.next().await {
        let (event, worker) = match event {
            DiscoveryEvent::Added(worker) => ("added", worker),
            DiscoveryEvent::Updated(worker) => ("updated", worker),
            DiscoveryEvent::Dropped(worker) => ("dropped", worker),
        };
        print_line(&json!(SeenWorker { event, worker }));
    }
}

fn print_line(value: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{value}").and_then(|()| out.flush());
}
