//! All kinds of calls at once while workers are killed and stopped: results are right, calls
//! reported as not begun have not begun, none runs twice or hangs, and none leaks.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use raddle::{
    CallError, WorkerPool,
    pool::{connection::ControlConnection, worker::StopMode},
};

use crate::{routines, signal, start_pool, within};

/// The duration of the test.
const DURATION: Duration = Duration::from_secs(8);
/// The limit for a call. Killed workers are replaced with growing pauses.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Sizes around the limits at which values take another path.
const SIZES: [usize; 8] = [0, 100, 10_000, 65_530, 65_540, 262_140, 262_150, 2_000_000];

/// Random numbers with a fixed seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn text(&mut self) -> String {
        char::from(b'a' + self.below(26) as u8)
            .to_string()
            .repeat(SIZES[self.below(SIZES.len())])
    }
}

/// The value of a call, or nothing if it was lost with a killed or stopped worker.
fn value_unless_lost<T>(outcome: Result<T, CallError>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(CallError::Lost { .. } | CallError::Cancelled | CallError::NoWorkers(_)) => None,
        Err(error) => panic!("another error: {error:?}"),
    }
}

async fn call_once(
    pool: &WorkerPool,
    rng: &mut Rng,
    directory: &Path,
    number: usize,
) -> Vec<PathBuf> {
    let mut not_begun = Vec::new();
    match rng.below(6) {
        0 => drop(
            value_unless_lost(routines::add(1, 2).on(pool).await).map(|sum| assert_eq!(sum, 3)),
        ),
        1 => {
            let text = rng.text();
            if let Some(echoed) = value_unless_lost(routines::echo(text.clone()).on(pool).await) {
                assert!(echoed == text, "another text");
            }
        }
        2 => {
            let path = directory.join(number.to_string());
            match routines::note(path.clone()).on(pool).await {
                Err(error) if !error.may_have_begun() => not_begun.push(path),
                outcome => assert_ne!(value_unless_lost(outcome), Some(false), "it ran twice"),
            }
        }
        3 => {
            let lengths: Vec<usize> = (0..rng.below(20))
                .map(|_| SIZES[rng.below(SIZES.len())])
                .collect();
            let (mut items, mut expected) = (
                routines::texts(lengths.clone()).on(pool),
                lengths.into_iter(),
            );
            let is_whole = loop {
                let Some(item) = items.next().await else {
                    break true;
                };
                let Some(text) = value_unless_lost(item) else {
                    break false;
                };
                assert_eq!(Some(text.len()), expected.next());
            };
            assert!(!is_whole || expected.next().is_none(), "items are missing");
        }
        4 => {
            let (to, mut items) = (rng.below(2000) as u64, routines::count(2000).on(pool));
            for n in 0..to {
                let Some(item) = items.next().await.and_then(value_unless_lost) else {
                    break;
                };
                assert_eq!(item, n);
            }
        }
        _ => {
            let wait = Duration::from_micros(rng.below(3000) as u64);
            let text = rng.text();
            let marker = directory.join(format!("held-{number}"));
            let _ = match rng.below(2) {
                0 => {
                    tokio::time::timeout(wait, async { drop(routines::echo(text).on(pool).await) })
                        .await
                }
                _ => {
                    tokio::time::timeout(wait, async {
                        drop(routines::hold(marker).on(pool).await)
                    })
                    .await
                }
            };
        }
    }
    not_begun
}

async fn inject_fault(pool: &WorkerPool, rng: &mut Rng) {
    let Some(worker) = pool.workers().first().cloned() else {
        return;
    };
    match rng.below(4) {
        0 => signal(worker.pid, libc::SIGKILL),
        1 => signal(worker.pid, libc::SIGTERM),
        2 => signal(worker.pid, libc::SIGINT),
        _ => {
            let mut control = ControlConnection::new(&worker.address).unwrap();
            let _ = tokio::time::timeout(
                CALL_TIMEOUT,
                control.stop(StopMode::DrainFor(Duration::from_millis(50))),
            )
            .await;
        }
    }
}

/// Returns the marker files of calls reported as not begun, and the number of calls.
async fn keep_calling(
    pool: Arc<WorkerPool>,
    directory: PathBuf,
    caller: usize,
    began: Instant,
) -> (Vec<PathBuf>, usize) {
    let (mut rng, mut not_begun, mut number) = (Rng(caller as u64), Vec::new(), caller);
    while began.elapsed() < DURATION {
        let ended =
            tokio::time::timeout(CALL_TIMEOUT, call_once(&pool, &mut rng, &directory, number))
                .await;
        not_begun.extend(ended.expect("no call hangs"));
        number += 1000;
    }
    (not_begun, number / 1000)
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_end_and_run_at_most_once_under_faults() {
    within(120, async {
        let (pool, directory, began) = (
            start_pool(3).await,
            tempfile::tempdir().unwrap(),
            Instant::now(),
        );
        let pool = Arc::new(pool);
        let callers: Vec<_> = (0..40)
            .map(|caller| {
                tokio::spawn(keep_calling(
                    Arc::clone(&pool),
                    directory.path().to_owned(),
                    caller,
                    began,
                ))
            })
            .collect();
        let mut rng = Rng(99);
        while began.elapsed() < DURATION {
            tokio::time::sleep(Duration::from_millis(700)).await;
            inject_fault(&pool, &mut rng).await;
        }
        let mut ends = Vec::new();
        for caller in callers {
            ends.push(caller.await.expect("the caller does not panic"));
        }
        let made: usize = ends.iter().map(|(_, made)| made).sum();
        println!(
            "{made} calls, {} not begun",
            ends.iter()
                .map(|(not_begun, _)| not_begun.len())
                .sum::<usize>()
        );
        for worker in pool.workers() {
            let began = Instant::now();
            while raddle::pool::connection::ping(&worker.address)
                .await
                .is_ok_and(|info| info.in_flight > 0)
            {
                assert!(
                    began.elapsed() < Duration::from_secs(10),
                    "calls are left in flight"
                );
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        assert!(
            !ends
                .iter()
                .flat_map(|(not_begun, _)| not_begun)
                .any(|path| path.exists()),
            "the call had begun"
        );
        Arc::into_inner(pool)
            .expect("all callers have ended")
            .stop()
            .await;
    })
    .await;
}

/// Workers that are killed at once are replaced with growing pauses. No call waits for the end of
/// such a pause.
#[tokio::test(flavor = "multi_thread")]
async fn calls_end_soon_while_workers_keep_dying() {
    // At the end a pause takes 4 s.
    const STORM: Duration = Duration::from_secs(9);
    within(60, async {
        let (pool, began) = (Arc::new(start_pool(2).await), Instant::now());
        let call = async |pool: Arc<WorkerPool>| {
            let mut longest = (Duration::ZERO, None);
            while began.elapsed() < STORM {
                let called = Instant::now();
                let outcome = routines::add(1, 2).on(&pool).await;
                if called.elapsed() > longest.0 {
                    longest = (
                        called.elapsed(),
                        outcome.as_ref().err().map(ToString::to_string),
                    );
                }
                value_unless_lost(outcome);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            longest
        };
        let callers = (0..10).map(|_| call(Arc::clone(&pool)));
        let storm = async {
            while began.elapsed() < STORM {
                for worker in pool.workers() {
                    // SAFETY: plain integers; a worker that has ended is no error.
                    unsafe { libc::kill(worker.pid as i32, libc::SIGKILL) };
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let (longest, ()) = tokio::join!(futures_util::future::join_all(callers), storm);
        let (longest, why) = longest.into_iter().max().expect("there are callers");
        println!("the longest call took {longest:?}: {why:?}");
        assert!(
            longest < Duration::from_millis(3500),
            "{longest:?}: {why:?}"
        );
    })
    .await;
}
