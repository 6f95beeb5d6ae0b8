//! A program whose routines share hosts: with state, sleeps, crashes and everything else that can
//! happen in a warm process. `warm submit ROUTINE [COUNT] [ARGS…]` submits tasks, `warm wait` waits
//! for all tasks and prints what became of them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use raddle::{
    State,
    broker::{NewTask, TaskFilter, connect},
    core::{HumanDuration, Target, TaskSpec},
    group::{EventError, EventWorker, GroupWorker, Manager, Process},
};
use serde_json::{Value, json};

/// State that a start-up function creates once per host.
struct Db {
    pid: u32,
    used: AtomicU64,
}

#[raddle::startup]
async fn open() -> Result<Db, std::io::Error> {
    if let Ok(path) = std::env::var("WARM_STARTUP_LOG") {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)?;
        writeln!(file, "{}", std::process::id())?;
    }
    if std::env::var("WARM_STARTUP").is_ok_and(|how| how == "fail") {
        return Err(std::io::Error::other("the database is away"));
    }
    if std::env::var("WARM_STARTUP").is_ok_and(|how| how == "hang") {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    Ok(Db {
        pid: std::process::id(),
        used: AtomicU64::new(0),
    })
}

#[raddle::shutdown]
async fn close(db: State<Db>) -> Result<(), std::io::Error> {
    if let Ok(path) = std::env::var("WARM_SHUTDOWN_LOG") {
        std::fs::write(path, db.used.load(Ordering::Relaxed).to_string())?;
    }
    Ok(())
}

#[raddle::routine(name = "count")]
async fn count(db: State<Db>, by: u64) -> (u32, u64) {
    (db.pid, db.used.fetch_add(by, Ordering::Relaxed) + by)
}

#[raddle::routine(name = "nap")]
async fn nap(ms: u64, db: State<Db>) -> u32 {
    tokio::time::sleep(Duration::from_millis(ms)).await;
    db.pid
}

#[raddle::routine(name = "noop")]
async fn noop() {}

#[raddle::routine(name = "plain")]
fn plain(ms: u64) -> u32 {
    std::thread::sleep(Duration::from_millis(ms));
    assert!(raddle::state::<Db>().is_some(), "state is there on threads");
    std::process::id()
}

#[raddle::routine(name = "fresh", isolation = "process")]
async fn fresh(db: State<Db>) -> (u32, u64) {
    (std::process::id(), db.used.fetch_add(1, Ordering::Relaxed))
}

#[raddle::routine(name = "crash")]
async fn crash(how: String) {
    tokio::time::sleep(Duration::from_millis(20)).await;
    match how.as_str() {
        "abort" => std::process::abort(),
        "exit" => std::process::exit(0),
        "kill" => {
            let _ = std::process::Command::new("kill")
                .args(["-9", &std::process::id().to_string()])
                .status();
        }
        "panic" => panic!("bang"),
        _ => {}
    }
}

/// Blocks the event loop.
#[raddle::routine(name = "block")]
async fn block(ms: u64) -> u32 {
    std::thread::sleep(Duration::from_millis(ms));
    std::process::id()
}

/// Ignores cancellation on a thread.
#[raddle::routine(name = "stubborn")]
fn stubborn() {
    std::thread::sleep(Duration::from_secs(3600));
}

/// Ends in good order when it is cancelled.
#[raddle::routine(name = "polite")]
async fn polite(path: String) -> Result<(), std::io::Error> {
    raddle::cancelled().await;
    std::fs::write(path, "cancelled")
}

#[raddle::routine(name = "talk")]
async fn talk() -> u32 {
    raddle::progress(40.0, "halfway");
    raddle::log(raddle::core::reply::LogLevel::Warn, "a line of the log");
    tokio::time::sleep(Duration::from_millis(300)).await;
    42
}

#[raddle::routine(name = "relay")]
async fn relay(left: u32) -> Result<u32, raddle::ChainError> {
    if left > 0 {
        relay::task(left - 1).chain()?;
    }
    Ok(left)
}

/// A worker of groups that counts its events.
struct Till {
    sold: AtomicU64,
}

impl EventWorker for Till {
    type Event = std::collections::BTreeMap<String, String>;

    fn settings() -> GroupWorker {
        GroupWorker::new("till").execution_timeout(Duration::from_secs(60))
    }

    async fn startup() -> Result<Self, EventError> {
        note("started")?;
        Ok(Self {
            sold: AtomicU64::new(0),
        })
    }

    async fn handle(&self, event: Self::Event) -> Result<(), EventError> {
        if event.get("item").is_none_or(String::is_empty) {
            return Err("there is no item".into());
        }
        let sold = self.sold.fetch_add(1, Ordering::Relaxed) + 1;
        raddle::log(raddle::core::reply::LogLevel::Info, format!("sold {sold}"));
        Ok(())
    }

    async fn shutdown(self) -> Result<(), EventError> {
        note(&format!("sold {}", self.sold.into_inner()))
    }
}

raddle::event_worker!(Till);

/// A worker of groups that nothing here serves: its start-up would end the process.
struct Vault;

impl EventWorker for Vault {
    type Event = String;

    fn settings() -> GroupWorker {
        GroupWorker::new("vault")
    }

    async fn startup() -> Result<Self, EventError> {
        Err("the vault is locked".into())
    }

    async fn handle(&self, _: String) -> Result<(), EventError> {
        Ok(())
    }
}

raddle::event_worker!(Vault);

/// Adds a line to the file of the test, if it wants one.
fn note(line: &str) -> Result<(), EventError> {
    if let Ok(path) = std::env::var("WARM_NOTES") {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)?;
        writeln!(file, "{line}")?;
    }
    Ok(())
}

#[raddle::routine(name = "sorry")]
async fn sorry(whom: String) -> Result<(), String> {
    Err(format!("sorry, {whom}"))
}

/// Leaves a child behind in the host.
#[raddle::routine(name = "fork")]
async fn fork() -> Result<u32, std::io::Error> {
    Ok(std::process::Command::new("sleep")
        .arg("3600")
        .spawn()?
        .id())
}

/// Uses memory and keeps it.
#[raddle::routine(name = "leak")]
async fn leak(mb: usize) -> u32 {
    std::mem::forget(vec![1_u8; mb << 20]);
    std::process::id()
}

#[raddle::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = connect(&std::env::var("QUEUE_URL")?.parse()?).await?;
    let words: Vec<String> = std::env::args().skip(2).collect();
    match std::env::args().nth(1).as_deref() {
        Some("submit") => {
            let count: usize = words.get(1).map_or(Ok(1), |word| word.parse())?;
            let target = match words[0].strip_prefix("handler:") {
                Some(handler) => Target::Handler(handler.into()),
                None => Target::Routine(words[0].clone()),
            };
            let mut spec = TaskSpec::new(target);
            for word in words.iter().skip(2) {
                if let Some(queue) = word.strip_prefix("--queue=") {
                    spec.queue = queue.into();
                    continue;
                }
                if let Some(directory) = word.strip_prefix("--cwd=") {
                    spec.cwd = Some(directory.into());
                    continue;
                }
                if word == "--shared" {
                    spec.isolation = Some(raddle::core::spec::Isolation::Shared);
                    continue;
                }
                match word.strip_prefix("--timeout=") {
                    Some(ms) => {
                        spec.timeout = Some(HumanDuration(Duration::from_millis(ms.parse()?)));
                    }
                    None => spec
                        .args
                        .push(serde_json::from_str(word).unwrap_or_else(|_| json!(word))),
                }
            }
            let mut left = count;
            while left > 0 {
                let batch = left.min(500);
                let tasks = vec![NewTask::new(spec.clone()); batch];
                for stored in broker.submit(tasks).await? {
                    println!("{}", stored.tid());
                }
                left -= batch;
            }
        }
        Some("wait") => {
            let deadline = std::time::Instant::now() + Duration::from_secs(120);
            loop {
                let filter = TaskFilter {
                    limit: 1_000_000,
                    ..TaskFilter::default()
                };
                let tasks = broker.tasks(filter).await?;
                if tasks.iter().all(|task| task.state.is_terminal()) {
                    for task in tasks {
                        let report = task.report;
                        let line = json!({
                            "tid": task.tid,
                            "routine": task.spec.display_name(),
                            "state": task.state.to_string(),
                            "attempt": task.attempt,
                            "failures": task.failures,
                            "losses": task.losses,
                            "dead": task.dead,
                            "exit": report.as_ref().map(|report| report.exit.to_string()),
                            "value": report.and_then(|report| report.value).unwrap_or(Value::Null),
                        });
                        println!("{line}");
                    }
                    break;
                }
                if std::time::Instant::now() > deadline {
                    return Err("tasks are left".into());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Some("running") => {
            let running = raddle::core::TaskState::Running;
            let filter = TaskFilter {
                states: vec![running],
                limit: 1_000_000,
                ..TaskFilter::default()
            };
            println!("{}", broker.tasks(filter).await?.len());
        }
        Some("control") => {
            broker.control(words[0].parse()?, words[1].parse()?).await?;
        }
        Some("explain") => {
            let tid = words[0].parse()?;
            let task = broker.task(tid).await?.ok_or("there is no such task")?;
            let explained = raddle::client::explain::explain_task(&*broker, &task).await?;
            println!("{}", explained.line(&task));
        }
        Some("statuses") => {
            for worker in broker.workers().await? {
                println!("{}", worker.status.as_str());
            }
        }
        Some("replies") => {
            let queue = format!("T{}.ctrl_out", words[0]).parse()?;
            let peek = raddle::broker::PeekRequest {
                queue,
                max: 100,
                after: 0,
                wait: Duration::ZERO,
            };
            for message in broker.peek(peek).await? {
                println!("{}", message.body);
            }
        }
        Some("logs") => {
            for stream in [
                raddle::broker::OutputStream::Stdout,
                raddle::broker::OutputStream::Stderr,
            ] {
                let text = broker
                    .read_output(words[0].parse()?, 1, stream, 0, 1 << 20)
                    .await?;
                print!("{}", String::from_utf8_lossy(&text));
            }
        }
        Some("groups") => {
            for view in raddle::group::list(&*broker).await? {
                println!("{} {:?}", view.slug, view.failure);
            }
        }
        Some("keep") => {
            let process = Process::new("shop").hosting::<Till>();
            let manager = Manager::builder().process(process).register().await?;
            let ended = manager.run_until_signal().await?;
            println!("{} processes were started", ended.started);
        }
        other => return Err(format!("there is no {other:?}").into()),
    }
    Ok(())
}
