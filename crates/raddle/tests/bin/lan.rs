//! A program that speaks to the network, for tests that run it in hosts of their own.
//!
//! Its first argument says in JSON what it is to be ([`Settings`]); each line of its input is then a word, and each line of its output in JSON an answer,
//! or something that it has heard.

use std::{io::Write, path::PathBuf, sync::Arc, time::Duration};

use raddle::{
    WorkerPool,
    discovery::{Discovery, DiscoveryEvent, LanDiscovery, Publisher, Subscription, WorkerFilter},
    pool::{WorkerMetadata, worker::LocalWorker},
    tls::{CredentialSource, PeerName, PemSource, WorkerCredentials},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What it is to be.
#[derive(Deserialize)]
struct Settings {
    namespace: String,
    interfaces: Option<Vec<String>>,
    advertise: Option<String>,
    /// It says what it hears, of all workers or of those with this tag.
    watch: Option<bool>,
    tag: Option<String>,
    pool: Option<Pool>,
}

/// A pool that it has.
#[derive(Clone, Deserialize)]
struct Pool {
    #[serde(default)]
    size: usize,
    /// Where its workers serve.
    bind: Option<String>,
    #[serde(default)]
    publish: bool,
    #[serde(default)]
    discover: bool,
    /// A CA, a certificate and its key.
    credentials: Option<[PathBuf; 3]>,
}

/// The host that it runs in, and its process.
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

/// Those of a worker that it calls in its turn, so many times.
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
            // Ends with the program.
            Ok(subscription) => drop(tokio::spawn(watch(subscription))),
            Err(error) => say(&json!({"error": error.to_string()})),
        }
    }
    let mut pool = match &settings.pool {
        Some(wanted) => Some(start(wanted.clone(), &lan).await?),
        None => None,
    };
    say(&json!("ready"));
    let (send, mut words) = tokio::sync::mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if send.blocking_send(line).is_err() {
                return;
            }
        }
    });
    while let Some(line) = words.recv().await {
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match word {
            "added" | "updated" | "dropped" => {
                publish(&lan, word, serde_json::from_str(rest)?).await
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
        say(&json!({ "answer": answer }));
    }
    Ok(())
}

/// Makes a call, or several: `call`, `call others 3`.
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

async fn publish(lan: &LanDiscovery, word: &str, worker: WorkerMetadata) -> Value {
    let event = match word {
        "added" => DiscoveryEvent::Added(worker),
        "updated" => DiscoveryEvent::Updated(worker),
        _ => DiscoveryEvent::Dropped(worker),
    };
    lan.publish(event).await.map_or_else(
        |error| json!({"error": error.to_string()}),
        |()| json!("ok"),
    )
}

async fn start(wanted: Pool, lan: &LanDiscovery) -> raddle::Result<WorkerPool> {
    let credentials = wanted.credentials.map(load).transpose()?;
    let (of_workers, bind) = (credentials.clone(), wanted.bind);
    let worker = move |tags: &_| {
        let mut worker = LocalWorker::new(tags);
        if let Some(bind) = &bind {
            worker = worker.address_of(bind.clone());
        }
        match &of_workers {
            Some(credentials) => worker.credentials(credentials.clone()),
            None => worker.insecure(),
        }
    };
    let mut builder = WorkerPool::builder().size(wanted.size).worker(worker);
    if wanted.publish {
        builder = builder.publisher(lan.clone());
    }
    if wanted.discover {
        builder = builder.discovery(lan.clone());
    }
    if let Some(credentials) = credentials {
        builder = builder.credentials(credentials);
    }
    Ok(builder.start().await?)
}

fn load([ca, certificate, key]: [PathBuf; 3]) -> raddle::Result<WorkerCredentials> {
    let expected: PeerName = "spiffe://test/worker".parse()?;
    let recipe = CredentialSource::new(PemSource::file(ca))
        .identity(PemSource::file(certificate), PemSource::file(key));
    Ok(recipe.expecting([expected]).load()?)
}

/// Says what is heard.
async fn watch(mut subscription: Subscription) {
    #[derive(Serialize)]
    struct Heard {
        event: &'static str,
        worker: WorkerMetadata,
    }
    while let Some(event) = subscription.next().await {
        let (event, worker) = match event {
            DiscoveryEvent::Added(worker) => ("added", worker),
            DiscoveryEvent::Updated(worker) => ("updated", worker),
            DiscoveryEvent::Dropped(worker) => ("dropped", worker),
        };
        say(&json!(Heard { event, worker }));
    }
}

fn say(what: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{what}").and_then(|()| out.flush());
}
