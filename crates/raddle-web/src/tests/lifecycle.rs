//! Prefixes, sockets, and the stop.

use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncReadExt;

use super::{
    client::Request,
    world::{OWNER, World},
};
use crate::Options;

#[tokio::test]
async fn ends_fifty_streams_when_it_stops() {
    let world = World::new().await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        let request = Request::new("GET", "/api/v1/events")
            .header("Accept", "text/event-stream")
            .token(OWNER);
        let mut stream = request.open(&world.place).await.unwrap();
        let mut head = [0; 15];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 OK");
        streams.push(stream);
    }
    let took = world.stop().await;
    // The bound is 500 ms; the rest is for a machine that is busy with other tests.
    assert!(took < Duration::from_secs(3), "{took:?}");
    for mut stream in streams {
        let mut rest = Vec::new();
        // The end of the body, or of the connection.
        let _ = stream.read_to_end(&mut rest).await;
    }
}

#[tokio::test]
async fn lives_under_a_prefix_behind_a_proxy() {
    let world = World::with(|options| Options {
        prefix: "/raddle".into(),
        allowed_hosts: vec!["front.example".into()],
        ..options
    })
    .await;
    world.get("/api/v1/status").await.expect(404);
    world.get("/raddle/api/v1/status").await.expect(200);
    for root in ["/raddle", "/raddle/", "/raddle/?q=a"] {
        let own = world.get(root).await;
        assert_eq!(
            own.header("x-content-type-options"),
            Some("nosniff"),
            "{root}"
        );
    }
    let login = Request::new("POST", "/raddle/login")
        .header("Host", "front.example")
        .header("Origin", "https://front.example")
        .form(&format!("token={}&to=/tasks", OWNER.replace('\'', "%27")));
    let answer = world.send(login).await.expect(303);
    assert_eq!(answer.header("location"), Some("/raddle/tasks"));
    let cookie = answer.header("set-cookie").unwrap();
    assert!(cookie.contains("Path=/raddle;"), "{cookie}");
    let openapi = world
        .get("/raddle/api/v1/openapi.json")
        .await
        .expect(200)
        .json();
    assert_eq!(openapi["servers"][0]["url"], "/raddle/api/v1");
    world.stop().await;
}

#[tokio::test]
async fn a_socket_needs_no_token_and_keeps_pages_of_others_out() {
    let world = World::at_socket().await;
    let info = world
        .send(Request::new("GET", "/api/v1/"))
        .await
        .expect(200)
        .json();
    assert_eq!(info["role"], "owner");
    // The socket is forwarded to a port, where a browser can be led to.
    for (name, value) in [
        ("Origin", "http://evil.test"),
        ("Sec-Fetch-Site", "same-site"),
    ] {
        let request = Request::new("POST", "/api/v1/tasks")
            .header(name, value)
            .json(&json!({ "target": { "command": ["true"] } }));
        world.send(request).await.expect(403);
    }
    let rebound = Request::new("GET", "/api/v1/").header("Host", "evil.test:9460");
    world.send(rebound).await.expect(421);
    let request =
        Request::new("POST", "/api/v1/tasks").json(&json!({ "target": { "command": ["true"] } }));
    world.send(request).await.expect(201);
    world.stop().await;
}

#[tokio::test]
async fn bodies_and_heads_are_bounded() {
    let world = World::new().await;
    let long = format!("/api/v1/tasks?q={}", "a".repeat(100_000));
    let answer = world.get(&long).await;
    assert!(
        matches!(answer.status, 400 | 414 | 431),
        "{}",
        answer.status
    );
    let head = Request::new("POST", "/api/v1/tasks")
        .token(OWNER)
        .header("Content-Type", "application/json")
        .header("Content-Length", "99999999999");
    let mut stream = head.open(&world.place).await.unwrap();
    let mut begin = [0; 12];
    stream.read_exact(&mut begin).await.unwrap();
    assert!(begin.starts_with(b"HTTP/1.1 4"), "{begin:?}");
    world.stop().await;
}

#[tokio::test]
async fn probes_answer_without_sign_in_and_metrics_do_not() {
    let world = World::new().await;
    for path in ["/healthz", "/readyz"] {
        world.send(Request::new("GET", path)).await.expect(200);
    }
    world
        .send(Request::new("GET", "/metrics"))
        .await
        .expect(401);
    let metrics = world.get("/metrics").await.expect(200);
    assert!(metrics.body.contains("queue_pending_total"), "{metrics:?}");
    let open = World::with(|options| Options {
        has_open_metrics: true,
        ..options
    })
    .await;
    open.send(Request::new("GET", "/metrics")).await.expect(200);
    open.stop().await;
    world.stop().await;
}
