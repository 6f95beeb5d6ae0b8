//! A program that keeps processes of itself, by the builder. Its first argument says what becomes of them.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use raddle::{
    group::{GroupWorker, Manager, Process},
    prelude::*,
};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Longer than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What is done with an order.
#[raddle::routine(name = "ship")]
async fn ship(item: String, count: u32) -> String {
    tokio::time::sleep(Duration::from_millis(1)).await;
    format!("{count} × {item}")
}

/// Takes so long, and says so.
#[raddle::routine(name = "linger")]
async fn linger(millis: u64) {
    let _ = std::fs::write("begun", "");
    tokio::time::sleep(Duration::from_millis(millis)).await;
    let _ = std::fs::write("ended", "");
}

/// Never ends by itself, and cleans up when it is asked to end.
#[raddle::routine(name = "endless")]
async fn endless() -> Result<(), String> {
    let _ = std::fs::write("begun", "");
    raddle::cancelled().await;
    let _ = std::fs::write("cleaned", if raddle::is_cancelled() { "asked" } else { "" });
    Err("it was asked to end".into())
}

/// What is due every so often.
#[raddle::routine(name = "tick")]
async fn tick() {}

fn builder() -> raddle::group::Builder {
    let work = |slug: &str| {
        GroupWorker::routine(slug, slug)
            .source(format!("{slug}s"))
            .execution_timeout(TIMEOUT)
    };
    let process = |slug: &str| {
        Process::new(slug)
            .worker(work(slug))
            .shutdown_timeout(Duration::from_secs(10))
    };
    let processes = [
        process("ship").replicas(2),
        process("linger"),
        process("endless").after("ship"),
    ];
    processes.into_iter().fold(
        Manager::builder().name("shop"),
        raddle::group::Builder::process,
    )
}

async fn broker() -> Outcome<Arc<dyn Broker>> {
    Ok(connect(&std::env::var("QUEUE_URL")?.parse()?).await?)
}

async fn write(queue: &str, message: &str) -> Outcome {
    broker()
        .await?
        .put(queue.parse()?, vec![message.into()])
        .await?;
    Ok(())
}

async fn wait_until(what: &str, mut condition: impl AsyncFnMut() -> Outcome<bool>) -> Outcome {
    let began = Instant::now();
    while !condition().await? {
        if began.elapsed() > TIMEOUT {
            return Err(format!("not in time: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

async fn wait_for_file(name: &str) -> Outcome {
    wait_until(name, async || Ok(Path::new(name).exists())).await
}

/// The processes of a manager.
async fn pids(manager: Tid) -> Outcome<Vec<u32>> {
    let workers = broker().await?.workers().await?;
    Ok(workers
        .iter()
        .filter(|entry| entry.info.parent == Some(manager))
        .map(|entry| entry.info.pid)
        .collect())
}

async fn wait_until_gone(pids: &[u32]) -> Outcome {
    // One that has ended and was not waited for is there, and says nothing.
    let is_running = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
    };
    wait_until("all are gone", async || Ok(!pids.iter().any(is_running))).await
}

fn is_up(manager: &Manager) -> impl Future<Output = bool> + use<> {
    let mut handle = manager.handle();
    async move {
        while !handle.is_up() {
            if !handle.changed().await {
                return false;
            }
        }
        true
    }
}

/// Events are run by functions of this program, and a stop lets one clean up.
async fn run() -> Outcome {
    let manager = builder().register().await?;
    let (shutdown, up) = (Shutdown::new(), is_up(&manager));
    let keeping = tokio::spawn(manager.run(shutdown.clone()));
    assert!(up.await, "it is up");
    for number in 1..=3 {
        write(
            "ships",
            &format!(r#"{{"item": "loom", "count": {number}}}"#),
        )
        .await?;
    }
    let broker = broker().await?;
    let mut done = Vec::new();
    wait_until("all are shipped", async || {
        let completed = TaskFilter {
            states: vec![TaskState::Completed],
            ..TaskFilter::default()
        };
        let tasks = broker.tasks(completed).await?;
        done = tasks
            .iter()
            .filter_map(|task| task.report.as_ref()?.value.clone())
            .map(|value| value.to_string())
            .collect();
        Ok(done.len() == 3)
    })
    .await?;
    done.sort();
    println!("{}", done.join(", "));
    write("endlesss", "[]").await?;
    wait_for_file("begun").await?;
    // Once to take nothing new, and again to cancel what runs.
    shutdown.request();
    wait_until("it takes nothing new", async || {
        let workers = broker.workers().await?;
        Ok(workers
            .iter()
            .any(|entry| entry.info.serves("endless") && entry.status.as_str() == "draining"))
    })
    .await?;
    shutdown.request();
    let ended = keeping.await??;
    println!(
        "{} processes, cleaned up: {}",
        ended.started,
        std::fs::read_to_string("cleaned")?
    );
    Ok(())
}

/// Runs until a signal comes.
async fn signalled() -> Outcome {
    let manager = builder().register().await?;
    let up = is_up(&manager);
    let keeping = tokio::spawn(manager.run(Shutdown::new()));
    assert!(up.await, "it is up");
    write("lingers", "[1000]").await?;
    wait_for_file("begun").await?;
    std::fs::write("ready", "")?;
    println!(
        "{} processes, ended: {}",
        keeping.await??.started,
        Path::new("ended").exists()
    );
    println!("{} are left", broker().await?.workers().await?.len());
    Ok(())
}

/// Whoever keeps them is dropped: they end what they run, and leave.
async fn dropped() -> Outcome {
    let manager = builder().register().await?;
    let (tid, up) = (manager.tid(), is_up(&manager));
    let keeping = tokio::spawn(manager.run(Shutdown::new()));
    assert!(up.await, "it is up");
    let pids = pids(tid).await?;
    write("lingers", "[500]").await?;
    wait_for_file("begun").await?;
    keeping.abort();
    wait_until_gone(&pids).await?;
    println!(
        "{} processes are gone, ended: {}",
        pids.len(),
        Path::new("ended").exists()
    );
    Ok(())
}

/// The runtime of whoever keeps them ends, and this program goes on: they are killed.
async fn without_runtime() -> Outcome {
    let of_thread = || -> Outcome<Vec<u32>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let manager = builder().register().await?;
            let (tid, up) = (manager.tid(), is_up(&manager));
            tokio::spawn(manager.run(Shutdown::new()));
            assert!(up.await, "it is up");
            write("lingers", "[600000]").await?;
            wait_for_file("begun").await?;
            pids(tid).await
        })
    };
    let thread = std::thread::spawn(move || of_thread().map_err(|error| error.to_string()));
    let pids = tokio::task::spawn_blocking(|| thread.join())
        .await?
        .expect("it does not panic")?;
    wait_until_gone(&pids).await?;
    println!("{} processes are gone", pids.len());
    Ok(())
}

/// A worker has an event every so often, and nobody else sees to that.
async fn every() -> Outcome {
    let work = GroupWorker::routine("tick", "tick").every(Duration::from_millis(50));
    let manager = Manager::builder()
        .name("clock")
        .process(Process::new("clock").worker(work))
        .register()
        .await?;
    let shutdown = Shutdown::new();
    let keeping = tokio::spawn(manager.run(shutdown.clone()));
    let broker = broker().await?;
    let mut ticks = Vec::new();
    wait_until("it has ticked", async || {
        let completed = TaskFilter {
            states: vec![TaskState::Completed],
            ..TaskFilter::default()
        };
        ticks = broker.tasks(completed).await?;
        Ok(ticks.len() >= 3)
    })
    .await?;
    shutdown.request();
    keeping.await??;
    let is_due = |task: &TaskView| {
        task.spec
            .metadata
            .get("schedule")
            .is_some_and(|schedule| schedule == "tick")
    };
    println!("ticked, by its trigger: {}", ticks.iter().all(is_due));
    Ok(())
}

#[raddle::main]
async fn main() -> Outcome {
    match std::env::args().nth(1).as_deref() {
        Some("run") => run().await,
        Some("every") => every().await,
        Some("signalled") => signalled().await,
        Some("dropped") => dropped().await,
        Some("without-runtime") => without_runtime().await,
        other => Err(format!("{other:?} is none of its deeds").into()),
    }
}
