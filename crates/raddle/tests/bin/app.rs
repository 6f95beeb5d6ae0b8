//! An application with routines and a handler, which is also their worker. `app call NAME` submits
//! a task and prints its result.

use std::{
    pin::Pin,
    task::{self, Poll},
};

use raddle::broker::connect;
use raddle::{
    Stream, core::AttemptInput, core::CapSet, core::reply::ReportedError, handler::HandlerContext,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Clone, Debug, Serialize, Deserialize)]
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
    Point {
        x: point.y,
        y: point.x,
    }
}

#[raddle::routine(name = "sorry")]
fn apologize(whom: String) -> Result<(), String> {
    Err(format!("sorry, {whom}"))
}

/// An error with a cause; the report of a task has room for both.
#[raddle::routine]
fn read(path: String) -> std::io::Result<String> {
    std::fs::read_to_string(path)
}

#[raddle::routine]
fn divide(number: i64, by: i64) -> Result<i64, Refusal> {
    number.checked_div(by).ok_or(Refusal { number, by })
}

#[derive(Debug, Serialize, Deserialize)]
struct Refusal {
    number: i64,
    by: i64,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} cannot be divided by {}", self.number, self.by)
    }
}

#[raddle::routine]
fn countdown(from: u32) -> impl Stream<Item = u32> {
    Down(from)
}

struct Down(u32);

impl Stream for Down {
    type Item = u32;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<Option<u32>> {
        let now = self.0;
        self.0 = now.saturating_sub(1);
        Poll::Ready((now > 0).then_some(now))
    }
}

#[raddle::routines]
impl Point {
    #[raddle::routine]
    async fn scale(mut self, by: i64) -> Self {
        tokio::task::yield_now().await;
        self.x *= by;
        self.y *= by;
        self
    }

    #[raddle::routine]
    fn is_origin(&self) -> bool {
        self.x == 0 && self.y == 0
    }

    #[raddle::routine(name = "origin")]
    fn origin() -> Self {
        Self { x: 0, y: 0 }
    }
}

#[raddle::routine]
async fn explode() {
    raddle::log(raddle::core::reply::LogLevel::Warn, "about to explode");
    panic!("bang");
}

#[raddle::routine]
async fn sleep() {
    raddle::progress(10.0, "asleep");
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
}

#[raddle::routine(isolation = "process")]
fn pid() -> u32 {
    std::process::id()
}

/// Chains itself until `left` is 0.
#[raddle::routine]
fn relay(left: u32) -> Result<u32, raddle::ChainError> {
    if left > 0 {
        relay::task(left - 1).priority(7).chain()?;
    }
    Ok(left)
}

/// Chains, and then fails.
#[raddle::routine]
async fn regret() -> Result<(), raddle::Error> {
    relay::task(0).chain()?;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    Err(raddle::Error::msg("on second thoughts"))
}

/// Chains an invalid task.
#[raddle::routine]
fn misname() -> Result<(), raddle::ChainError> {
    relay::task(0).queue("two words").chain()
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

    async fn handle(
        &self,
        job: AttemptInput,
        context: HandlerContext,
    ) -> Result<Value, ReportedError> {
        context.progress(50.0, "halfway");
        if job.spec.kwargs.contains_key("relay") {
            context.chain(relay::task(1).spec().clone())?;
        }
        let number = job.spec.args.first().and_then(Value::as_i64);
        number
            .map(|number| json!(number * 2))
            .ok_or_else(|| "give me a number".into())
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

/// The results of all tasks, the oldest first, once there are `count` and all have ended.
async fn results(
    broker: &std::sync::Arc<dyn raddle::broker::Broker>,
    count: usize,
) -> Result<Vec<Value>, Box<dyn std::error::Error>> {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let mut tasks = broker.tasks(raddle::broker::TaskFilter::default()).await?;
        tasks.reverse();
        if tasks.len() == count && tasks.iter().all(|task| task.state.is_terminal()) {
            let chain = tasks
                .windows(2)
                .all(|pair| pair[1].parent == Some(pair[0].tid));
            assert!(chain, "each task is the child of the one before");
            return Ok(tasks
                .into_iter()
                .map(|task| {
                    task.report
                        .and_then(|report| report.value)
                        .unwrap_or_default()
                })
                .collect());
        }
        if std::time::Instant::now() > deadline || tasks.len() > count {
            return Err(format!("there are {} tasks: {tasks:?}", tasks.len()).into());
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

async fn call() -> Result<(), Box<dyn std::error::Error>> {
    let broker = connect(&std::env::var("QUEUE_URL")?.parse()?).await?;
    match std::env::args().nth(2).unwrap_or_default().as_str() {
        "add" => println!("{}", add::task(1, 2).submit(&broker).await?.result().await?),
        "mirror" => {
            let Point { x, y } = mirror::task(Point { x: 1, y: 2 })
                .submit(&broker)
                .await?
                .result()
                .await?;
            println!("{x} {y}");
        }
        "sorry" => {
            apologize::task("you".into())
                .submit(&broker)
                .await?
                .result()
                .await?
        }
        "read" => println!(
            "{}",
            read::task("/nowhere".into())
                .submit(&broker)
                .await?
                .result()
                .await?
        ),
        "divide" => {
            let handle = divide::task(1, 0).submit(&broker).await?;
            let outcome = handle.result().await.map_err(|error| error.to_string());
            let record = broker
                .task(handle.tid())
                .await?
                .and_then(|task| task.report)
                .ok_or("there is no report")?;
            println!("{outcome:?} {}", serde_json::to_string(&record)?);
        }
        "countdown" => println!(
            "{:?}",
            countdown::task(3).submit(&broker).await?.result().await?
        ),
        "methods" => {
            let point = Point::scale_task(Point { x: 1, y: 2 }, 3)
                .submit(&broker)
                .await?
                .result()
                .await?;
            let is_origin = point
                .is_origin_task()
                .submit(&broker)
                .await?
                .result()
                .await?;
            println!("{} {} {is_origin}", point.x, point.y);
            let origin = Point::origin_task().submit(&broker).await?.result().await?;
            println!(
                "{}",
                origin
                    .is_origin_task()
                    .submit(&broker)
                    .await?
                    .result()
                    .await?
            );
            println!(
                "{:?} {:?}",
                point.scale_task(1).spec().target,
                Point::origin_task().spec().target
            );
        }
        "here" => {
            println!(
                "{} {:?} {}",
                add::local(1, 2).await,
                Point::origin_local().scale_local(2).await,
                read::local("/".into()).is_err()
            );
        }
        "explode" => explode::task().submit(&broker).await?.result().await?,
        "sleep" => {
            let brief = std::time::Duration::from_millis(300);
            sleep::task()
                .timeout(brief)
                .submit(&broker)
                .await?
                .result()
                .await?;
        }
        "pids" => {
            for _ in 0..3 {
                println!("{}", pid::task().submit(&broker).await?.result().await?);
            }
        }
        "schedule" => {
            let when = || raddle::Schedule::every("sums", std::time::Duration::from_millis(100));
            let put = add::task(1, 2).schedule(&broker, when()).await?;
            let again = add::task(1, 2).schedule(&broker, when()).await?;
            println!(
                "{} {}",
                put.entry().fired,
                matches!(again, raddle::client::schedule::PutOutcome::Unchanged(_))
            );
            let tid = loop {
                match broker.schedule("sums").await?.and_then(|view| view.task) {
                    Some(tid) => break tid,
                    None => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
                }
            };
            println!(
                "{}",
                raddle::TaskHandle::<u64>::new(broker.clone(), tid)
                    .result()
                    .await?
            );
            raddle::client::schedule::remove(&*broker, "sums").await?;
            let wrong = add::task(1, 2)
                .schedule(&broker, raddle::Schedule::cron("sums", "soon"))
                .await;
            println!("{}", wrong.err().ok_or("it was put")?);
        }
        "relay" => {
            println!("{}", relay::task(3).submit(&broker).await?.result().await?);
            println!("{:?}", results(&broker, 4).await?);
        }
        "regret" => {
            let error = regret::task()
                .submit(&broker)
                .await?
                .result()
                .await
                .err()
                .ok_or("it went well")?;
            println!("{error} {}", results(&broker, 1).await?.len());
        }
        "misname" => misname::task().submit(&broker).await?.result().await?,
        "handler relay" => {
            let mut spec =
                raddle::core::TaskSpec::new(raddle::core::Target::Handler("Doubler".into()));
            spec.args.push(json!(21));
            spec.kwargs.insert("relay".into(), json!(true));
            broker
                .submit(vec![raddle::broker::NewTask::new(spec)])
                .await?;
            println!("{:?}", results(&broker, 3).await?);
        }
        "outside" => println!("{}", relay::task(0).chain().err().ok_or("it was chained")?),
        "name" => println!("{}", add::NAME),
        other => Err(format!("unknown call '{other}'"))?,
    }
    Ok(())
}
