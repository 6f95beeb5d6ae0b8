//! Metrics, readiness probes and systemd notifications.

use std::{
    io::Write,
    os::unix::net::UnixDatagram,
    process::{Command, Stdio},
    time::Duration,
};

use tokio::task::JoinSet;

use crate::{
    routines,
    server::{PoolServer, ServerDir, http_get, signal},
    wait_until, within,
};

/// The value of a series.
fn metric(http_get: &str, series: &str) -> Option<u64> {
    http_get
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
        .map(|metric| metric.parse().unwrap())
}

/// Checks a page with promtool.
fn assert_valid_metrics(http_get: &str) {
    let mut check = Command::new("promtool");
    check
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut check = check.spawn().unwrap();
    check
        .stdin
        .take()
        .unwrap()
        .write_all(http_get.as_bytes())
        .unwrap();
    let result = check.wait_with_output().unwrap();
    let message = [result.stdout, result.stderr].concat();
    assert!(
        result.status.success() && message.is_empty(),
        "{}\n{http_get}",
        String::from_utf8_lossy(&message)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_include_calls_of_replaced_workers() {
    within(120, async {
        let flags = [
            "--workers",
            "2",
            "--max-in-flight",
            "3",
            "--metrics-addr",
            "127.0.0.1:0",
        ];
        let served = PoolServer::start(&flags).await;
        let url = served.ready["metrics"].as_str().unwrap().to_owned();
        let metrics = || http_get(&url, "/metrics").1;
        assert_valid_metrics(&metrics());
        let pool = served.pool().limit(10).start().await.unwrap();
        for _ in 0..10 {
            assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        }
        let mut running: JoinSet<_> = (0..8).map(|_| routines::rest(60_000).on(&pool)).collect();
        wait_until("six calls are in flight", async || {
            metric(&metrics(), "raddle_pool_calls_in_flight") == Some(6)
        })
        .await;
        for _ in 0..2 {
            running.join_next().await.unwrap().unwrap().unwrap_err();
        }
        assert!(
            running.try_join_next().is_none(),
            "only two calls were refused"
        );
        let metrics_text = metrics();
        assert_valid_metrics(&metrics_text);
        for (series, count) in [
            ("raddle_pool_workers", 2),
            ("raddle_pool_workers_serving", 2),
            ("raddle_pool_worker_losses_total", 0),
            ("raddle_pool_backing_off", 0),
            ("raddle_pool_calls_accepted_total", 16),
            ("raddle_pool_refused_total{reason=\"not_allowed\"}", 0),
        ] {
            assert_eq!(
                metric(&metrics_text, series),
                Some(count),
                "{series} in:\n{metrics_text}"
            );
        }
        // The number of refusals depends on the order in which the two calls and others reached the
        // workers.
        assert!(
            metric(&metrics_text, "raddle_pool_refused_total{reason=\"full\"}") >= Some(2),
            "{metrics_text}"
        );
        running.shutdown().await;
        wait_until("no call is in flight", async || {
            metric(&metrics(), "raddle_pool_calls_in_flight") == Some(0)
        })
        .await;
        // One worker stops, and one is killed after its counters were read.
        let workers = served.workers();
        signal(workers[0].pid, libc::SIGTERM);
        signal(workers[1].pid, libc::SIGKILL);
        wait_until("both workers are replaced", async || {
            let metrics_text = metrics();
            metric(&metrics_text, "raddle_pool_workers_serving") == Some(2)
                && metric(&metrics_text, "raddle_pool_worker_losses_total") == Some(2)
        })
        .await;
        let metrics_text = metrics();
        assert_valid_metrics(&metrics_text);
        assert_eq!(
            metric(&metrics_text, "raddle_pool_calls_accepted_total"),
            Some(16),
            "{metrics_text}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_follows_the_intake_of_calls() {
    within(120, async {
        let served = PoolServer::start(&["--workers", "1", "--metrics-addr", "127.0.0.1:0"]).await;
        let url = served.ready["metrics"].as_str().unwrap().to_owned();
        assert_eq!(
            http_get(&url, "/readyz"),
            (200, "1 of 1 workers serve\n".into())
        );
        assert_eq!(http_get(&url, "/healthz"), (200, "ok\n".into()));
        assert_eq!(http_get(&url, "/").0, 404);
        let pool = served.pool().start().await.unwrap();
        let running = tokio::spawn(routines::rest(2000).on(&pool));
        tokio::time::sleep(Duration::from_millis(300)).await;
        served.interrupt();
        wait_until("readiness ends", async || {
            http_get(&url, "/readyz").0 == 503
        })
        .await;
        assert_eq!(http_get(&url, "/healthz").0, 200);
        running.await.unwrap().unwrap();
        served.assert_ends(0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn notifies_systemd_of_readiness_and_stop() {
    within(120, async {
        let world = ServerDir::new();
        let path = world.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        systemd
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let recv_notification = || {
            let mut message = [0; 4096];
            let length = systemd.recv(&mut message).unwrap();
            String::from_utf8(message[..length].to_vec()).unwrap()
        };
        let mut command = world.command(&["--json", "--workers", "2"]);
        command.env("NOTIFY_SOCKET", &path);
        let served = PoolServer::start_command(world, command).await;
        let message = recv_notification();
        assert!(
            message.starts_with("READY=1\nSTATUS=default: 2 workers serve at "),
            "{message}"
        );
        served.interrupt();
        assert_eq!(recv_notification(), "STOPPING=1");
        served.assert_ends(0).await;
    })
    .await;
}
