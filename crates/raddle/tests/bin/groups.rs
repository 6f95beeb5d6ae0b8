//! A program with a group manager of its own processes. Its first argument selects the scenario.

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

/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

#[raddle::routine(name = "ship")]
async fn ship(item: String, count: u32) -> String {
    tokio::time::sleep(Duration::from_millis(1)).await;
    format!("{count} × {item}")
}

/// Takes this long, and leaves files at its start and end.
#[raddle::routine(name = "linger")]
async fn linger(millis: u64) {
    let _ = std::fs::write("begun", "");
    tokio::time::sleep(Duration::from_millis(millis)).await;
    let _ = std::fs::write("ended", "");
}

/// Runs until it is cancelled, and cleans up.
#[raddle::routine(name = "endless")]
async fn endless() -> Result<(), String> {
    let _ = std::fs::write("begun", "");
    raddle::cancelled().await;
    let _ = std::fs::write("cleaned", if raddle::is_cancelled() { "asked" } else { "" });
    Err("cancelled".into())
}

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
            return Err(format!("timed out waiting until {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

async fn wait_for_file(name: &str) -> Outcome {
    wait_until(name, async || Ok(Path::new(name).exists())).await
}

/// The pids of the processes of a manager.
async fn pids(manager: Tid) -> Outcome<Vec<u32>> {
    let workers = broker().await?.workers().await?;
    Ok(workers
        .iter()
        .filter(|entry| entry.info.parent == Some(manager))
        .map(|entry| entry.info.pid)
        .collect())
}

async fn wait_until_gone(pids: &[u32]) -> Outcome {
    // A zombie has an empty command line.
    let is_running = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
    };
    wait_until("all processes have ended", async || {
        Ok(!pids.iter().any(is_running))
    })
    .await
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

/// Messages run routines of this program, and a stop lets one clean up.
async fn run() -> Outcome {
    let manager = builder().register().await?;
    let (shutdown, up) = (Shutdown::new(), is_up(&manager));
    let keeping = tokio::spawn(manager.run(shutdown.clone()));
    assert!(up.await, "the manager is up");
    for number in 1..=3 {
        write(
            "ships",
            &format!(r#"{{"item": "loom", "count": {number}}}"#),
        )
        .await?;
    }
    let broker = broker().await?;
    let mut done = Vec::new();
    wait_until("all messages are processed", async || {
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
    // The first request stops the intake, the second cancels running tasks.
    shutdown.request();
    wait_until("the intake is stopped", async || {
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

/// Runs until a signal arrives.
async fn signalled() -> Outcome {
    let manager = builder().register().await?;
    let up = is_up(&manager);
    let keeping = tokio::spawn(manager.run(Shutdown::new()));
    assert!(up.await, "the manager is up");
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

/// The manager is dropped: its processes finish their tasks and exit.
async fn dropped() -> Outcome {
    let manager = builder().register().await?;
    let (tid, up) = (manager.tid(), is_up(&manager));
    let keeping = tokio::spawn(manager.run(Shutdown::new()));
    assert!(up.await, "the manager is up");
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

/// The runtime of the manager ends while this program continues: the processes are killed.
async fn without_runtime() -> Outcome {
    let of_thread = || -> Outcome<Vec<u32>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let manager = builder().register().await?;
            let (tid, up) = (manager.tid(), is_up(&manager));
            tokio::spawn(manager.run(Shutdown::new()));
            assert!(up.await, "the manager is up");
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

/// A trigger fires periodically, without another scheduler.
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
    wait_until("the trigger has fired", async || {
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
        other => Err(format!("unknown scenario {other:?}").into()),
    }
}
