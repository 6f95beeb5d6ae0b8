//! Calls and failures.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use raddle::{Call, CallError, WorkerPool, core::routine::EncodedArgs, pool::connection::ping};

use crate::{CALLEE, is_alive, pool, routines, signal, start_pool, wait_until, within};

/// Expects a lost call. Returns whether it may have begun.
fn may_have_begun_of_lost<T>(outcome: Result<T, CallError>) -> bool {
    match outcome {
        Err(CallError::Lost { may_have_begun, .. }) => may_have_begun,
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("the call has a result"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_loses_its_call_and_is_replaced() {
    within(120, async {
        let pool = start_pool(1).await;
        let before = pool.workers()[0].pid;
        let call = tokio::spawn(routines::rest(60_000).on(&pool));
        tokio::time::sleep(Duration::from_millis(100)).await;
        let began = Instant::now();
        signal(before, libc::SIGKILL);
        assert!(
            may_have_begun_of_lost(call.await.unwrap()),
            "the call may have begun"
        );
        assert!(began.elapsed() < Duration::from_secs(1), "at once");
        // The next call succeeds without a retry by the caller.
        let after = routines::pid().on(&pool).await.unwrap();
        assert_ne!(after, before);
        assert_eq!(pool.workers()[0].pid, after);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gives_up_a_stopped_worker_after_10_s_and_not_a_slow_one() {
    use raddle::pool::worker::LocalWorker;
    within(120, async {
        let at_port = |tags: &_| {
            LocalWorker::new(tags)
                .program(CALLEE)
                .address_of("127.0.0.1:0")
        };
        let remote = pool(1).worker(at_port).start().await.unwrap();
        let (local, slow) = (start_pool(1).await, start_pool(1).await);
        let stop_during_call = async |pool: &WorkerPool| {
            let call = tokio::spawn(routines::rest(60_000).on(pool));
            let address = pool.workers()[0].address.clone();
            wait_until("the call runs", async || {
                ping(&address).await.is_ok_and(|info| info.in_flight == 1)
            })
            .await;
            let began = Instant::now();
            signal(pool.workers()[0].pid, libc::SIGSTOP);
            assert!(
                may_have_begun_of_lost(call.await.unwrap()),
                "the call may have begun"
            );
            began.elapsed()
        };
        let (local, remote, slow_result) = tokio::join!(
            stop_during_call(&local),
            stop_during_call(&remote),
            routines::rest(25_000).on(&slow)
        );
        for took in [local, remote] {
            // A call that is not given up would take a minute.
            assert!((8..40).contains(&took.as_secs()), "{took:?}");
        }
        assert_eq!(slow_result, Ok(slow.workers()[0].pid));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_routine_that_exits_loses_its_call_and_no_other_hangs() {
    within(120, async {
        let pool = start_pool(2).await;
        let others: Vec<_> = (0..10)
            .map(|_| tokio::spawn(routines::rest(50).on(&pool)))
            .collect();
        assert!(may_have_begun_of_lost(routines::exit(0).on(&pool).await));
        assert!(may_have_begun_of_lost(routines::abort().on(&pool).await));
        for other in others {
            // Calls in the same process are lost with it.
            let _ = other.await.unwrap();
        }
        for _ in 0..4 {
            assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        }
        wait_until("both workers are back", async || pool.workers().len() == 2).await;
    })
    .await;
}

#[test]
fn workers_end_when_their_program_is_killed() {
    let mut parent = Command::new(CALLEE)
        .args(["hold", "3"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let workers: Vec<u32> = lines
        .take_while(|line| line != "ready")
        .map(|line| line.parse().unwrap())
        .collect();
    assert_eq!(workers.len(), 3);
    assert!(workers.iter().all(|pid| is_alive(*pid)));
    parent.kill().unwrap();
    parent.wait().unwrap();
    let began = Instant::now();
    while workers.iter().any(|pid| is_alive(*pid)) {
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "workers are still alive"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_stop_and_plain_functions_do_not_wait_for_async_functions_that_block() {
    within(120, async {
        let pool = start_pool(1).await;
        // More calls than threads.
        let blocked: Vec<_> = (0..12)
            .map(|_| tokio::spawn(routines::block(3600).on(&pool)))
            .collect();
        tokio::time::sleep(Duration::from_millis(200)).await;
        for _ in 0..10 {
            assert_eq!(routines::pid().on(&pool).await, Ok(pool.workers()[0].pid));
        }
        let address = pool.workers()[0].address.clone();
        let info = ping(&address).await.unwrap();
        assert_eq!(info.in_flight, 12);
        let pid = pool.workers()[0].pid;
        let began = Instant::now();
        pool.stop().await;
        assert!(
            began.elapsed() < Duration::from_secs(3),
            "a stop waits for no blocked thread"
        );
        assert!(!is_alive(pid));
        for call in blocked {
            assert_eq!(call.await.unwrap(), Err(CallError::Cancelled));
        }
    })
    .await;
}

/// The blocking calls take an hour. A call that had to wait for one of them would too.
#[tokio::test(flavor = "multi_thread")]
async fn async_functions_that_block_hardly_delay_other_async_functions() {
    within(60, async {
        let pool = start_pool(1).await;
        let address = pool.workers()[0].address.clone();
        // Some are first polled while others block, and some continue then.
        let resting: Vec<_> = (0..4)
            .map(|_| tokio::spawn(routines::rest(500).on(&pool)))
            .collect();
        let blocked = (0..40).map(|_| tokio::spawn(routines::block(3600).on(&pool)));
        let later = (0..40).map(|_| tokio::spawn(routines::rest_and_block(200, 3600).on(&pool)));
        let blocked: Vec<_> = blocked.chain(later).collect();
        wait_until("all calls have arrived", async || {
            ping(&address).await.unwrap().in_flight >= 80
        })
        .await;
        let (began, mut longest) = (Instant::now(), Duration::ZERO);
        while began.elapsed() < Duration::from_secs(2) {
            let called = Instant::now();
            assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
            assert!(routines::rest(1).on(&pool).await.is_ok());
            longest = longest.max(called.elapsed());
        }
        println!("the longest delay is {longest:?}");
        for call in resting {
            assert!(call.await.unwrap().is_ok());
        }
        assert!(blocked.iter().all(|call| !call.is_finished()));
        pool.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_calls_are_reported_and_leave_the_worker_serving() {
    within(120, async {
        let pool = start_pool(1).await;
        let unknown: Call<u64> = Call::new("no-such", EncodedArgs::new(0));
        let error = unknown.on(&pool).await.unwrap_err();
        assert!(
            matches!(&error, CallError::UnknownRoutine(message) if message.contains("'no-such'")),
            "{error:?}"
        );
        assert!(!error.may_have_begun());
        let unfit: Call<u64> = Call::new(
            "add",
            EncodedArgs::new(2).argument("a", &1).argument("b", &"two"),
        );
        let error = unfit.on(&pool).await.unwrap_err();
        assert!(
            matches!(&error, CallError::Arguments(message) if message.contains("'b'")),
            "{error:?}"
        );
        let few: Call<u64> = Call::new("add", EncodedArgs::new(1).argument("a", &1));
        assert!(matches!(few.on(&pool).await, Err(CallError::Arguments(_))));
        let other: Call<String> = Call::new(
            "add",
            EncodedArgs::new(2).argument("a", &1).argument("b", &2),
        );
        assert!(matches!(other.on(&pool).await, Err(CallError::Result(_))));
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        assert_eq!(pool.workers().len(), 1, "the worker is still in use");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_cancelled_calls_leak_nothing() {
    within(120, async {
        let (pool, directory) = (start_pool(1).await, tempfile::tempdir().unwrap());
        for n in 0..1000_u64 {
            let wait = Duration::from_micros(n % 7 * 100);
            let marker = directory.path().join("marker");
            if n % 2 == 0 {
                let _ = tokio::time::timeout(wait, routines::hold(marker).on(&pool)).await;
            } else {
                let mut items = routines::endless(marker).on(&pool);
                let _ = tokio::time::timeout(wait, items.next()).await;
            }
        }
        let address = pool.workers()[0].address.clone();
        let began = Instant::now();
        while ping(&address).await.unwrap().in_flight > 0 {
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "calls are left in flight"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // No permit leaked: the full number of calls can be in flight.
        let began = Instant::now();
        let all = join_all((0..100).map(|_| routines::rest(300).on(&pool))).await;
        assert!(all.iter().all(Result::is_ok));
        assert!(
            began.elapsed() < Duration::from_millis(2500),
            "calls had to wait for permits"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_call_runs_its_destructors() {
    within(120, async {
        let (pool, directory) = (start_pool(1).await, tempfile::tempdir().unwrap());
        let marker = directory.path().join("marker");
        let call = tokio::spawn(routines::hold(marker.clone()).on(&pool));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!marker.exists());
        call.abort();
        wait_until("the destructor runs", async || marker.exists()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saturated_worker_stays_in_use() {
    within(120, async {
        let pool = start_pool(1).await;
        for _ in 0..14 {
            let all = join_all((0..256).map(|_| routines::rest(1).on(&pool))).await;
            assert!(all.iter().all(Result::is_ok));
        }
        assert_eq!(pool.workers().len(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_move_from_a_full_worker_to_others() {
    use raddle::pool::worker::LocalWorker;
    within(120, async {
        let full = |tags: &_| LocalWorker::new(tags).program(CALLEE).max_in_flight(1);
        let pool = pool(2).worker(full).start().await.unwrap();
        let first = tokio::spawn(routines::rest(1000).on(&pool));
        let second = tokio::spawn(routines::rest(1000).on(&pool));
        tokio::time::sleep(Duration::from_millis(300)).await;
        let error = routines::add(1, 2).on(&pool).await.unwrap_err();
        assert!(matches!(&error, CallError::NoWorkers(_)), "{error:?}");
        assert!(
            error.to_string().contains("accepts no more calls"),
            "{error}"
        );
        assert_ne!(
            first.await.unwrap().unwrap(),
            second.await.unwrap().unwrap(),
            "each worker had one call"
        );
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_calls_do_not_deadlock() {
    within(120, async {
        let pool = pool(1).limit(1000).start().await.unwrap();
        let all = join_all((0..150).map(|_| routines::nested(3).on(&pool))).await;
        assert!(all.iter().all(|outcome| *outcome == Ok(3)));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_refused_by_backpressure_is_no_worker_failure() {
    within(120, async {
        let pool = start_pool(1).await;
        let error = routines::unwanted().on(&pool).await.unwrap_err();
        assert!(
            error.to_string().contains("accepts no more calls"),
            "{error}"
        );
        assert!(!error.may_have_begun());
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_calls_are_lost_and_cancelled_like_small_ones() {
    within(120, async {
        let (pool, directory) = (start_pool(1).await, tempfile::tempdir().unwrap());
        // Too large for one frame of a link.
        let long = |n: u64| {
            directory
                .path()
                .join(format!("{n}/{}", "x/../".repeat(20_000)))
        };
        for n in 0..100 {
            let _ = tokio::time::timeout(
                Duration::from_micros(n * 100),
                routines::hold(long(n)).on(&pool),
            )
            .await;
        }
        let address = pool.workers()[0].address.clone();
        let began = Instant::now();
        while ping(&address).await.unwrap().in_flight > 0 {
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "calls are left in flight"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let call = tokio::spawn(routines::hold(long(1)).on(&pool));
        tokio::time::sleep(Duration::from_millis(200)).await;
        signal(pool.workers()[0].pid, libc::SIGKILL);
        assert!(
            may_have_begun_of_lost(call.await.unwrap()),
            "the call may have begun"
        );
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backs_off_replacing_a_worker_that_keeps_exiting() {
    within(120, async {
        let pool = start_pool(1).await;
        let (began, mut deaths) = (Instant::now(), 0);
        while began.elapsed() < Duration::from_secs(4) {
            let _ = routines::exit(1)
                .timeout(Duration::from_secs(4))
                .on(&pool)
                .await;
            deaths += 1;
        }
        // Pauses of 0.5, 1 and 2 s, plus lost calls.
        assert!((2..12).contains(&deaths), "{deaths}");
    })
    .await;
}
