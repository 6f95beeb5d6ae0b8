//! The program whose routines are called, and its floor: a bare tonic echo over a Unix socket.
//!
//! `raddle-bench-calls round` measures one round and prints it as JSON; `… floor SOCKET` is the
//! server of the floor.

#[path = "floor.rs"]
mod floor;
#[path = "secure.rs"]
mod secure;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{Stream, future::join_all, stream};
use raddle::WorkerPool;

/// The number of concurrent calls.
const WIDE: usize = 100;
const BULK: usize = 1024 * 1024;

#[raddle::routine]
async fn add(a: u64, b: u64) -> u64 {
    a + b
}

#[raddle::routine]
async fn echo(bytes: Bytes) -> Bytes {
    bytes
}

#[raddle::routine]
fn count(to: u64) -> impl Stream<Item = u64> + Send {
    stream::iter(0..to)
}

#[raddle::routine]
async fn nested(a: u64, b: u64) -> Result<u64, String> {
    add(a, b).await.map_err(|error| error.to_string())
}

/// Takes about as long as a short real call.
#[raddle::routine]
async fn rest(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

#[raddle::main]
async fn main() -> raddle::Result<()> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("floor"), Some(socket)) => floor::serve(&socket).await?,
        (Some("round"), size) => {
            let calls = size.and_then(|size| size.parse().ok()).unwrap_or(5000);
            println!("{}", serde_json::to_string(&round(calls).await?)?);
        }
        _ => eprintln!("usage: raddle-bench-calls round [CALLS] | floor SOCKET"),
    }
    Ok(())
}

type Figures = BTreeMap<&'static str, f64>;

async fn round(calls: usize) -> raddle::Result<Figures> {
    let mut figures = Figures::new();
    let floor = floor::Floor::start().await?;
    let began = Instant::now();
    let pool = WorkerPool::builder().size(1).start().await?;
    figures.insert("pool of 1 ready, ms", millis(began.elapsed()));
    // Warm up what is created on first use.
    for _ in 0..200 {
        floor.echo(Bytes::from_static(b"hello")).await?;
        add(1, 2).on(&pool).await?;
    }
    sequential(&pool, &floor, calls, &mut figures).await?;
    concurrent(&pool, &floor, calls * 10, &mut figures).await?;
    bulk(&pool, &floor, calls / 25, &mut figures).await?;
    items(&pool, calls * 100, &mut figures).await?;
    for _ in 0..14 {
        let fan_out = join_all((0..256).map(|_| rest(5).on(&pool))).await;
        assert!(fan_out.iter().all(Result::is_ok), "no call is refused");
    }
    assert_eq!(pool.workers().len(), 1, "the worker is still in use");
    floor.stop().await?;
    let pid = pool.workers()[0].pid;
    figures.insert("worker, MB (PSS)", pss_mb(pid)?);
    let began = Instant::now();
    pool.stop().await;
    figures.insert("pool exit, ms", millis(began.elapsed()));
    let began = Instant::now();
    let pair = WorkerPool::builder().size(2).start().await?;
    figures.insert("pool of 2 ready, ms", millis(began.elapsed()));
    tokio::time::sleep(Duration::from_millis(200)).await;
    figures.insert("idle worker, MB (PSS)", pss_mb(pair.workers()[0].pid)?);
    let began = Instant::now();
    pair.stop().await;
    figures.insert("idle pool exit, ms", millis(began.elapsed()));
    secure::compare(calls, &mut figures).await?;
    Ok(figures)
}

/// In turn, so that both are measured under the same load of the machine.
async fn sequential(
    pool: &WorkerPool,
    floor: &floor::Floor,
    calls: usize,
    figures: &mut Figures,
) -> raddle::Result<()> {
    let (mut bare, mut ours, mut nest) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..10 {
        for _ in 0..calls / 10 {
            let began = Instant::now();
            floor.echo(Bytes::from_static(b"hello")).await?;
            bare.push(began.elapsed());
        }
        for _ in 0..calls / 10 {
            let began = Instant::now();
            assert_eq!(add(1, 2).on(pool).await?, 3);
            ours.push(began.elapsed());
        }
        for _ in 0..calls / 20 {
            let began = Instant::now();
            assert_eq!(nested(1, 2).on(pool).await?, 3);
            nest.push(began.elapsed());
        }
    }
    let rate =
        |times: &[Duration]| times.len() as f64 / times.iter().sum::<Duration>().as_secs_f64();
    figures.insert("floor, one after the other, /s", rate(&bare));
    figures.insert("calls, one after the other, /s", rate(&ours));
    figures.insert("nested calls, /s", rate(&nest));
    [&mut bare, &mut ours]
        .into_iter()
        .for_each(|times| times.sort_unstable());
    let at = |times: &[Duration], share: f64| {
        times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6
    };
    figures.insert("floor p50, us", at(&bare, 0.5));
    figures.insert("floor p99, us", at(&bare, 0.99));
    figures.insert("calls p50, us", at(&ours, 0.5));
    figures.insert("calls p99, us", at(&ours, 0.99));
    Ok(())
}

async fn concurrent(
    pool: &WorkerPool,
    floor: &floor::Floor,
    calls: usize,
    figures: &mut Figures,
) -> raddle::Result<()> {
    let each = calls / WIDE;
    let began = Instant::now();
    let bare = (0..WIDE).map(|_| async {
        for _ in 0..each {
            floor.echo(Bytes::from_static(b"hello")).await?;
        }
        raddle::Result::Ok(())
    });
    join_all(bare)
        .await
        .into_iter()
        .collect::<raddle::Result<()>>()?;
    figures.insert(
        "floor, 100 at a time, /s",
        (each * WIDE) as f64 / began.elapsed().as_secs_f64(),
    );
    let began = Instant::now();
    let ours = (0..WIDE).map(|_| async {
        for _ in 0..each {
            add(1, 2).on(pool).await?;
        }
        raddle::Result::Ok(())
    });
    join_all(ours)
        .await
        .into_iter()
        .collect::<raddle::Result<()>>()?;
    figures.insert(
        "calls, 100 at a time, /s",
        (each * WIDE) as f64 / began.elapsed().as_secs_f64(),
    );
    Ok(())
}

async fn bulk(
    pool: &WorkerPool,
    floor: &floor::Floor,
    calls: usize,
    figures: &mut Figures,
) -> raddle::Result<()> {
    let bytes = Bytes::from(vec![7; BULK]);
    let began = Instant::now();
    for _ in 0..calls {
        assert_eq!(floor.echo(bytes.clone()).await?.len(), BULK);
    }
    figures.insert(
        "floor, 1 MiB echo, /s",
        calls as f64 / began.elapsed().as_secs_f64(),
    );
    let began = Instant::now();
    for _ in 0..calls {
        assert_eq!(echo(bytes.clone()).on(pool).await?.len(), BULK);
    }
    figures.insert(
        "calls, 1 MiB echo, /s",
        calls as f64 / began.elapsed().as_secs_f64(),
    );
    Ok(())
}

async fn items(pool: &WorkerPool, to: usize, figures: &mut Figures) -> raddle::Result<()> {
    let began = Instant::now();
    let mut items = count(to as u64).on(pool);
    let mut seen = 0;
    while let Some(item) = items.next().await {
        assert_eq!(item?, seen);
        seen += 1;
    }
    assert_eq!(seen, to as u64, "all items arrived");
    figures.insert(
        "items of a stream, /s",
        to as f64 / began.elapsed().as_secs_f64(),
    );
    Ok(())
}

fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

fn pss_mb(pid: u32) -> raddle::Result<f64> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = rollup
        .lines()
        .find(|line| line.starts_with("Pss:"))
        .unwrap_or_default();
    Ok(line
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse::<f64>().ok())
        .unwrap_or(f64::NAN)
        / 1024.0)
}
