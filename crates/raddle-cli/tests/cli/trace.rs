//! Traces: from who submits a task to what it runs, and to a collector.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    metrics::{said, scrape},
    world::{World, until},
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Trace, span and flags.
fn parts(parent: &str) -> (&str, &str, &str) {
    let parts: Vec<&str> = parent.trim().split('-').collect();
    assert_eq!((parts.len(), parts[0]), (4, "00"), "{parent}");
    (parts[1], parts[2], parts[3])
}

#[test]
fn a_trace_goes_from_who_submits_to_what_is_run() {
    let world = World::new();
    let script = format!(
        r#"
# What the worker was started with is not the tasks' trace.
TRACEPARENT=00-00000000000000000000000000000001-0000000000000001-01 TRACESTATE=worker=1 raddle worker start >/dev/null
show='echo $TRACEPARENT; echo $TRACESTATE; test $RADDLE_ATTEMPT = 2'
export TRACEPARENT={PARENT} TRACESTATE=congo=t61
raddle run --retry 1 --retry-base 0.01 -- sh -c "$show"
export TRACEPARENT=garbage
raddle run --retry 1 --retry-base 0.01 -- sh -c "$show"
raddle run --traceparent {PARENT} --retry 1 --retry-base 0.01 -- sh -c "$show"
raddle run --env TRACEPARENT=mine -- sh -c 'echo $TRACEPARENT'
raddle worker stop --all >/dev/null
"#
    );
    let ran = world.bash(&script).ok();
    let lines = ran.lines();
    let (named, own, flagged) = (&lines[0..4], &lines[4..8], &lines[8..12]);
    for of_flag in [named, flagged] {
        let (first, second) = (parts(of_flag[0]), parts(of_flag[2]));
        assert_eq!((first.0, second.0, first.2), (TRACE, TRACE, "01"), "{of_flag:?}");
        assert!(first.1 != second.1 && first.1 != "00f067aa0ba902b7", "each attempt is a span of its own: {of_flag:?}");
    }
    assert_eq!((named[1], own[1], flagged[1]), ("congo=t61", "", ""));
    // Without one that can be read it is a trace of its own, and not the worker's.
    assert_eq!(parts(own[0]).0, parts(own[2]).0);
    assert!(parts(own[0]).0 != TRACE && !parts(own[0]).0.starts_with("000000000000"));
    assert_eq!(lines[12], "mine");
    for wrong in ["garbage", "00-00000000000000000000000000000000-00f067aa0ba902b7-01"] {
        world.raddle(["submit", "--traceparent", wrong, "--", "true"]).code(2).says("is not a traceparent");
    }
    world.raddle(["submit", "--tracestate", "a=1", "--", "true"]).code(2);
}

#[test]
fn handlers_are_told_and_what_a_task_submits_is_in_its_trace() {
    let world = World::new();
    world.file("test.sh", "read task; echo \"{\\\"result\\\": $task}\"");
    world.file("test.handler.toml", "name = 'test'\nprovides = []\ncommand = ['sh', 'test.sh']\n");
    world.worker(&["--handlers", "."]);
    let tid = world.submit(&["--traceparent", PARENT, "--tracestate", "a=1", "--handler", "test"]);
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    let told = world.task(&tid)["report"]["value"].clone();
    assert_eq!((parts(told["traceparent"].as_str().unwrap()).0, &told["tracestate"]), (TRACE, &json!("a=1")));
    assert_eq!(told["spec"]["traceparent"], PARENT);

    let tid = world.submit(&["--traceparent", PARENT, "--", "sh", "-c", "echo $TRACEPARENT; raddle submit -- true"]);
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    let result = world.raddle(["result", &tid]).ok();
    let (own, child) = (result.lines()[0].to_owned(), result.lines()[1].to_owned());
    assert_eq!(world.task(&child)["spec"]["traceparent"], own);
}

/// A collector: takes what is posted, and keeps the spans.
struct Collector {
    url: String,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&requests);
        // It ends with the test's process.
        thread::spawn(move || listener.incoming().for_each(|stream| serve(stream.unwrap(), &kept)));
        Self { url, requests }
    }

    fn spans(&self) -> Vec<Value> {
        let requests = self.requests.lock().unwrap();
        let spans = |request: &Value| request["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone();
        requests.iter().flat_map(spans).collect()
    }
}

fn serve(stream: TcpStream, kept: &Mutex<Vec<Value>>) {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "POST /v1/traces HTTP/1.1\r\n");
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        if line == "\r\n" {
            break;
        }
        if let Some(number) = line.strip_prefix("Content-Length: ") {
            length = number.trim().parse().unwrap();
        }
        assert!(!line.starts_with("Content-Type: ") || line.contains("application/json"));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    kept.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
    let mut stream = reader.into_inner();
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}").unwrap();
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a str {
    let found = span["attributes"].as_array().unwrap().iter().find(|attribute| attribute["key"] == key);
    found.unwrap_or_else(|| panic!("{key} is not in {span}"))["value"]["stringValue"].as_str().unwrap()
}

#[test]
fn each_attempt_is_a_span_at_the_collector() {
    let world = World::new();
    let collector = Collector::start();
    let worker = world.start(["worker", "start", "--no-detach", "--json", "--otlp-endpoint", &collector.url]);
    said(&worker);
    let tid = world.submit(&[
        "--traceparent",
        PARENT,
        "--kind",
        "execute",
        "--name",
        "traced",
        "--retry",
        "1",
        "--retry-base",
        "0.01",
        "--",
        "sh",
        "-c",
        "echo $TRACEPARENT; sleep 0.1; test $RADDLE_ATTEMPT = 2",
    ]);
    let unrecorded = world.submit(&["--traceparent", &PARENT.replace("-01", "-00"), "--", "true"]);
    let own = world.submit(&["--", "true"]);
    world.raddle(["wait", "--timeout", "30", &tid, &unrecorded, &own]).ok();
    worker.signal(libc::SIGTERM);
    worker.finish().ok();
    // What was left was sent at the end: nothing has to be waited for.
    let spans = collector.spans();
    let of = |tid: &str| spans.iter().filter(|span| attribute(span, "raddle.tid") == tid).collect::<Vec<_>>();
    let attempts = of(&tid);
    assert_eq!((attempts.len(), of(&unrecorded).len(), of(&own).len()), (2, 0, 1), "{spans:?}");
    let written = world.raddle(["logs", &tid]).ok();
    for (n, span) in attempts.iter().enumerate() {
        let (trace, id, _) = parts(written.lines()[n]);
        assert_eq!((&span["traceId"], &span["spanId"]), (&json!(trace), &json!(id)), "as the target was told");
        assert_eq!((&span["parentSpanId"], &span["name"]), (&json!("00f067aa0ba902b7"), &json!("traced")));
        assert_eq!(
            (attribute(span, "raddle.attempt"), attribute(span, "raddle.kind")),
            (&*(n + 1).to_string(), "execute")
        );
        let time = |key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
        let took = time("endTimeUnixNano") - time("startTimeUnixNano");
        assert!((100_000_000..60_000_000_000).contains(&took), "{span}");
    }
    assert_eq!((&attempts[0]["status"]["code"], attribute(attempts[0], "raddle.status")), (&json!(2), "retried"));
    assert_eq!((&attempts[1]["status"]["code"], attribute(attempts[1], "raddle.status")), (&json!(1), "completed"));
    let resource = &collector.requests.lock().unwrap()[0]["resourceSpans"][0]["resource"];
    assert_eq!(attribute(resource, "service.name"), "raddle-worker");
}

#[test]
fn a_spawner_tells_of_its_workers_attempts() {
    let world = World::new();
    let collector = Collector::start();
    let flags =
        ["spawner", "run", "--warm-pool", "1", "--max-workers", "2", "--json", "--otlp-endpoint", &collector.url];
    let spawner = world.start(flags);
    said(&spawner);
    let tids = world.submit(&["--array", "1-3", "--traceparent", PARENT, "--", "true"]);
    world.raddle(["wait"].into_iter().chain(tids.lines())).ok();
    until("they are told", || collector.spans().len() == 3);
    assert!(collector.spans().iter().all(|span| span["traceId"] == TRACE));
    spawner.signal(libc::SIGTERM);
    spawner.finish().ok();
}

/// Neither one that is not there nor one that never answers holds anything up.
#[test]
fn a_bad_collector_costs_spans_and_nothing_else() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let absent = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (address, is_silent) in [(absent, false), (silent.local_addr().unwrap(), true)] {
        let world = World::new();
        let endpoint = format!("http://{address}");
        let flags = ["worker", "start", "--no-detach", "--json", "--metrics-addr", "127.0.0.1:0", "--otlp-endpoint"];
        let worker = world.start(flags.into_iter().chain([endpoint.as_str()]));
        let url = said(&worker)["metrics"].as_str().unwrap().to_owned();
        let tids = world.submit(&["--array", "1-20", "--", "true"]);
        let begun = Instant::now();
        world.raddle(["wait"].into_iter().chain(tids.lines())).ok();
        assert!(begun.elapsed() < Duration::from_secs(30));
        if !is_silent {
            until("they are counted", || scrape(&url).get("raddle_spans_dropped_total") == Some(20.0));
            until("it is said", || worker.stderr().contains("spans cannot be delivered"));
        }
        scrape(&url).passes();
        let begun = Instant::now();
        worker.signal(libc::SIGTERM);
        worker.finish().ok();
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
    let world = World::new();
    for (wrong, said) in [
        ("http://10.0.0.1:4318", "is not on this machine"),
        ("https://127.0.0.1:4318", "is not on this machine"),
        ("127.0.0.1:4318", "is not a collector's address"),
    ] {
        world.raddle(["worker", "start", "--otlp-endpoint", wrong]).code(2).says(said);
    }
}
