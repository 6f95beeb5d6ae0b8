//! What the API answers.

use std::time::Duration;

use jiff::Timestamp;
use raddle_broker::{AttemptId, ClaimRequest, Completion};
use raddle_model::{
    AttemptReport, CapSet, ExitStatus, TaskSpec, TaskState, Tid, worker::WorkerInfo,
};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::{
    client::Request,
    world::{OWNER, World},
};

const LEASE: Duration = Duration::from_secs(60);

/// Runs a task to its end, with this output.
async fn finish(world: &World, tid: Tid, code: i32, stdout: &[u8]) -> AttemptId {
    let worker = world
        .broker
        .register(WorkerInfo::new("test", "resident"), LEASE)
        .await
        .unwrap();
    let request = ClaimRequest {
        owner: worker,
        caps: CapSet::default(),
        queues: vec!["default".into()],
        only: Some(tid),
        max: 1,
        wait: Duration::ZERO,
    };
    let claimed = world.broker.claim(request).await.unwrap();
    let attempt_id = claimed[0].attempt_id;
    let completion = Completion {
        attempt_id,
        report: AttemptReport::bare(ExitStatus::Code { code }, Timestamp::now()),
        stdout: stdout.to_vec(),
        stderr: b"why\n".to_vec(),
    };
    world.broker.complete(vec![completion]).await.unwrap();
    attempt_id
}

#[tokio::test]
async fn submits_all_or_none() {
    let world = World::new().await;
    let bad = json!({ "tasks": [{ "target": { "command": ["true"] } }, { "targt": { "command": ["true"] } }] });
    let problem = world.post("/api/v1/tasks", &bad).await.expect(422).json();
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("task 2 cannot be submitted") && detail.contains("targt"),
        "{detail}"
    );
    assert!(
        world
            .broker
            .tasks(Default::default())
            .await
            .unwrap()
            .is_empty()
    );
    let good = json!({ "tasks": [{ "target": { "command": ["true"] } }, { "target": { "command": ["false"] } }] });
    let items = world.post("/api/v1/tasks", &good).await.expect(201).json();
    assert_eq!(items["items"].as_array().unwrap().len(), 2);
    let one = world
        .post(
            "/api/v1/tasks",
            &json!({ "target": { "command": ["true"] } }),
        )
        .await
        .expect(201)
        .json();
    let tid = one["items"][0]["tid"].as_str().unwrap();
    assert_eq!(tid.len(), 19, "ids are text");
    assert_eq!(one["items"][0]["short"], tid[9..]);
    let entries = world.audit().await;
    assert_eq!(entries.len(), 3);
    assert_eq!(
        (&entries[0]["outcome"], &entries[0]["count"]),
        (&json!("done"), &json!(1))
    );
    assert_eq!(
        (&entries[2]["outcome"], &entries[2]["by"]),
        (&json!("refused"), &json!("owner"))
    );
    world.stop().await;
}

#[tokio::test]
async fn a_key_submits_once() {
    let world = World::new().await;
    let body = json!({ "target": { "command": ["true"] } });
    let submit = |key: &str, body: &Value| {
        let request = Request::new("POST", "/api/v1/tasks").token(OWNER);
        request.header("Idempotency-Key", key).json(body)
    };
    let first = world.send(submit("order 7", &body)).await.expect(201);
    let again = world.send(submit("order 7", &body)).await.expect(201);
    assert_eq!(
        first.json()["items"][0]["tid"],
        again.json()["items"][0]["tid"]
    );
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    world
        .send(submit(
            "order 7",
            &json!({ "target": { "command": ["false"] } }),
        ))
        .await
        .expect(422);
    world.send(submit("order 8", &body)).await.expect(201);
    assert_eq!(
        world.broker.tasks(Default::default()).await.unwrap().len(),
        2
    );
    // At once.
    let requests = (0..8).map(|_| {
        let (place, request) = (world.place.clone(), submit("order 9", &body));
        tokio::spawn(async move { request.send(&place).await.status })
    });
    for request in requests.collect::<Vec<_>>() {
        let status = request.await.unwrap();
        assert!(matches!(status, 201 | 409), "{status}");
    }
    assert_eq!(
        world.broker.tasks(Default::default()).await.unwrap().len(),
        3
    );
    world.stop().await;
}

#[tokio::test]
async fn lists_page_by_page() {
    let world = World::new().await;
    let mut tids = Vec::new();
    for n in 0..7 {
        let name = Some(format!("n{n}"));
        tids.push(
            world
                .submit(TaskSpec {
                    name,
                    ..TaskSpec::command(["true"])
                })
                .await,
        );
    }
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = world
            .get(&format!("/api/v1/tasks?limit=3{cursor}&fields=tid,name"))
            .await;
        let page = page.expect(200).json();
        for item in page["items"].as_array().unwrap() {
            assert_eq!(item.as_object().unwrap().len(), 2, "{item}");
            found.push(item["tid"].as_str().unwrap().to_owned());
        }
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let newest_first: Vec<String> = tids.iter().rev().map(Tid::to_string).collect();
    assert_eq!(found, newest_first);
    let one = world
        .get("/api/v1/tasks?q=name:n3")
        .await
        .expect(200)
        .json();
    assert_eq!(one["items"][0]["tid"], tids[3].to_string());
    assert_eq!(one["items"].as_array().unwrap().len(), 1);
    world.stop().await;
}

#[tokio::test]
async fn a_wrong_request_gets_a_problem_with_a_hint() {
    let world = World::new().await;
    let wrong = world.get("/api/v1/tasks?q=stat:failed").await.expect(400);
    assert_eq!(
        wrong.header("content-type"),
        Some("application/problem+json")
    );
    let wrong = wrong.json();
    assert!(wrong["position"].is_number(), "{wrong}");
    let absent = world
        .get("/api/v1/tasks/1700000000000000001")
        .await
        .expect(404)
        .json();
    assert_eq!(absent["tid"], "1700000000000000001");
    assert!(
        absent["hint"]
            .as_str()
            .unwrap()
            .contains("raddle task list"),
        "{absent}"
    );
    for path in [
        "tasks/7",
        "tasks?limit=x",
        "tasks?cursor=zz",
        "events?after=-1",
        "status?wait=x&after=1",
    ] {
        world.get(&format!("/api/v1/{path}")).await.expect(400);
    }
    let tid = world.submit(TaskSpec::command(["true"])).await;
    let result = world
        .get(&format!("/api/v1/tasks/{tid}/result"))
        .await
        .expect(409)
        .json();
    assert_eq!(result["tid"], tid.to_string());
    let retry = world
        .post(&format!("/api/v1/tasks/{tid}/retry"), &json!({}))
        .await;
    retry.expect(409);
    let request = Request::new("POST", "/api/v1/tasks").token(OWNER);
    world
        .send(request.header("Content-Type", "application/json").body("{"))
        .await
        .expect(400);
    world.stop().await;
}

#[tokio::test]
async fn controls_a_waiting_task() {
    let world = World::new().await;
    let tid = world.submit(TaskSpec::command(["true"])).await;
    let act = async |action: &str, status| {
        let path = format!("/api/v1/tasks/{}/{action}?reason=drill", tid.short());
        world.post(&path, &json!({})).await.expect(status).json()
    };
    assert_eq!(act("pause", 200).await["state"], "paused");
    assert_eq!(act("resume", 200).await["state"], "created");
    let stopped = act("stop", 200).await;
    assert_eq!(
        (&stopped["state"], &stopped["tid"]),
        (&json!("cancelled"), &json!(tid))
    );
    act("stop", 409).await;
    let again = act("retry", 201).await;
    assert_eq!(again["retry_of"], tid.to_string());
    let entries = world.audit().await;
    assert_eq!(entries.len(), 5);
    assert!(
        entries[0]["action"].as_str().unwrap().ends_with("/retry"),
        "{entries:?}"
    );
    assert_eq!(
        (&entries[0]["reason"], &entries[0]["selection"]),
        (&json!("drill"), &json!(tid))
    );
    assert_eq!(entries[0]["from"], "127.0.0.1");
    let deleted = Request::new("DELETE", &format!("/api/v1/tasks/{tid}")).token(OWNER);
    world.send(deleted.clone()).await.expect(200);
    world.send(deleted).await.expect(404);
    world.stop().await;
}

#[tokio::test]
async fn output_is_read_in_ranges() {
    let world = World::new().await;
    let tid = world.submit(TaskSpec::command(["true"])).await;
    let bytes: Vec<u8> = (0..100_000_u32).map(|n| b'a' + (n % 26) as u8).collect();
    finish(&world, tid, 0, &bytes).await;
    let path = format!("/api/v1/tasks/{tid}/output/1/stdout");
    let whole = world.get(&path).await.expect(200);
    assert_eq!(whole.body.as_bytes(), bytes);
    let name = whole.header("content-disposition").unwrap();
    assert!(name.starts_with("attachment"), "{name}");
    for (range, expected) in [("bytes=0-9", &bytes[..10]), ("bytes=-5", &bytes[99_995..])] {
        let request = Request::new("GET", &path)
            .token(OWNER)
            .header("Range", range);
        let part = world.send(request).await.expect(206);
        assert_eq!(part.body.as_bytes(), expected);
        assert!(part.header("content-range").unwrap().ends_with("/100000"));
    }
    let beyond = Request::new("GET", &path)
        .token(OWNER)
        .header("Range", "bytes=100000-");
    world.send(beyond).await.expect(416);
    world
        .get(&format!("/api/v1/tasks/{tid}/output/2/stdout"))
        .await
        .expect(404);
    world
        .get(&format!("/api/v1/tasks/{tid}/output/1/other"))
        .await
        .expect(400);
    let stream = world.get(&format!("{path}?follow=1")).await.expect(200);
    assert_eq!(stream.header("content-type"), Some("text/event-stream"));
    assert!(stream.body.contains("id: 1:100000") && stream.body.contains("event: end"));
    let lines = world
        .get(&format!("/api/v1/tasks/{tid}/logs"))
        .await
        .expect(200)
        .body;
    let text: String = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|record| record["stream"] == "stdout")
        .map(|record| record["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(text.as_bytes(), bytes);
    world.stop().await;
}

#[tokio::test]
async fn a_stream_of_events_continues_where_it_broke() {
    let world = World::new().await;
    let tid = world.submit(TaskSpec::command(["true"])).await;
    finish(&world, tid, 3, b"").await;
    let log = world
        .broker
        .events(Some(0), None, 1000, Duration::ZERO)
        .await
        .unwrap();
    let open = async |last: u64| {
        let request = Request::new("GET", "/api/v1/events")
            .token(OWNER)
            .header("Accept", "text/event-stream")
            .header("Last-Event-ID", &last.to_string());
        request.open(&world.place).await.unwrap()
    };
    // Cut the stream after each of its events: together they are the log.
    let (mut seen, mut last) = (Vec::new(), 0);
    while seen.len() < log.len() {
        let (mut stream, mut text) = (open(last).await, String::new());
        let id = loop {
            let mut bytes = [0; 512];
            let count = stream.read(&mut bytes).await.unwrap();
            text.push_str(&String::from_utf8_lossy(&bytes[..count]));
            let id = text
                .find("id: ")
                .and_then(|at| text[at + 4..].split_once('\n'));
            if let Some((id, _)) = id {
                break id.trim().parse::<u64>().unwrap();
            }
        };
        seen.push(id);
        last = id;
    }
    let ids: Vec<u64> = log.iter().map(|event| event.id.as_u64()).collect();
    assert_eq!(seen, ids);
    world.stop().await;
}

#[tokio::test]
async fn a_request_waits_for_a_change() {
    let world = World::new().await;
    world.submit(TaskSpec::command(["true"])).await;
    let first = world.get("/api/v1/tasks").await.expect(200);
    let tag = first.header("etag").unwrap().to_owned();
    let as_of = first.json()["as_of"].as_str().unwrap().to_owned();
    let known = Request::new("GET", "/api/v1/tasks")
        .token(OWNER)
        .header("If-None-Match", &tag);
    world.send(known).await.expect(304);
    let (place, path) = (
        world.place.clone(),
        format!("/api/v1/tasks?wait=60s&after={as_of}"),
    );
    let waiting =
        tokio::spawn(async move { Request::new("GET", &path).token(OWNER).send(&place).await });
    let second = world.submit(TaskSpec::command(["true"])).await;
    let answer = waiting.await.unwrap().expect(200).json();
    assert_eq!(answer["items"][0]["tid"], second.to_string());
    world.stop().await;
}

#[tokio::test]
async fn schedules_are_written_read_and_run() {
    let world = World::new().await;
    let path = "/api/v1/schedules/nightly";
    let body = json!({ "every": "1h", "task": { "target": { "command": ["true"] }, "env": { "K": "secret-value" } } });
    let put = |body: &Value| Request::new("PUT", path).token(OWNER).json(body);
    assert_eq!(
        world.send(put(&body)).await.expect(200).json()["put"],
        "added"
    );
    let shown = world.get(path).await.expect(200).json();
    assert_eq!(shown["upcoming"].as_array().unwrap().len(), 5, "{shown}");
    let version = shown["version"].as_str().unwrap().to_owned();
    let other = json!({ "every": "2h", "task": { "target": { "command": ["true"] } } });
    let replaced = world
        .send(put(&other).header("If-Match", &version))
        .await
        .expect(200);
    assert_eq!(replaced.json()["put"], "replaced");
    world
        .send(put(&body).header("If-Match", &version))
        .await
        .expect(412);
    assert_eq!(
        world
            .post(&format!("{path}/pause"), &json!({}))
            .await
            .expect(200)
            .json()["changed"],
        true
    );
    let run = world
        .post(&format!("{path}/run-now"), &json!({}))
        .await
        .expect(200)
        .json();
    let tid: Tid = run["tid"].as_str().unwrap().parse().unwrap();
    assert_eq!(
        world.broker.task(tid).await.unwrap().unwrap().state,
        TaskState::Created
    );
    world
        .send(Request::new("DELETE", path).token(OWNER))
        .await
        .expect(200);
    world.get(path).await.expect(404);
    let viewer = world.token(crate::auth::Role::Viewer, &[]).await;
    world.send(put(&body)).await.expect(200);
    let hidden = world
        .send(Request::new("GET", path).token(&viewer))
        .await
        .expect(200);
    assert!(!hidden.body.contains("secret-value"), "{hidden:?}");
    world.stop().await;
}

#[tokio::test]
async fn names_with_slashes_and_odd_characters_are_names() {
    let world = World::new().await;
    let path = "/api/v1/messages/foo%2Fbar.baz";
    let body = json!({ "messages": ["<img onerror=alert(1)>", "\u{202e}"] });
    world.post(path, &body).await.expect(200);
    let read = world.get(path).await.expect(200).json();
    assert_eq!(read["items"][0]["body"], "<img onerror=alert(1)>");
    let listed = world.get("/api/v1/messages").await.expect(200).json();
    assert_eq!(listed["items"][0]["queue"], "foo/bar.baz");
    let moved = world
        .post(&format!("{path}/move"), &json!({ "to": "other" }))
        .await;
    assert_eq!(moved.expect(200).json()["moved"], 2);
    let cleared = Request::new("DELETE", "/api/v1/messages/other").token(OWNER);
    assert_eq!(world.send(cleared).await.expect(200).json()["deleted"], 2);
    world.get("/api/v1/messages/a%20b").await.expect(400);
    world.stop().await;
}

#[tokio::test]
async fn the_reference_document_names_every_route() {
    let world = World::new().await;
    let document = world.get("/api/v1/openapi.json").await.expect(200).json();
    assert_eq!(document["openapi"], "3.1.0");
    for route in crate::api::ROUTES {
        let operation = &document["paths"][route.path][route.verb.as_str()];
        assert!(operation["summary"].is_string(), "{}", route.path);
    }
    let ids: Vec<&str> = document["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|path| path.as_object().unwrap().values())
        .map(|operation| operation["operationId"].as_str().unwrap())
        .collect();
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());
    world.stop().await;
}

#[test]
fn the_reference_is_that_of_the_routes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/api.md");
    if std::env::var_os("BOOK_UPDATE").is_some() {
        std::fs::write(path, crate::reference()).unwrap();
    }
    let is_current = std::fs::read_to_string(path).unwrap() == crate::reference();
    assert!(
        is_current,
        "docs/reference/api.md is out of date: run 'cargo xtask reference'"
    );
}
