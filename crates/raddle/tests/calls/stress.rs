//! All kinds of calls at a time, while workers are killed and stopped: what has a result has the right one, what is said not to have begun has not, nothing
//! runs twice, nobody hangs, and nothing is left.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use raddle::{
    CallError, WorkerPool,
    pool::{connection::ControlConnection, worker::StopMode},
};

use crate::{routines, signal, started, within};

/// How long calls are made.
const TIME: Duration = Duration::from_secs(8);
/// How long one may take. Workers that were killed are replaced more and more slowly.
const LONGEST: Duration = Duration::from_secs(30);
/// Around the sizes at which values travel otherwise.
const SIZES: [usize; 8] = [0, 100, 10_000, 65_530, 65_540, 262_140, 262_150, 2_000_000];

/// Numbers that are the same in each run.
struct Dice(u64);

impl Dice {
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

/// What may become of a call whose worker is killed or stopped.
fn excused<T>(outcome: Result<T, CallError>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(CallError::Lost { .. } | CallError::Cancelled | CallError::NoWorkers(_)) => None,
        Err(error) => panic!("another error: {error:?}"),
    }
}

async fn once(pool: &WorkerPool, dice: &mut Dice, directory: &Path, number: usize) -> Vec<PathBuf> {
    let mut untouched = Vec::new();
    match dice.below(6) {
        0 => drop(excused(routines::add(1, 2).on(pool).await).map(|sum| assert_eq!(sum, 3))),
        1 => {
            let text = dice.text();
            if let Some(echoed) = excused(routines::echo(text.clone()).on(pool).await) {
                assert!(echoed == text, "another text");
            }
        }
        2 => {
            let path = directory.join(number.to_string());
            match routines::note(path.clone()).on(pool).await {
                Err(error) if !error.may_have_begun() => untouched.push(path),
                outcome => assert_ne!(excused(outcome), Some(false), "it ran twice"),
            }
        }
        3 => {
            let lengths: Vec<usize> = (0..dice.below(20))
                .map(|_| SIZES[dice.below(SIZES.len())])
                .collect();
            let (mut items, mut expected) = (
                routines::texts(lengths.clone()).on(pool),
                lengths.into_iter(),
            );
            let is_whole = loop {
                let Some(item) = items.next().await else {
                    break true;
                };
                let Some(text) = excused(item) else {
                    break false;
                };
                assert_eq!(Some(text.len()), expected.next());
            };
            assert!(!is_whole || expected.next().is_none(), "items are missing");
        }
        4 => {
            let (to, mut items) = (dice.below(2000) as u64, routines::count(2000).on(pool));
            for n in 0..to {
                let Some(item) = items.next().await.and_then(excused) else {
                    break;
                };
                assert_eq!(item, n);
            }
        }
        _ => {
            let wait = Duration::from_micros(dice.below(3000) as u64);
            let text = dice.text();
            let held = directory.join(format!("held-{number}"));
            let _ = match dice.below(2) {
                0 => {
                    tokio::time::timeout(wait, async { drop(routines::echo(text).on(pool).await) })
                        .await
                }
                _ => {
                    tokio::time::timeout(wait, async { drop(routines::hold(held).on(pool).await) })
                        .await
                }
            };
        }
    }
    untouched
}

async fn trouble(pool: &WorkerPool, dice: &mut Dice) {
    let Some(worker) = pool.workers().first().cloned() else {
        return;
    };
    match dice.below(4) {
        0 => signal(worker.pid, libc::SIGKILL),
        1 => signal(worker.pid, libc::SIGTERM),
        2 => signal(worker.pid, libc::SIGINT),
        _ => {
            let mut control = ControlConnection::new(&worker.address).unwrap();
            let _ = tokio::time::timeout(
                LONGEST,
                control.stop(StopMode::For(Duration::from_millis(50))),
            )
            .await;
        }
    }
}

/// Returns the traces of calls that are said not to have begun, and how many calls were made.
async fn keep_calling(
    pool: Arc<WorkerPool>,
    directory: PathBuf,
    caller: usize,
    began: Instant,
) -> (Vec<PathBuf>, usize) {
    let (mut dice, mut untouched, mut number) = (Dice(caller as u64), Vec::new(), caller);
    while began.elapsed() < TIME {
        let ended = tokio::time::timeout(LONGEST, once(&pool, &mut dice, &directory, number)).await;
        untouched.extend(ended.expect("nobody hangs"));
        number += 1000;
    }
    (untouched, number / 1000)
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_calls_end_and_none_runs_twice() {
    within(120, async {
        let (pool, directory, began) = (
            started(3).await,
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
        let mut dice = Dice(99);
        while began.elapsed() < TIME {
            tokio::time::sleep(Duration::from_millis(700)).await;
            trouble(&pool, &mut dice).await;
        }
        let mut ends = Vec::new();
        for caller in callers {
            ends.push(caller.await.expect("all is as it should be"));
        }
        let made: usize = ends.iter().map(|(_, made)| made).sum();
        println!(
            "{made} calls, {} not begun",
            ends.iter()
                .map(|(untouched, _)| untouched.len())
                .sum::<usize>()
        );
        for worker in pool.workers() {
            let began = Instant::now();
            while raddle::pool::connection::ping(&worker.address)
                .await
                .is_ok_and(|info| info.in_flight > 0)
            {
                assert!(began.elapsed() < Duration::from_secs(10), "some are left");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        assert!(
            !ends
                .iter()
                .flat_map(|(untouched, _)| untouched)
                .any(|path| path.exists()),
            "it had begun"
        );
        Arc::into_inner(pool).expect("all have ended").stop().await;
    })
    .await;
}

/// Workers that are killed as soon as they are there are replaced after longer and longer pauses. No call waits for the end of such a pause.
#[tokio::test(flavor = "multi_thread")]
async fn calls_under_a_storm_of_kills_answer_or_fail_soon() {
    // By then a pause takes 4 s.
    const STORM: Duration = Duration::from_secs(9);
    within(60, async {
        let (pool, began) = (Arc::new(started(2).await), Instant::now());
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
                excused(outcome);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            longest
        };
        let callers = (0..10).map(|_| call(Arc::clone(&pool)));
        let storm = async {
            while began.elapsed() < STORM {
                for worker in pool.workers() {
                    // SAFETY: plain integers. A worker that is gone is no error.
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
