//! A program that keeps two processes of itself running, which call a function for each message of
//! a queue: see docs/how-to/groups.md.

use std::time::Duration;

use raddle::{
    group::{GroupWorker, Manager, Process},
    prelude::*,
};

/// Ships an item. A stop cancels the wait, and the function still returns normally.
#[raddle::routine(name = "ship")]
async fn ship(item: String, count: u32) -> String {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(50)) => format!("{count} × {item}"),
        () = raddle::cancelled() => "another time".into(),
    }
}

#[raddle::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}", directory.path().join("orders.db").display());
    let ship = GroupWorker::routine("ship", "ship")
        .source("orders")
        .execution_timeout(Duration::from_secs(5));
    let process = Process::new("shipping")
        .worker(ship)
        .replicas(2)
        .shutdown_timeout(Duration::from_secs(2));
    let manager = Manager::builder()
        .queue_url(&url)
        .process(process)
        .register()
        .await?;

    let (shutdown, mut handle) = (Shutdown::new(), manager.handle());
    let keeping = tokio::spawn(manager.run(shutdown.clone()));
    while !handle.is_up() {
        handle.changed().await;
    }
    let broker = connect(&url.parse()?).await?;
    broker
        .put(
            "orders".parse()?,
            vec![r#"{"item": "loom", "count": 2}"#.into()],
        )
        .await?;
    loop {
        let done = TaskFilter {
            states: vec![TaskState::Completed],
            ..TaskFilter::default()
        };
        if let [task] = &broker.tasks(done).await?[..] {
            println!(
                "{}",
                task.report
                    .as_ref()
                    .and_then(|report| report.value.clone())
                    .unwrap_or_default()
            );
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    shutdown.request();
    println!("{} processes were started", keeping.await??.started);
    Ok(())
}
