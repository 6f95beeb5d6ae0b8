//! A program with routines and a handler, which is its own worker. `app call NAME` submits one and shows what came of it.

use raddle::{core::CapSet, core::Job, core::reply::Fault, handler::Context, prelude::*};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Debug, Serialize, Deserialize)]
struct Point {
    x: i64,
    y: i64,
}

#[raddle::routine]
async fn add(a: u64, b: u64) -> u64 {
    tokio::task::yield_now().await;
    a + b
}

#[raddle::routine]
fn mirror(point: Point) -> Point {
    println!("mirroring {point:?}");
    Point { x: point.y, y: point.x }
}

#[raddle::routine(name = "sorry")]
fn apologize(whom: String) -> Result<(), String> {
    Err(format!("sorry, {whom}"))
}

#[raddle::routine]
async fn explode() {
    raddle::log(raddle::core::reply::Level::Warn, "about to explode");
    panic!("bang");
}

#[raddle::routine]
async fn sleep() {
    raddle::progress(10.0, "asleep");
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
}

#[raddle::routine]
fn pid() -> u32 {
    std::process::id()
}

struct Doubler;

#[raddle::async_trait]
impl raddle::Handler for Doubler {
    fn name(&self) -> String {
        "Doubler".into()
    }

    fn provides(&self) -> CapSet {
        "cpu,maths".parse().expect("these are tags")
    }

    async fn handle(&self, job: Job, context: Context) -> Result<Value, Fault> {
        context.progress(50.0, "halfway");
        let number = job.spec.args.first().and_then(Value::as_i64);
        number.map(|number| json!(number * 2)).ok_or_else(|| "give me a number".into())
    }
}

raddle::handler!(Doubler);

#[raddle::main]
async fn main() -> std::process::ExitCode {
    match call().await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn call() -> Result<(), Box<dyn std::error::Error>> {
    let broker = connect(&std::env::var("QUEUE_URL")?.parse()?).await?;
    match std::env::args().nth(2).unwrap_or_default().as_str() {
        "add" => println!("{}", add::task(1, 2).submit(&broker).await?.result().await?),
        "mirror" => {
            let Point { x, y } = mirror::task(Point { x: 1, y: 2 }).submit(&broker).await?.result().await?;
            println!("{x} {y}");
        }
        "sorry" => apologize::task("you".into()).submit(&broker).await?.result().await?,
        "explode" => explode::task().submit(&broker).await?.result().await?,
        "sleep" => {
            let brief = std::time::Duration::from_millis(300);
            sleep::task().timeout(brief).submit(&broker).await?.result().await?;
        }
        "pids" => {
            for _ in 0..3 {
                println!("{}", pid::task().submit(&broker).await?.result().await?);
            }
        }
        "name" => println!("{}", add::NAME),
        other => Err(format!("there is no '{other}'"))?,
    }
    Ok(())
}
