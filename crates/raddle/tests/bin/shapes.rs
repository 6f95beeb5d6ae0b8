//! A program with routines of all shapes, which calls them in a pool of itself. `shapes NAME`
//! prints results.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use raddle::{CallError, Stream, WorkerPool, context::ContextKey};
use serde::{Deserialize, Serialize};

static TENANT: ContextKey<String> = ContextKey::new("tenant");

#[raddle::routine]
async fn add(a: u64, b: u64) -> u64 {
    tokio::task::yield_now().await;
    a + b
}

/// A plain function with a `mut` argument.
#[raddle::routine]
fn sorted(mut words: Vec<String>) -> Vec<String> {
    words.sort();
    words
}

#[raddle::routine]
fn pid() -> u32 {
    std::process::id()
}

#[raddle::routine]
fn countdown(from: u32) -> impl Stream<Item = u32> {
    Down(from)
}

struct Down(u32);

impl Stream for Down {
    type Item = u32;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
        let now = self.0;
        self.0 = now.saturating_sub(1);
        Poll::Ready((now > 0).then_some(now))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Refusal {
    Zero { number: i64 },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Zero { number } = self;
        write!(f, "{number} cannot be divided by 0")
    }
}

#[raddle::routine]
async fn divide(number: i64, by: i64) -> Result<i64, Refusal> {
    number.checked_div(by).ok_or(Refusal::Zero { number })
}

mod alias {
    pub(super) type Result<T> = std::result::Result<T, super::Refusal>;
}

/// The error type comes from an alias.
#[raddle::routine]
fn divide_by_zero(number: i64) -> alias::Result<i64> {
    Err(Refusal::Zero { number })
}

#[raddle::routine]
async fn read(path: String) -> raddle::Result<String> {
    std::fs::read_to_string(&path).map_err(|cause| Unreadable { path, cause })?;
    Ok(String::new())
}

#[derive(Debug)]
struct Unreadable {
    path: String,
    cause: std::io::Error,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is unreadable", self.path)
    }
}

impl std::error::Error for Unreadable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

#[raddle::routine]
async fn explode() {
    panic!("bang");
}

/// Calls another routine from a worker.
#[raddle::routine]
async fn add_three(a: u64, b: u64, c: u64) -> raddle::Result<u64> {
    Ok(add(add(a, b).await?, c).await?)
}

#[raddle::routine]
async fn tenant() -> Option<String> {
    TENANT.get()
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Point {
    x: f64,
    y: f64,
}

#[raddle::routines]
impl Point {
    #[raddle::routine]
    async fn scale(mut self, by: f64) -> Self {
        self.x *= by;
        self.y *= by;
        self
    }

    #[raddle::routine]
    async fn length(&self) -> f64 {
        tokio::task::yield_now().await;
        self.x.hypot(self.y)
    }

    #[raddle::routine]
    fn origin() -> Point {
        Point { x: 0.0, y: 0.0 }
    }

    #[raddle::routine]
    fn steps(self, number: u32) -> impl Stream<Item = u32> {
        Down(number * self.x as u32)
    }
}

#[raddle::main]
async fn main() -> raddle::Result<()> {
    let command = std::env::args().nth(1).unwrap_or_default();
    if command == "outside" {
        println!("{:?}", add(1, 2).await);
        return Ok(());
    }
    let pool = WorkerPool::builder().size(1).start().await?;
    let done = pool.scope(call(&command, &pool)).await;
    pool.stop().await;
    done
}

async fn call(command: &str, pool: &WorkerPool) -> raddle::Result<()> {
    match command {
        "values" => {
            println!("{}", add(1, 2).await?);
            println!("{:?}", sorted(vec!["b".into(), "a".into()]).await?);
            println!("{}", pid().await? == pid::local());
            println!("{}", tokio::spawn(add(3, 4).on(pool)).await??);
        }
        "items" => {
            let mut items = countdown(3);
            while let Some(item) = items.next().await {
                println!("{}", item?);
            }
        }
        "errors" => {
            println!("{:?}", divide(7, 2).await);
            let refused = CallError::Failed(Refusal::Zero { number: 7 });
            println!(
                "{} {}",
                divide(7, 0).await == Err(refused.clone()),
                divide_by_zero(7).await == Err(refused)
            );
        }
        "panic" => explode().await?,
        "causes" => {
            read("/nowhere".into()).await?;
        }
        "nested" => println!("{}", add_three(1, 2, 3).await?),
        "context" => println!(
            "{:?}",
            TENANT
                .scope("acme".into(), async { tenant().await })
                .await?
        ),
        "methods" => {
            let point = Point { x: 3.0, y: 4.0 }.scale(2.0).await?;
            println!(
                "{point:?} {} {:?}",
                point.length().await?,
                Point::origin().await?
            );
            println!("{:?}", point.steps(1).next().await);
        }
        other => return Err(raddle::Error::msg(format!("there is no '{other}'"))),
    }
    Ok(())
}
