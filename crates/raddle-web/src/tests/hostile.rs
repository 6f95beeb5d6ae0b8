//! What pages of other sites, other servers on this machine, and rebound names try.

use raddle_model::{TaskSpec, TaskState};
use serde_json::json;

use super::{
    client::{Answer, Request},
    world::{OWNER, World},
};

#[tokio::test]
async fn refuses_other_host_names_on_every_path() {
    let world = World::new().await;
    let port = world.host().rsplit_once(':').unwrap().1.to_owned();
    for path in [
        "/",
        "/login",
        "/api/v1/status",
        "/metrics",
        "/healthz",
        "/absent",
    ] {
        for host in [
            format!("evil.test:{port}"),
            "evil.test".into(),
            "127.0.0.1:1".into(),
            format!("0.0.0.0:{port}"),
            format!("localhost.evil.test:{port}"),
        ] {
            for method in ["GET", "POST", "DELETE"] {
                let request = Request::new(method, path)
                    .header("Host", &host)
                    .token(OWNER);
                world.send(request).await.expect(421);
            }
        }
        let twice = Request::new("GET", path)
            .header("Host", &world.host())
            .header("Host", "evil.test")
            .token(OWNER);
        let answer = world.send(twice).await;
        assert!(matches!(answer.status, 400 | 421), "{answer:?}");
    }
    for name in ["localhost", "raddle-1.localhost", "LOCALHOST"] {
        let host = format!("{name}:{port}");
        let request = Request::new("GET", "/api/v1/status")
            .header("Host", &host)
            .token(OWNER);
        world.send(request).await.expect(200);
    }
    assert!(
        world
            .audit()
            .await
            .iter()
            .all(|entry| entry["outcome"] == "refused")
    );
    world.stop().await;
}

/// A request to stop a task, as a browser with our cookie sends it for another page.
async fn forged(
    world: &World,
    headers: &[(&str, &str)],
    kind: &str,
    body: &str,
) -> (Answer, TaskState) {
    let tid = world.submit(TaskSpec::command(["true"])).await;
    let cookie = world.cookie().await;
    let path = format!("/api/v1/tasks/{tid}/stop");
    let mut request = Request::new("POST", &path)
        .header("Cookie", &cookie)
        .body(body);
    if !kind.is_empty() {
        request = request.header("Content-Type", kind);
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let answer = world.send(request).await;
    (answer, world.broker.task(tid).await.unwrap().unwrap().state)
}

#[tokio::test]
async fn a_page_of_another_origin_changes_nothing() {
    let world = World::new().await;
    let own = format!("http://{}", world.host());
    let json = "application/json";
    for (headers, kind, body) in [
        // A form of another site; of another port of this machine; with `no-cors`; from a sandbox.
        (
            &[
                ("Sec-Fetch-Site", "cross-site"),
                ("Origin", "http://evil.test"),
            ][..],
            json,
            "{}",
        ),
        (
            &[
                ("Sec-Fetch-Site", "same-site"),
                ("Origin", "http://127.0.0.1:1"),
            ],
            json,
            "{}",
        ),
        (
            &[("Sec-Fetch-Site", "same-site"), ("Origin", own.as_str())],
            json,
            "{}",
        ),
        (&[("Sec-Fetch-Site", "cross-site")], "", ""),
        (&[("Sec-Fetch-Site", "none")], json, "{}"),
        (&[("Origin", "null")], json, "{}"),
        (&[("Origin", "http://evil.test")], "", ""),
        (&[("Origin", "http://localhost:1")], json, "{}"),
        // No origin at all, and a method override.
        (&[], json, "{}"),
        (&[], "", ""),
        (&[("X-HTTP-Method-Override", "DELETE")], json, "{}"),
    ] {
        let (answer, state) = forged(&world, headers, kind, body).await;
        assert_eq!(
            (answer.status, state),
            (403, TaskState::Created),
            "{headers:?}: {answer:?}"
        );
    }
    // The right origin, and what a form can send.
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ] {
        let headers = [("Sec-Fetch-Site", "same-origin")];
        let (answer, state) = forged(&world, &headers, kind, r#"{"a":1}"#).await;
        assert_eq!(
            (answer.status, state),
            (415, TaskState::Created),
            "{kind}: {answer:?}"
        );
    }
    let refused = world.audit().await;
    assert!(refused.iter().any(|entry| entry["outcome"] == "refused"
        && entry["status"] == 403
        && entry["by"] == "owner"));
    // Honest users: a browser over loopback, and one over plain HTTP with another name.
    for headers in [
        &[("Sec-Fetch-Site", "same-origin")][..],
        &[("Origin", own.as_str())],
    ] {
        let (answer, state) = forged(&world, headers, json, "{}").await;
        assert_eq!(
            (answer.status, state),
            (200, TaskState::Cancelled),
            "{answer:?}"
        );
    }
    world.stop().await;
}

#[tokio::test]
async fn reading_changes_nothing_and_no_answer_can_be_read_across_origins() {
    let world = World::new().await;
    let tid = world.submit(TaskSpec::command(["true"])).await;
    let cookie = world.cookie().await;
    for action in ["stop", "kill", "retry", "recover", "pause"] {
        let path = format!("/api/v1/tasks/{tid}/{action}");
        world
            .send(Request::new("GET", &path).header("Cookie", &cookie))
            .await
            .expect(405);
    }
    let preflight = Request::new("OPTIONS", "/api/v1/tasks")
        .header("Origin", "http://evil.test")
        .header("Access-Control-Request-Method", "POST");
    let answer = world.send(preflight).await;
    assert!(
        answer.header("access-control-allow-origin").is_none(),
        "{answer:?}"
    );
    for method in ["PATCH", "PUT", "DELETE"] {
        let path = format!("/api/v1/tasks/{tid}/stop");
        world
            .send(Request::new(method, &path).token(OWNER).json(&json!({})))
            .await
            .expect(405);
    }
    assert_eq!(
        world.broker.task(tid).await.unwrap().unwrap().state,
        TaskState::Created
    );
    world.stop().await;
}

#[tokio::test]
async fn every_answer_has_strict_headers() {
    let world = World::new().await;
    for path in ["/api/v1/status", "/absent", "/login", "/healthz"] {
        let answer = world.get(path).await;
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.contains("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path}: {answer:?}");
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn secrets_of_the_server_are_not_messages() {
    let world = World::new().await;
    world.token(crate::auth::Role::Viewer, &[]).await;
    for queue in [
        "raddle.web.tokens",
        "raddle.web.codes",
        "raddle.web.keys.00",
    ] {
        world
            .get(&format!("/api/v1/messages/{queue}"))
            .await
            .expect(403);
        world
            .get(&format!("/api/v1/queues/{queue}"))
            .await
            .expect(403);
        let body = json!({ "messages": ["{}"] });
        world
            .post(&format!("/api/v1/messages/{queue}"), &body)
            .await
            .expect(403);
        world
            .post("/api/v1/messages/free/move", &json!({ "to": queue }))
            .await
            .expect(403);
    }
    let listed = world.get("/api/v1/messages").await.expect(200);
    assert!(!listed.body.contains("raddle.web"), "{listed:?}");
    let reader = world.token(crate::auth::Role::Reader, &[]).await;
    let trail = Request::new("GET", "/api/v1/messages/raddle.audit").token(&reader);
    world.send(trail).await.expect(403);
    world.stop().await;
}

#[tokio::test]
async fn a_message_that_runs_or_controls_a_task_needs_the_right_to_that() {
    let world = World::new().await;
    let tid = world.submit(TaskSpec::command(["true"])).await;
    let token = world
        .token(crate::auth::Role::Viewer, &[crate::auth::Right::Messages])
        .await;
    let body = json!({ "messages": ["STOP"] });
    for queue in [
        format!("T{tid}.ctrl_in"),
        "raddle.spawn.requests".into(),
        "worker.mail.requests".into(),
        "raddle.workers.control".into(),
    ] {
        let request = Request::new("POST", &format!("/api/v1/messages/{queue}"))
            .token(&token)
            .json(&body);
        world.send(request).await.expect(403);
    }
    let free = Request::new("POST", "/api/v1/messages/free")
        .token(&token)
        .json(&body);
    world.send(free).await.expect(200);
    assert_eq!(
        world.broker.task(tid).await.unwrap().unwrap().state,
        TaskState::Created
    );
    world.stop().await;
}
