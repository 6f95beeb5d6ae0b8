//! A program that moves its own clock on the wall, and that of its workers, by hours while calls are made, and says whether all went on.

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
/// Where the clock is moved, one after the other: far ahead, far back, and to and fro.
const JUMPS: [i64; 4] = [10 * HOUR, -10 * HOUR, 1000 * HOUR, 0];
/// How long workers keep what they need to call others.
const TTL: Duration = Duration::from_secs(2);
/// Longer than it takes for a connection to be asked whether there is anybody at the other end, which is ten seconds.
const LONG: Duration = Duration::from_secs(13);

/// The time, in seconds, as a worker's clock on the wall shows it.
#[raddle::routine]
async fn date() -> i64 {
    seconds()
}

#[raddle::routine]
async fn rest(time: Duration) -> u32 {
    tokio::time::sleep(time).await;
    std::process::id()
}

/// How much of its time a routine has used up, when it has rested for so long.
#[raddle::routine]
async fn spend(time: Duration) -> Option<Duration> {
    let before = raddle::context::time_left()?;
    tokio::time::sleep(time).await;
    before.checked_sub(raddle::context::time_left()?)
}

/// Calls another routine.
#[raddle::routine]
async fn relay() -> Result<i64, String> {
    date().await.map_err(|error| error.to_string())
}

fn seconds() -> i64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("it was set to no such time");
    since.as_secs() as i64
}

/// The connections to a worker, by their numbers.
fn connections(address: &str) -> Vec<String> {
    let name = address
        .strip_prefix("unix-abstract:")
        .expect("it serves at a name");
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("it can be read");
    let of_it = sockets
        .lines()
        .filter(|line| line.ends_with(&format!(" @{name}")));
    of_it
        .filter_map(|line| line.split_whitespace().nth(6).map(ToOwned::to_owned))
        .collect()
}

/// What comes of it, and how long that takes.
async fn timed<F: Future>(future: F) -> (F::Output, Duration) {
    let began = Instant::now();
    (future.await, began.elapsed())
}

async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "not in time: {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Moves the clock while calls with deadlines are in flight, and while what is kept for a while is kept.
async fn jump(pool: &WorkerPool, began: (Instant, i64), to: i64) {
    let (brief, ample) = (Duration::from_secs(1), Duration::from_secs(60));
    let late = tokio::spawn(timed(rest(ample).timeout(brief).on(pool)));
    let early = tokio::spawn(rest(brief).timeout(ample).on(pool));
    let spent = tokio::spawn(spend(brief).timeout(ample).on(pool));
    relay().on(pool).await.expect("routines call others");
    let pid = pool.workers()[0].pid;
    let kept = (inotify_fds(pid), Instant::now());
    assert_eq!(kept.0.len(), 1, "what the call took is kept");
    tokio::time::sleep(Duration::from_millis(200)).await;
    fake_clock::move_to(to);

    // It has really jumped, here and there.
    let expected = began.1 + began.0.elapsed().as_secs() as i64 + to;
    let shown = date()
        .timeout(ample)
        .on(pool)
        .await
        .expect("a call after the jump has its time");
    for shown in [seconds(), shown] {
        assert!(
            (shown - expected).abs() < 30,
            "the clock shows {shown}, and should {expected}"
        );
    }

    tokio::time::sleep(TTL / 4).await;
    if kept.1.elapsed() < TTL.mul_f64(0.9) {
        assert_eq!(inotify_fds(pid), kept.0, "it is let go of no sooner");
    }
    let (late, took) = late.await.expect("it does not panic");
    assert_eq!(late, Err(CallError::TimedOut));
    assert!(
        (brief..brief * 4).contains(&took),
        "its second took {took:?}"
    );
    assert_eq!(early.await.expect("it does not panic"), Ok(pid));
    let spent = spent
        .await
        .expect("it does not panic")
        .expect("it has a result")
        .expect("there is an end to its time");
    assert!(
        (brief..brief * 4).contains(&spent),
        "of its time a second was used, and not {spent:?}"
    );
    wait_until("what nobody needs is let go of", || {
        inotify_fds(pid).is_empty()
    })
    .await;
    assert!(
        kept.1.elapsed() < TTL * 4,
        "it was kept for {:?}",
        kept.1.elapsed()
    );
    println!("{to}: well");
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

    // Workers that end are replaced, whatever time it is.
    fake_clock::move_to(-HOUR);
    std::process::Command::new("kill")
        .args(["-9", &worker.pid.to_string()])
        .status()?;
    wait_until("its end is noticed", || {
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

    // And a stop has its patience.
    let last = tokio::spawn(rest(Duration::from_secs(1)).on(&pool));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let ((), took) = timed(async {
        let moving = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            fake_clock::move_to(10 * HOUR);
        };
        tokio::join!(
            pool.stop_with(StopMode::For(Duration::from_secs(20))),
            moving
        );
    })
    .await;
    assert!(
        last.await.expect("it does not panic").is_ok() && took < Duration::from_secs(10),
        "after {took:?}"
    );
    println!("all is well");
    Ok(())
}
