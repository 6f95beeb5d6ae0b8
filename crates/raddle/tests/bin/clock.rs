//! A program that moves its own wall clock, and that of its workers, by hours during calls, and
//! checks that calls continue.

#[path = "fake_clock.rs"]
mod fake_clock;
#[path = "../calls/inotify.rs"]
mod inotify;

use std::{
    future::Future,
    time::{Duration, Instant, SystemTime},
};

use raddle::{
    CallError, WorkerPool,
    pool::worker::{LocalWorker, StopMode},
};

use self::inotify::inotify_fds;

const HOUR: i64 = 3600;
/// The offsets of the clock, one after the other.
const JUMPS: [i64; 4] = [10 * HOUR, -10 * HOUR, 1000 * HOUR, 0];
/// How long workers keep the proxy for nested calls.
const TTL: Duration = Duration::from_secs(2);
/// Longer than the 10 s after which an idle connection is probed.
const LONG: Duration = Duration::from_secs(13);

/// The wall clock of the worker in seconds.
#[raddle::routine]
async fn date() -> i64 {
    seconds()
}

#[raddle::routine]
async fn rest(time: Duration) -> u32 {
    tokio::time::sleep(time).await;
    std::process::id()
}

/// How much of its deadline a routine has used after this sleep.
#[raddle::routine]
async fn spend(time: Duration) -> Option<Duration> {
    let before = raddle::context::time_left()?;
    tokio::time::sleep(time).await;
    before.checked_sub(raddle::context::time_left()?)
}

#[raddle::routine]
async fn relay() -> Result<i64, String> {
    date().await.map_err(|error| error.to_string())
}

fn seconds() -> i64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("the clock is after 1970");
    since.as_secs() as i64
}

/// The inodes of the connections to a worker.
fn connections(address: &str) -> Vec<String> {
    let name = address
        .strip_prefix("unix-abstract:")
        .expect("the worker serves on an abstract socket");
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("it can be read");
    let of_it = sockets
        .lines()
        .filter(|line| line.ends_with(&format!(" @{name}")));
    of_it
        .filter_map(|line| line.split_whitespace().nth(6).map(ToOwned::to_owned))
        .collect()
}

/// The output of a future and its duration.
async fn timed<F: Future>(future: F) -> (F::Output, Duration) {
    let began = Instant::now();
    (future.await, began.elapsed())
}

async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "timed out waiting until {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Moves the clock while calls with deadlines are in flight and a proxy is kept.
async fn jump(pool: &WorkerPool, began: (Instant, i64), to: i64) {
    let (brief, ample) = (Duration::from_secs(1), Duration::from_secs(60));
    let late = tokio::spawn(timed(rest(ample).timeout(brief).on(pool)));
    let early = tokio::spawn(rest(brief).timeout(ample).on(pool));
    let spent = tokio::spawn(spend(brief).timeout(ample).on(pool));
    relay().on(pool).await.expect("nested calls work");
    let pid = pool.workers()[0].pid;
    let kept = (inotify_fds(pid), Instant::now());
    assert_eq!(kept.0.len(), 1, "the proxy of the nested call is kept");
    tokio::time::sleep(Duration::from_millis(200)).await;
    fake_clock::move_to(to);

    // The clock has jumped in this process and in the worker.
    let expected = began.1 + began.0.elapsed().as_secs() as i64 + to;
    let shown = date()
        .timeout(ample)
        .on(pool)
        .await
        .expect("a call after the jump has its time");
    for shown in [seconds(), shown] {
        assert!(
            (shown - expected).abs() < 30,
            "the clock shows {shown} instead of {expected}"
        );
    }

    tokio::time::sleep(TTL / 4).await;
    if kept.1.elapsed() < TTL.mul_f64(0.9) {
        assert_eq!(inotify_fds(pid), kept.0, "the proxy is kept for its TTL");
    }
    let (late, took) = late.await.expect("it does not panic");
    assert_eq!(late, Err(CallError::TimedOut));
    assert!(
        (brief..brief * 4).contains(&took),
        "the timeout of a second took {took:?}"
    );
    assert_eq!(early.await.expect("it does not panic"), Ok(pid));
    let spent = spent
        .await
        .expect("it does not panic")
        .expect("it has a result")
        .expect("the call has a deadline");
    assert!(
        (brief..brief * 4).contains(&spent),
        "{spent:?} of the deadline were used instead of a second"
    );
    wait_until("the unused proxy is dropped", || {
        inotify_fds(pid).is_empty()
    })
    .await;
    assert!(
        kept.1.elapsed() < TTL * 4,
        "the proxy was kept for {:?}",
        kept.1.elapsed()
    );
    println!("{to}: ok");
}

#[raddle::main]
async fn main() -> raddle::Result<()> {
    let worker = |tags: &_| LocalWorker::new(tags).proxy_pool_ttl(TTL);
    let pool = WorkerPool::builder().size(1).worker(worker).start().await?;
    let began = (Instant::now(), seconds());
    let worker = pool.workers()[0].clone();
    let long = tokio::spawn(timed(rest(LONG).timeout(LONG * 4).on(&pool)));
    date().on(&pool).await?;
    let before = connections(&worker.address);
    for to in JUMPS {
        jump(&pool, began, to).await;
    }
    let (long, took) = long.await.expect("it does not panic");
    assert_eq!(long, Ok(worker.pid));
    assert!((LONG..LONG * 2).contains(&took), "{took:?}");
    let after = connections(&worker.address);
    assert!(
        before.len() >= 2 && before.iter().all(|number| after.contains(number)),
        "{before:?}, then {after:?}"
    );

    // Workers that die are replaced regardless of the clock.
    fake_clock::move_to(-HOUR);
    std::process::Command::new("kill")
        .args(["-9", &worker.pid.to_string()])
        .status()?;
    wait_until("the end of the worker is noticed", || {
        pool.workers().iter().all(|other| other.pid != worker.pid)
    })
    .await;
    let (replaced, took) = timed(
        rest(Duration::ZERO)
            .timeout(Duration::from_secs(20))
            .on(&pool),
    )
    .await;
    assert!(
        replaced.is_ok_and(|pid| pid != worker.pid) && took < Duration::from_secs(10),
        "after {took:?}"
    );

    // A stop waits for its timeout.
    let last = tokio::spawn(rest(Duration::from_secs(1)).on(&pool));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let ((), took) = timed(async {
        let moving = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            fake_clock::move_to(10 * HOUR);
        };
        tokio::join!(
            pool.stop_with(StopMode::DrainFor(Duration::from_secs(20))),
            moving
        );
    })
    .await;
    assert!(
        last.await.expect("it does not panic").is_ok() && took < Duration::from_secs(10),
        "after {took:?}"
    );
    println!("ok");
    Ok(())
}
