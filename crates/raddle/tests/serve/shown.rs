//! What it shows to those who watch it: systemd, probes and Prometheus.

use std::{
    io::Write,
    os::unix::net::UnixDatagram,
    process::{Command, Stdio},
    time::Duration,
};

use tokio::task::JoinSet;

use crate::{
    routines,
    served::{Served, World, page, signal},
    until, within,
};

/// The number behind a name.
fn number(page: &str, series: &str) -> Option<u64> {
    page.lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
        .map(|number| number.parse().unwrap())
}

/// Prometheus' own opinion.
fn passes(page: &str) {
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
        .write_all(page.as_bytes())
        .unwrap();
    let found = check.wait_with_output().unwrap();
    let words = [found.stdout, found.stderr].concat();
    assert!(
        found.status.success() && words.is_empty(),
        "{}\n{page}",
        String::from_utf8_lossy(&words)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_what_workers_do_and_what_those_did_that_are_gone() {
    within(120, async {
        let flags = [
            "--workers",
            "2",
            "--max-in-flight",
            "3",
            "--metrics-addr",
            "127.0.0.1:0",
        ];
        let served = Served::start(&flags).await;
        let url = served.said["metrics"].as_str().unwrap().to_owned();
        let metrics = || page(&url, "/metrics").1;
        passes(&metrics());
        let pool = served.pool().limit(10).start().await.unwrap();
        for _ in 0..10 {
            assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        }
        let mut running: JoinSet<_> = (0..8).map(|_| routines::rest(60_000).on(&pool)).collect();
        until("six are in flight", async || {
            number(&metrics(), "raddle_pool_calls_in_flight") == Some(6)
        })
        .await;
        for _ in 0..2 {
            running.join_next().await.unwrap().unwrap().unwrap_err();
        }
        assert!(
            running.try_join_next().is_none(),
            "only two were not wanted"
        );
        let shown = metrics();
        passes(&shown);
        for (series, count) in [
            ("raddle_pool_workers", 2),
            ("raddle_pool_workers_serving", 2),
            ("raddle_pool_worker_losses_total", 0),
            ("raddle_pool_braking", 0),
            ("raddle_pool_calls_taken_total", 16),
            ("raddle_pool_refused_total{reason=\"not_allowed\"}", 0),
        ] {
            assert_eq!(number(&shown, series), Some(count), "{series} in:\n{shown}");
        }
        // How many workers each of the two was offered to, and which of the others were refused by one first, depends on their order.
        assert!(
            number(&shown, "raddle_pool_refused_total{reason=\"full\"}") >= Some(2),
            "{shown}"
        );
        running.shutdown().await;
        until("none is in flight", async || {
            number(&metrics(), "raddle_pool_calls_in_flight") == Some(0)
        })
        .await;
        // One that ends in good order, and one that is killed after it was asked.
        let workers = served.workers();
        signal(workers[0].pid, libc::SIGTERM);
        signal(workers[1].pid, libc::SIGKILL);
        until("both are replaced", async || {
            let shown = metrics();
            number(&shown, "raddle_pool_workers_serving") == Some(2)
                && number(&shown, "raddle_pool_worker_losses_total") == Some(2)
        })
        .await;
        let shown = metrics();
        passes(&shown);
        assert_eq!(
            number(&shown, "raddle_pool_calls_taken_total"),
            Some(16),
            "{shown}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_ready_while_it_takes_calls() {
    within(120, async {
        let served = Served::start(&["--workers", "1", "--metrics-addr", "127.0.0.1:0"]).await;
        let url = served.said["metrics"].as_str().unwrap().to_owned();
        assert_eq!(
            page(&url, "/readyz"),
            (200, "1 of 1 workers serve\n".into())
        );
        assert_eq!(page(&url, "/healthz"), (200, "ok\n".into()));
        assert_eq!(page(&url, "/").0, 404);
        let pool = served.pool().start().await.unwrap();
        let running = tokio::spawn(routines::rest(2000).on(&pool));
        tokio::time::sleep(Duration::from_millis(300)).await;
        served.interrupt();
        until("it is ready no more", async || {
            page(&url, "/readyz").0 == 503
        })
        .await;
        assert_eq!(page(&url, "/healthz").0, 200);
        running.await.unwrap().unwrap();
        served.ends(0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn systemd_is_told_when_all_serve_and_when_they_stop() {
    within(120, async {
        let world = World::new();
        let path = world.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        systemd
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let heard = || {
            let mut words = [0; 4096];
            let length = systemd.recv(&mut words).unwrap();
            String::from_utf8(words[..length].to_vec()).unwrap()
        };
        let mut command = world.command(&["--json", "--workers", "2"]);
        command.env("NOTIFY_SOCKET", &path);
        let served = Served::started(world, command).await;
        let words = heard();
        assert!(
            words.starts_with("READY=1\nSTATUS=default: 2 workers serve at "),
            "{words}"
        );
        served.interrupt();
        assert_eq!(heard(), "STOPPING=1");
        served.ends(0).await;
    })
    .await;
}
