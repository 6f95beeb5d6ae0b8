//! Metrics of workers, spawners and brokers, and their check by Prometheus itself.

use std::{
    fmt::Write as _,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use crate::world::{RunningCommand, World, wait_until};

const ANYWHERE: &str = "127.0.0.1:0";

/// The names that the seed promises, and ours, by who shows them.
const OF_WORKERS: [&str; 5] = [
    "worker_task_total",
    "worker_runtime_seconds",
    "worker_exit_reason",
    "raddle_task_wait_seconds",
    "raddle_task_run_seconds",
];
const OF_SPAWNERS: [&str; 4] = [
    "warm_spawner_live_workers",
    "warm_spawner_idle_workers",
    "warm_spawner_launch_total",
    "raddle_warm_hit_ratio",
];
const OF_QUEUES: [&str; 3] = [
    "queue_pending_total",
    "raddle_reclaims_total",
    "raddle_stale_writes_total",
];

/// A page of metrics.
pub(crate) struct Metrics(String);

/// The first report of a process that was started with `--json`.
pub(crate) fn said(started: &RunningCommand) -> Value {
    wait_until("it has said where it is", || {
        started.stdout().ends_with('\n')
    });
    serde_json::from_str(&started.stdout()).unwrap()
}

fn url_of(started: &RunningCommand) -> String {
    said(started)["metrics"].as_str().unwrap().to_owned()
}

pub(crate) fn scrape(url: &str) -> Metrics {
    let (address, path) = url
        .strip_prefix("http://")
        .unwrap()
        .split_once('/')
        .unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    Metrics(page.to_owned())
}

impl Metrics {
    /// The number behind a name and its labels.
    pub(crate) fn get(&self, series: &str) -> Option<f64> {
        let mut lines = self.0.lines();
        lines
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
            .map(|number| number.parse().unwrap())
    }

    #[track_caller]
    fn shows(&self, series: &str, number: f64) {
        assert_eq!(self.get(series), Some(number), "{series} in:\n{}", self.0);
    }

    #[track_caller]
    fn has(&self, names: &[&str]) {
        for name in names {
            assert!(
                self.0.contains(&format!("# TYPE {name} ")),
                "{name} is missing in:\n{}",
                self.0
            );
        }
    }

    /// Prometheus' own opinion.
    #[track_caller]
    pub(crate) fn passes(&self) {
        let mut check = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        check
            .stdin
            .take()
            .unwrap()
            .write_all(self.0.as_bytes())
            .unwrap();
        let found = check.wait_with_output().unwrap();
        let mut words = String::new();
        for bytes in [&found.stdout, &found.stderr] {
            let _ = write!(words, "{}", String::from_utf8_lossy(bytes));
        }
        assert!(
            found.status.success() && words.is_empty(),
            "{words}\n{}",
            self.0
        );
    }
}

#[test]
fn a_worker_serves_its_task_counters() {
    let world = World::new();
    let worker = world.start([
        "worker",
        "start",
        "--no-detach",
        "--json",
        "--metrics-addr",
        ANYWHERE,
    ]);
    let url = url_of(&worker);
    scrape(&url).passes();
    scrape(&url).has(&["build_info", "process_resident_memory_bytes"]);
    for probe in ["/healthz", "/readyz"] {
        // Fails unless the answer is 200.
        scrape(&url.replace("/metrics", probe));
    }
    let tids = world.submit(&["--array", "1-3", "--", "true"]);
    let failed = world.submit(&["--retry", "1", "--retry-base", "0.01", "--", "false"]);
    let late = world.submit(&["--timeout", "0.2", "--", "sleep", "60"]);
    world.raddle(["wait"].into_iter().chain(tids.lines())).ok();
    world.raddle(["wait", &failed, &late]).code(1);
    // A process that waits for a task learns of its end from the broker, at the same time as the
    // worker, which counts it then.
    wait_until("the last one is counted", || {
        scrape(&url).get("worker_runtime_seconds_count") == Some(6.0)
    });
    let metrics = scrape(&url);
    metrics.passes();
    metrics.has(&OF_WORKERS);
    for (status, count) in [
        ("completed", 3.0),
        ("failed", 1.0),
        ("retried", 1.0),
        ("timeout", 1.0),
        ("stale", 0.0),
    ] {
        metrics.shows(&format!("worker_task_total{{status=\"{status}\"}}"), count);
    }
    metrics.shows("worker_runtime_seconds_count", 6.0);
    metrics.shows("raddle_task_run_seconds_count", 6.0);
    metrics.shows("raddle_task_wait_seconds_count", 5.0);
    let ran = metrics.get("raddle_task_run_seconds_sum").unwrap();
    assert!(
        (0.2..30.0).contains(&ran) && metrics.get("worker_runtime_seconds_sum").unwrap() >= ran,
        "{}",
        metrics.0
    );
    metrics.shows("raddle_task_run_seconds_bucket{le=\"0.1\"}", 5.0);
    worker.stop().ok();
}

#[test]
fn broker_metrics_count_waiting_tasks_by_kind() {
    let world = World::new();
    let exporter = world.start(["metrics", "serve", "--json", "--metrics-addr", ANYWHERE]);
    let url = url_of(&exporter);
    let empty = scrape(&url);
    empty.passes();
    empty.has(&OF_QUEUES);
    empty.shows("raddle_broker_up", 1.0);
    empty.shows("queue_pending_total{kind=\"\"}", 0.0);
    world.submit(&[
        "--array",
        "1-3",
        "--kind",
        "execute",
        "--requires",
        "gpu",
        "--",
        "true",
    ]);
    world.submit(&["--kind", "mutate", "--queue", "mail", "--", "true"]);
    world.submit(&["--delay", "600", "--kind", "execute", "--", "true"]);
    let dead = world.submit(&["--", "false"]);
    world
        .raddle(["worker", "start", "--no-detach", "--idle-exit", "0"])
        .ok();
    world.raddle(["wait", &dead]).code(1);
    wait_until("the rest between two looks is over", || {
        scrape(&url).get("raddle_tasks_dead") == Some(1.0)
    });
    let metrics = scrape(&url);
    metrics.passes();
    for (series, count) in [
        ("queue_pending_total{kind=\"execute\"}", 3.0),
        ("queue_pending_total{kind=\"mutate\"}", 1.0),
        ("raddle_queue_ready{queue=\"default\"}", 3.0),
        ("raddle_queue_ready{queue=\"mail\"}", 1.0),
        ("raddle_tasks_delayed", 1.0),
        ("raddle_tasks_active", 0.0),
        ("raddle_workers{type=\"resident\",status=\"active\"}", 0.0),
        ("raddle_reclaims_total", 0.0),
    ] {
        metrics.shows(series, count);
    }
    assert!(
        metrics
            .get("raddle_pending_oldest_seconds{kind=\"execute\"}")
            .unwrap()
            < 60.0
    );
    exporter.stop().ok();
}

#[test]
fn a_spawner_keeps_counters_of_exited_workers() {
    let world = World::new();
    let flags = [
        "spawner",
        "run",
        "--warm-pool",
        "2",
        "--max-workers",
        "4",
        "--json",
        "--metrics-addr",
        ANYWHERE,
    ];
    let spawner = world.start(flags);
    let url = url_of(&spawner);
    wait_until("two are warm", || {
        scrape(&url).get("warm_spawner_idle_workers") == Some(2.0)
    });
    let tids = world.submit(&["--array", "1-9", "--", "true"]);
    let failed = world.submit(&["--", "false"]);
    world.raddle(["wait"].into_iter().chain(tids.lines())).ok();
    world.raddle(["wait", &failed]).code(1);
    let exits = |reason: &str| format!("worker_exit_reason{{reason=\"{reason}\"}}");
    wait_until("ten are gone", || {
        scrape(&url).get(&exits("success")) == Some(10.0)
    });
    let metrics = scrape(&url);
    metrics.passes();
    [&OF_WORKERS[..], &OF_SPAWNERS, &OF_QUEUES]
        .iter()
        .for_each(|names| metrics.has(names));
    for (series, count) in [
        ("worker_task_total{status=\"completed\"}", 9.0),
        ("worker_task_total{status=\"failed\"}", 1.0),
        ("worker_runtime_seconds_count", 10.0),
        ("raddle_task_run_seconds_count", 10.0),
        ("raddle_task_wait_seconds_count", 10.0),
        ("raddle_tasks_in_flight", 0.0),
        ("raddle_spawner_backing_off", 0.0),
    ] {
        metrics.shows(series, count);
    }
    let (hits, misses) = (
        "raddle_warm_tasks_total{worker=\"waiting\"}",
        "raddle_warm_tasks_total{worker=\"none\"}",
    );
    assert_eq!(
        metrics.get(hits).unwrap() + metrics.get(misses).unwrap(),
        10.0
    );
    assert!((0.0..=1.0).contains(&metrics.get("raddle_warm_hit_ratio").unwrap()));

    // One that is killed in the middle of a task has told nothing that could be half true.
    let tid = world.submit(&["--", "sh", "-c", "test $RADDLE_ATTEMPT != 1 || sleep 600"]);
    world.wait_for_state(&tid, "running");
    let list = || world.workers();
    let busy = || {
        list()
            .as_array()
            .unwrap()
            .iter()
            .find(|w| w["type"] == "one-shot" && w["load"] == 1.0)?["pid"]
            .as_i64()
    };
    wait_until("the registry knows who is busy", || busy().is_some());
    crate::world::kill(busy().unwrap() as i32, libc::SIGKILL);
    world.raddle(["wait", &tid]).ok();
    wait_until("the spawner of the lost worker counts the loss", || {
        let metrics = scrape(&url);
        metrics.get("worker_task_total{status=\"lost\"}") == Some(1.0)
            && metrics.get(&exits("success")) == Some(11.0)
    });
    let metrics = scrape(&url);
    metrics.passes();
    metrics.shows(&exits("error"), 1.0);
    metrics.shows("worker_task_total{status=\"lost\"}", 1.0);
    metrics.shows("worker_task_total{status=\"completed\"}", 10.0);
    metrics.shows("raddle_tasks_in_flight", 0.0);
    spawner.stop().ok();
}

#[test]
fn a_spawner_counts_tasks_behind_the_socket_of_another_worker() {
    let world = World::new();
    let server = world.start([
        "worker",
        "start",
        "--no-detach",
        "--queues",
        "none",
        "--serve",
        "work.sock",
    ]);
    wait_until("it serves", || world.path().join("work.sock").exists());
    let flags = [
        "--queue-url",
        "unix:work.sock",
        "spawner",
        "run",
        "--warm-pool",
        "1",
        "--json",
        "--metrics-addr",
        ANYWHERE,
    ];
    let spawner = world.start(flags);
    let url = url_of(&spawner);
    let tids = world.submit(&["--array", "1-3", "--", "true"]);
    world.raddle(["wait"].into_iter().chain(tids.lines())).ok();
    wait_until("they are counted", || {
        scrape(&url).get("worker_task_total{status=\"completed\"}") == Some(3.0)
    });
    spawner.stop().ok();
    server.stop().ok();
}

#[test]
fn metrics_report_a_lost_redis_server_at_once() {
    let world = World::new();
    let script = r#"
set -eu
setpriv --pdeathsig KILL redis-server --port 0 --unixsocket "$PWD/redis.sock" --dir "$PWD" --requirepass geheim >server.log &
server=$!
trap 'kill -9 $server $exporter 2>/dev/null || true; wait' EXIT
exporter=
export QUEUE_URL="redis+unix:$PWD/redis.sock?password=geheim"
for _ in $(seq 2000); do raddle status >/dev/null 2>&1 && break; sleep 0.01; done
raddle submit --array 1-1200 --kind execute -- true >/dev/null
raddle submit -- true >/dev/null
raddle metrics serve --metrics-addr 127.0.0.1:0 >url 2>said &
exporter=$!
for _ in $(seq 2000); do test -s url && break; sleep 0.01; done
get() { python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode(), end="")' "$(cat url)"; }
get >before
promtool check metrics <before
grep -E '^(queue_pending_total|raddle_broker_up|raddle_reclaims_total)' before
kill -9 $server
wait $server 2>/dev/null || true
for _ in $(seq 30); do get >after; grep -q '^raddle_broker_up 0' after && break; sleep 0.2; done
promtool check metrics <after
grep -E '^(queue_pending_total|raddle_broker_up)' after
cat before after said | grep -c geheim || true
"#;
    let told = world.bash(script).ok();
    assert_eq!(
        told.lines(),
        [
            "raddle_broker_up 1",
            "queue_pending_total{kind=\"\"} 1",
            "queue_pending_total{kind=\"execute\"} 1200",
            "raddle_reclaims_total 0",
            "raddle_broker_up 0",
            "queue_pending_total{kind=\"\"} 1",
            "queue_pending_total{kind=\"execute\"} 1200",
            "0",
        ]
    );
}

#[test]
fn metrics_beyond_loopback_need_a_flag() {
    let world = World::new();
    for command in [
        &["worker", "start", "--no-detach"][..],
        &["worker", "start"],
        &["spawner", "run"],
        &["metrics", "serve"],
    ] {
        let with = |address: &str| world.raddle([command, &["--metrics-addr", address]].concat());
        with("0.0.0.0:0")
            .code(2)
            .stderr_contains("0.0.0.0:0 can be reached from other machines")
            .stderr_contains("--metrics-public");
        with("here")
            .code(2)
            .stderr_contains("'here' is not an address to listen on");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = world
        .raddle(["worker", "start", "--metrics-addr", &address])
        .code(2);
    refused
        .stderr_contains(&format!("cannot listen on {address}"))
        .stderr_contains("give another address with --metrics-addr");
    assert_eq!(world.processes(), []);
    let open = world.start([
        "metrics",
        "serve",
        "--json",
        "--metrics-addr",
        "0.0.0.0:0",
        "--metrics-public",
    ]);
    let url = url_of(&open).replace("0.0.0.0", "127.0.0.1");
    scrape(&url).shows("raddle_broker_up", 1.0);
    open.stop().ok();
    // In the background it says so in its log.
    let tid = world.worker(&["--metrics-addr", ANYWHERE]);
    let log =
        std::fs::read_to_string(world.path().join(format!(".raddle/worker-{tid}.log"))).unwrap();
    let url = log.trim().rsplit(' ').next().unwrap().to_owned();
    scrape(&url).has(&OF_WORKERS);
}

/// The alert is tested with what an exporter shows of a manager that runs, and keeps no process.
#[test]
fn the_alert_for_absent_workers_fires_beside_a_manager() {
    let world = World::new();
    world.file(
        "raddle.toml",
        "[process.a]\n[[process.a.worker]]\nslug = 'a'\n",
    );
    let manager = world.start(["up"]);
    wait_until("it is up", || manager.stderr().contains(" up\n"));
    let exporter = world.start(["metrics", "serve", "--json", "--metrics-addr", ANYWHERE]);
    let url = url_of(&exporter);
    world.raddle(["group", "off", "a"]).ok();
    let tid = world.submit(&["--queue", "a", "--", "true"]);
    let count = |kind: &str| {
        let page = scrape(&url);
        let waiting = page.get("queue_pending_total{kind=\"\"}");
        (
            waiting,
            page.get(&format!(
                "raddle_workers{{type=\"{kind}\",status=\"active\"}}"
            )),
            page,
        )
    };
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus/alerts.yml");
    let fires = |page: &Metrics, fires: bool| {
        let of_rule = |line: &&str| {
            line.starts_with("raddle_workers{") || line.starts_with("queue_pending_total{")
        };
        let series = page.0.lines().filter(of_rule).map(|line| {
            let (series, number) = line.rsplit_once(' ').unwrap();
            serde_json::json!({ "series": series, "values": format!("{number}x9") })
        });
        let alert = serde_json::json!({
            "exp_labels": { "severity": "critical" },
            "exp_annotations": {
                "summary": "1 tasks wait, and no worker is active",
                "description": "Start one with 'raddle worker start', or find out why the spawner launches none.",
            },
        });
        let alerts: &[Value] = if fires { &[alert] } else { &[] };
        let test = serde_json::json!({
            "rule_files": [rules],
            "evaluation_interval": "1m",
            "tests": [{
                "interval": "1m",
                "input_series": series.collect::<Vec<_>>(),
                "alert_rule_test": [{ "alertname": "RaddleNoWorkers", "eval_time": "5m", "exp_alerts": alerts }],
            }],
        });
        // JSON is YAML.
        let path = world.file("alerts.test.yml", test.to_string());
        let ran = Command::new("promtool")
            .args(["test", "rules"])
            .arg(path)
            .output()
            .unwrap();
        assert!(ran.status.success(), "{ran:?}\n{}", page.0);
    };
    wait_until("no process is left", || {
        matches!(count("resident"), (Some(1.0), Some(0.0), _))
    });
    let (_, managers, page) = count("group");
    assert_eq!(managers, Some(1.0));
    fires(&page, true);
    // A worker that has other queues takes tasks, too.
    world.worker(&[]);
    wait_until("there is a worker", || {
        matches!(count("resident"), (Some(1.0), Some(1.0), _))
    });
    fires(&count("resident").2, false);
    world.raddle(["group", "on", "a"]).ok();
    world.raddle(["wait", &tid]).ok();
    exporter.stop().ok();
    manager.stop().ok();
}

#[test]
fn prometheus_accepts_the_rules() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus");
    for args in [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts.test.yml"],
        ["check", "rules", "recording.yml"],
        ["test", "rules", "recording.test.yml"],
    ] {
        let ran = Command::new("promtool")
            .args(args)
            .current_dir(&directory)
            .output()
            .unwrap();
        assert!(ran.status.success(), "{args:?}: {ran:?}");
    }
}

/// The words of an expression that name a series.
fn series_names(expression: &str) -> impl Iterator<Item = &str> {
    let is_name = |char: char| char.is_ascii_alphanumeric() || "_:".contains(char);
    let words = expression.split(move |char| !is_name(char));
    words.filter(|word| {
        let prefixes = ["raddle_", "raddle:", "warm_spawner_", "worker_", "queue_"];
        prefixes.iter().any(|prefix| word.starts_with(prefix))
    })
}

#[test]
fn the_dashboard_shows_series_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let (page, rules) = (
        read("docs/reference/metrics.md"),
        read("deploy/prometheus/recording.yml"),
    );
    let exists = |name: &str| {
        // The page names some by their last part: `raddle_tasks_delayed`, `_paused`.
        let last = name.strip_prefix("raddle_tasks").unwrap_or(name);
        let name = name.strip_suffix("_bucket").unwrap_or(name);
        let in_page = |part: &str| {
            page.contains(&format!("`{part}`")) || page.contains(&format!("`{part}{{"))
        };
        in_page(name) || in_page(last) || rules.contains(&format!("record: {name}\n"))
    };
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/raddle.json")).unwrap();
    let source = serde_json::json!({ "type": "prometheus", "uid": "${datasource}" });
    assert_eq!(dashboard["templating"]["list"][0]["type"], "datasource");
    let (mut ids, mut cells, mut expressions) = (Vec::new(), Vec::new(), Vec::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(!panel["title"].as_str().unwrap().is_empty());
        ids.push(panel["id"].as_u64().unwrap());
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for x in place("x")..place("x") + place("w") {
            cells.extend((place("y")..place("y") + place("h")).map(|y| (x, y)));
        }
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"], source);
        assert!(!panel["description"].as_str().unwrap().is_empty());
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{} shows nothing", panel["title"]);
        for target in targets {
            assert_eq!(target["datasource"], source);
            expressions.push(target["expr"].as_str().unwrap());
        }
    }
    assert!(
        cells.iter().all(|(x, _)| *x < 24),
        "the grid has 24 columns"
    );
    for all in [ids.len(), cells.len()].into_iter().zip([
        ids.iter().collect::<std::collections::BTreeSet<_>>().len(),
        cells
            .iter()
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
    ]) {
        assert_eq!(all.0, all.1, "an id is used twice, or panels overlap");
    }
    for expression in expressions.iter().copied().chain(
        rules
            .lines()
            .filter_map(|line| line.trim().strip_prefix("expr: ")),
    ) {
        let names: Vec<&str> = series_names(expression).collect();
        assert!(!names.is_empty(), "{expression} reads no series");
        for name in names {
            assert!(exists(name), "{name} in {expression} does not exist");
        }
    }
    // Prometheus parses each expression as a rule.
    let rules: Vec<Value> = (0..)
        .zip(&expressions)
        .map(|(number, expr)| serde_json::json!({ "record": format!("panel:{number}"), "expr": expr }))
        .collect();
    let world = World::new();
    let file = serde_json::json!({ "groups": [{ "name": "panels", "rules": rules }] });
    let path = world.file("panels.yml", file.to_string());
    let ran = Command::new("promtool")
        .args(["check", "rules"])
        .arg(path)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
}
