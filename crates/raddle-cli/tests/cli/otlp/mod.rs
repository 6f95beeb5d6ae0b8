//! Spans of attempts at a collector.

mod collector;

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use self::collector::{Collector, attribute, hex};
use crate::{
    metrics::{said, scrape},
    trace::{PARENT, TRACE, parts},
    world::{World, wait_until},
};

#[test]
fn each_attempt_is_a_span_at_the_collector() {
    let world = World::new();
    let collector = Collector::start();
    let url = format!("http://{}", collector.address);
    let worker = world.start([
        "worker",
        "start",
        "--no-detach",
        "--json",
        "--otlp-endpoint",
        &url,
    ]);
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
    world
        .raddle(["wait", "--timeout", "30", &tid, &unrecorded, &own])
        .ok();
    worker.stop().ok();
    // The rest is sent at the end: nothing has to be waited for.
    let spans = collector.spans();
    let of = |tid: &str| {
        spans
            .iter()
            .filter(|span| attribute(&span.attributes, "raddle.tid") == tid)
            .collect::<Vec<_>>()
    };
    let attempts = of(&tid);
    assert_eq!(
        (attempts.len(), of(&unrecorded).len(), of(&own).len()),
        (2, 0, 1),
        "{spans:?}"
    );
    let written = world.raddle(["logs", &tid]).ok();
    for (n, span) in attempts.iter().enumerate() {
        let (trace, id, _) = parts(written.lines()[n]);
        assert_eq!(
            (hex(&span.trace_id).as_str(), hex(&span.span_id).as_str()),
            (trace, id),
            "as the target was told"
        );
        assert_eq!(
            (hex(&span.parent_span_id).as_str(), span.name.as_str()),
            ("00f067aa0ba902b7", "traced")
        );
        let attempt = attribute(&span.attributes, "raddle.attempt");
        assert_eq!(
            (attempt, attribute(&span.attributes, "raddle.kind")),
            (&*(n + 1).to_string(), "execute")
        );
        let took = span.end_time_unix_nano - span.start_time_unix_nano;
        assert!((100_000_000..60_000_000_000).contains(&took), "{span:?}");
    }
    let ends = attempts.iter().map(|span| {
        (
            span.status.as_ref().unwrap().code,
            attribute(&span.attributes, "raddle.status"),
        )
    });
    assert_eq!(ends.collect::<Vec<_>>(), [(2, "retried"), (1, "completed")]);
    collector.first(|first| {
        let resource = first.request.resource_spans[0].resource.as_ref().unwrap();
        assert_eq!(
            attribute(&resource.attributes, "service.name"),
            "raddle-worker"
        );
    });
}

/// The variables of the OpenTelemetry specification, in the environment of a worker.
#[test]
fn honours_opentelemetry_variables_with_and_without_tls() {
    let world = World::new();
    world.raddle(["cert", "ca", "--out", "certs"]).ok();
    let issued = world
        .raddle(["cert", "issue", "--ca", "certs", "127.0.0.1"])
        .ok();
    let files = (
        world.path().join(issued.lines()[0]),
        world.path().join(issued.lines()[1]),
    );
    let ca = world.path().join("certs/ca-cert.pem");
    for (protocol, is_tls) in [
        ("grpc", false),
        ("http/protobuf", false),
        ("grpc", true),
        ("http/protobuf", true),
    ] {
        let collector = if is_tls {
            Collector::start_tls(&ca, &files)
        } else {
            Collector::start()
        };
        let scheme = if is_tls { "https" } else { "http" };
        let script = format!(
            "export OTEL_EXPORTER_OTLP_ENDPOINT={scheme}://{} OTEL_EXPORTER_OTLP_PROTOCOL={protocol}\n\
             export OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20secret,x-tenant=ours OTEL_SERVICE_NAME=mine\n\
             export OTEL_EXPORTER_OTLP_CERTIFICATE={} OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE={} OTEL_EXPORTER_OTLP_CLIENT_KEY={}\n\
             exec raddle worker start --no-detach --json",
            collector.address,
            ca.display(),
            files.0.display(),
            files.1.display()
        );
        let worker = world.start_bash(&script);
        said(&worker);
        let tid = world.submit(&["--traceparent", PARENT, "--", "true"]);
        world.raddle(["wait", "--timeout", "30", &tid]).ok();
        wait_until("the span is there", || collector.spans().len() == 1);
        assert_eq!(hex(&collector.spans()[0].trace_id), TRACE);
        collector.first(|first| {
            assert_eq!(first.is_grpc, protocol == "grpc");
            assert_eq!(
                first.headers["authorization"], "Bearer secret",
                "{protocol}: {:?}",
                first.headers
            );
            assert_eq!(first.headers["x-tenant"], "ours");
            let resource = first.request.resource_spans[0].resource.as_ref().unwrap();
            assert_eq!(attribute(&resource.attributes, "service.name"), "mine");
        });
        worker.stop().ok();
    }
}

#[test]
fn sends_nothing_to_an_untrusted_collector() {
    let world = World::new();
    world.raddle(["cert", "ca", "--out", "certs"]).ok();
    let issued = world
        .raddle(["cert", "issue", "--ca", "certs", "127.0.0.1"])
        .ok();
    let files = (
        world.path().join(issued.lines()[0]),
        world.path().join(issued.lines()[1]),
    );
    let collector = Collector::start_tls(&world.path().join("certs/ca-cert.pem"), &files);
    for protocol in ["grpc", "http/protobuf"] {
        let script = format!(
            "export OTEL_EXPORTER_OTLP_PROTOCOL={protocol}\n\
             exec raddle worker start --no-detach --json --metrics-addr 127.0.0.1:0 --otlp-endpoint https://{}",
            collector.address
        );
        let worker = world.start_bash(&script);
        let url = said(&worker)["metrics"].as_str().unwrap().to_owned();
        let tid = world.submit(&["--", "true"]);
        world.raddle(["wait", "--timeout", "30", &tid]).ok();
        wait_until("it is counted", || {
            scrape(&url).get("raddle_spans_dropped_total") == Some(1.0)
        });
        assert!(collector.spans().is_empty(), "{protocol}");
        worker.stop().ok();
    }
}

/// Once: its workers have the same environment, and leave it to the spawner.
#[test]
fn a_spawner_sends_the_spans_of_its_workers() {
    let world = World::new();
    let collector = Collector::start();
    let spawner = world.start_bash(&format!(
        "export OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://{}/v1/traces\n\
         exec raddle spawner run --warm-pool 1 --max-workers 2 --json",
        collector.address
    ));
    said(&spawner);
    let tids = world.submit(&["--array", "1-3", "--traceparent", PARENT, "--", "true"]);
    world.raddle(["wait"].into_iter().chain(tids.lines())).ok();
    wait_until("they are there", || collector.spans().len() >= 3);
    spawner.stop().ok();
    let spans = collector.spans();
    assert_eq!(spans.len(), 3, "{spans:?}");
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE));
}

/// Neither one that is not there nor one that never answers holds anything up.
#[test]
fn a_bad_collector_only_loses_spans() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let absent = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for (address, is_silent) in [(absent, false), (silent.local_addr().unwrap(), true)] {
        let world = World::new();
        let script = format!(
            "export OTEL_EXPORTER_OTLP_TIMEOUT={}\n\
             exec raddle worker start --no-detach --json --metrics-addr 127.0.0.1:0 --otlp-endpoint http://{address}",
            if is_silent { 60_000 } else { 500 }
        );
        let worker = world.start_bash(&script);
        let url = said(&worker)["metrics"].as_str().unwrap().to_owned();
        let tids = world.submit(&["--array", "1-20", "--", "true"]);
        let begun = Instant::now();
        world.raddle(["wait"].into_iter().chain(tids.lines())).ok();
        assert!(begun.elapsed() < Duration::from_secs(30));
        if !is_silent {
            wait_until("they are counted", || {
                scrape(&url).get("raddle_spans_dropped_total") == Some(20.0)
            });
            wait_until("it is said", || {
                worker.stderr().contains("spans cannot be exported")
            });
        }
        scrape(&url).passes();
        let begun = Instant::now();
        worker.stop().ok();
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{:?}",
            begun.elapsed()
        );
    }
}

#[test]
fn refuses_unusable_settings() {
    let world = World::new();
    for wrong in [
        "127.0.0.1:4318",
        "ftp://127.0.0.1",
        "https://user:secret@127.0.0.1:4318",
    ] {
        let ran = world
            .raddle(["worker", "start", "--otlp-endpoint", wrong])
            .code(2);
        ran.stderr_contains("is not a collector's address");
    }
    for (settings, message) in [
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/json",
            "use grpc or http/protobuf",
        ),
        (
            "OTEL_EXPORTER_OTLP_CERTIFICATE=none.pem",
            "cannot read 'none.pem'",
        ),
    ] {
        let script = format!(
            "{settings} raddle worker start --no-detach --otlp-endpoint https://127.0.0.1:4318"
        );
        world.bash(&script).code(2).stderr_contains(message);
    }
}
