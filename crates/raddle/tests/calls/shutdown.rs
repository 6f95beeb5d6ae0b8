//! Shutdown of pools and workers.

use std::time::{Duration, Instant};

use raddle::{
    CallError,
    pool::worker::{LocalWorker, StopMode},
};

use crate::{CALLEE, is_alive, pool, routines, signal, start_pool, wait_until, within};

/// The CPU time of a process.
pub(crate) fn cpu_of(pid: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process is alive");
    let of_thread = |thread: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(threads.filter_map(of_thread).sum())
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_modes_cancel_or_wait() {
    within(120, async {
        for (patience, millis, is_cancelled) in [
            (StopMode::Cancel, 60_000, true),
            (StopMode::DrainFor(Duration::from_millis(200)), 60_000, true),
            (StopMode::DrainFor(Duration::from_secs(20)), 500, false),
            (StopMode::Drain, 500, false),
        ] {
            let pool = start_pool(1).await;
            let pid = pool.workers()[0].pid;
            let call = tokio::spawn(routines::rest(millis).on(&pool));
            tokio::time::sleep(Duration::from_millis(200)).await;
            pool.stop_with(patience).await;
            assert!(!is_alive(pid), "{patience:?}");
            let outcome = call.await.unwrap();
            assert_eq!(
                outcome,
                if is_cancelled {
                    Err(CallError::Cancelled)
                } else {
                    Ok(pid)
                },
                "{patience:?}"
            );
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_worker_is_idle_and_refuses_calls() {
    within(120, async {
        let pool = start_pool(1).await;
        let worker = pool.workers()[0].clone();
        let title = || std::fs::read_to_string(format!("/proc/{}/cmdline", worker.pid)).unwrap();
        assert!(
            title().starts_with("raddle-") && title().contains(":pool-worker:listening"),
            "{}",
            title()
        );
        let proxy = raddle::WorkerProxy::of_workers([worker.clone()])
            .start()
            .await
            .unwrap();
        let call = tokio::spawn(routines::rest(1500).on(&pool));
        tokio::time::sleep(Duration::from_millis(200)).await;
        let stopping = tokio::spawn(pool.stop_with(StopMode::Drain));
        tokio::time::sleep(Duration::from_millis(200)).await;
        let error = routines::add(1, 2).on(&proxy).await.unwrap_err();
        assert!(error.to_string().contains("is stopping"), "{error}");
        assert!(title().contains(":pool-worker:stopping"), "{}", title());
        let before = cpu_of(worker.pid);
        tokio::time::sleep(Duration::from_millis(700)).await;
        let used = cpu_of(worker.pid) - before;
        assert!(used < Duration::from_millis(70), "{used:?}");
        assert_eq!(call.await.unwrap(), Ok(worker.pid));
        stopping.await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_cancels_and_sigint_waits() {
    within(120, async {
        let pool = start_pool(1).await;
        let pid = pool.workers()[0].pid;
        let call = tokio::spawn(routines::rest(60_000).on(&pool));
        tokio::time::sleep(Duration::from_millis(200)).await;
        signal(pid, libc::SIGTERM);
        assert_eq!(call.await.unwrap(), Err(CallError::Cancelled));
        wait_until("another worker has started", async || {
            pool.workers()
                .first()
                .is_some_and(|worker| worker.pid != pid)
        })
        .await;
        let pid = pool.workers()[0].pid;
        let call = tokio::spawn(routines::rest(600).on(&pool));
        tokio::time::sleep(Duration::from_millis(200)).await;
        signal(pid, libc::SIGINT);
        assert_eq!(
            call.await.unwrap(),
            Ok(pid),
            "the worker has waited for the call"
        );
        wait_until("the worker has ended", async || !is_alive(pid)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_pool_ends_its_processes_and_entries() {
    within(120, async {
        let pool = start_pool(3).await;
        let (name, pids): (_, Vec<_>) = (
            pool.name().to_owned(),
            pool.workers().iter().map(|worker| worker.pid).collect(),
        );
        assert_eq!(
            raddle::discovery::LocalDiscovery::new(&name)
                .unwrap()
                .snapshot()
                .len(),
            3
        );
        drop(pool);
        wait_until("all workers have ended", async || {
            !pids.iter().any(|pid| is_alive(*pid))
        })
        .await;
        assert_eq!(
            raddle::discovery::LocalDiscovery::new(&name)
                .unwrap()
                .snapshot(),
            []
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_start_reports_each_cause_and_leaves_no_process() {
    within(120, async {
        let began = Instant::now();
        let error = pool(2)
            .worker(|tags: &_| LocalWorker::new(tags).program("/bin/false"))
            .start()
            .await
            .unwrap_err();
        let message = error.to_string();
        assert!(
            message.starts_with("2 of 2 workers could not be started"),
            "{message}"
        );
        assert_eq!(message.matches("exit status: 1").count(), 2, "{message}");
        let absent = pool(1)
            .worker(|tags: &_| LocalWorker::new(tags).program("/no/such"))
            .start()
            .await
            .unwrap_err();
        assert!(absent.to_string().contains("No such file"), "{absent}");
        let exposed = |tags: &_| {
            LocalWorker::new(tags)
                .program(CALLEE)
                .address_of("0.0.0.0:0")
        };
        let error = pool(1)
            .worker(exposed)
            .start()
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("give credentials for TLS"), "{error}");
        let slow = |tags: &_| LocalWorker::new(tags).program("/bin/cat");
        let error = pool(1)
            .worker(slow)
            .start_timeout(Duration::from_millis(200))
            .start()
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("did not serve") || error.contains("ended before"),
            "{error}"
        );
        assert!(began.elapsed() < Duration::from_secs(20));
    })
    .await;
}

#[tokio::test]
async fn reports_a_program_without_raddle_main() {
    let error = raddle::WorkerPool::builder()
        .size(1)
        .start()
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("needs #[raddle::main]"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stops_an_idle_pool_at_once() {
    within(120, async {
        let pool = start_pool(2).await;
        let began = Instant::now();
        pool.stop().await;
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "{:?}",
            began.elapsed()
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_of_routines_end_with_their_worker() {
    within(120, async {
        let pool = start_pool(1).await;
        let child = routines::spawn_process().on(&pool).await.unwrap();
        assert!(is_alive(child));
        pool.stop().await;
        wait_until("the process ends with its worker", async || {
            !is_alive(child)
        })
        .await;
        let pool = start_pool(1).await;
        let child = routines::spawn_process().on(&pool).await.unwrap();
        signal(pool.workers()[0].pid, libc::SIGKILL);
        wait_until("the process ends with a killed worker", async || {
            !is_alive(child)
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_delivers_results_in_progress() {
    within(120, async {
        let pool = start_pool(1).await;
        let call = tokio::spawn(routines::fill(64 << 20).on(&pool));
        tokio::time::sleep(Duration::from_millis(100)).await;
        pool.stop_with(StopMode::Drain).await;
        assert_eq!(call.await.unwrap().map(|text| text.len()), Ok(64 << 20));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_continues_when_its_caller_disconnects() {
    within(120, async {
        let pool = start_pool(1).await;
        let worker = pool.workers()[0].clone();
        let call = tokio::spawn(routines::rest(500).on(&pool));
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut control =
            raddle::pool::connection::ControlConnection::new(&worker.address).unwrap();
        let _ =
            tokio::time::timeout(Duration::from_millis(100), control.stop(StopMode::Drain)).await;
        drop(control);
        assert_eq!(call.await.unwrap(), Ok(worker.pid));
        wait_until("the worker has ended", async || !is_alive(worker.pid)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_move_from_a_stopping_worker_to_another() {
    within(120, async {
        let pool = start_pool(2).await;
        let busy = async {
            for _ in 0..2000 {
                assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
            }
        };
        let stopping = async {
            for _ in 0..2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let address = pool.workers()[0].address.clone();
                let _ = raddle::pool::connection::ControlConnection::new(&address)
                    .unwrap()
                    .stop(StopMode::Drain)
                    .await;
            }
        };
        tokio::join!(busy, stopping);
    })
    .await;
}
