//! Codes, tokens and cookies.

use jiff::Timestamp;
use raddle_broker::PeekRequest;
use raddle_model::QueueName;
use serde_json::json;

use super::{
    client::Request,
    world::{OWNER, World, wait_until},
};
use crate::{
    Options,
    auth::{NewToken, Role, add_token, create_code, revoke_token},
};

#[tokio::test]
async fn a_code_signs_in_once() {
    let world = World::new().await;
    let code = create_code(&*world.broker).await.unwrap();
    let path = format!("/login?code={code}&to=%2Ftasks");
    // A browser that fetches links ahead does not use it up.
    let ahead = Request::new("GET", &path).header("Sec-Purpose", "prefetch;prerender");
    assert!(world.send(ahead).await.header("set-cookie").is_none());
    let answer = world.send(Request::new("GET", &path)).await.expect(303);
    assert_eq!(answer.header("location"), Some("/tasks"));
    let cookie = answer.header("set-cookie").unwrap().to_owned();
    for part in ["HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=43200"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure"), "{cookie}");
    let pair = cookie.split(';').next().unwrap();
    let info = world
        .send(Request::new("GET", "/api/v1/").header("Cookie", pair))
        .await;
    assert_eq!(info.expect(200).json()["role"], "owner");
    // Again, and from another browser.
    assert_eq!(world.send(Request::new("GET", &path)).await.status, 401);
    world.stop().await;
}

#[tokio::test]
async fn a_code_is_used_by_one_of_many() {
    let world = World::new().await;
    let code = create_code(&*world.broker).await.unwrap();
    let requests = (0..8).map(|_| {
        let (place, path) = (world.place.clone(), format!("/login?code={code}"));
        tokio::spawn(async move { Request::new("GET", &path).send(&place).await.status })
    });
    let mut statuses = Vec::new();
    for request in requests.collect::<Vec<_>>() {
        statuses.push(request.await.unwrap());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [303, 401, 401, 401, 401, 401, 401, 401]);
    world.stop().await;
}

#[tokio::test]
async fn an_old_code_is_refused_and_removed() {
    let world = World::new().await;
    let queue = QueueName::Free("raddle.web.codes".into());
    let record = json!({
        "sha256": super::super::auth::hash_hex("old"),
        "expires_at": Timestamp::now() - std::time::Duration::from_secs(1),
    });
    world
        .broker
        .put(queue.clone(), vec![record.to_string()])
        .await
        .unwrap();
    world
        .send(Request::new("GET", "/login?code=old"))
        .await
        .expect(401);
    let peek = PeekRequest {
        queue,
        after: 0,
        max: 10,
        wait: std::time::Duration::ZERO,
    };
    assert!(world.broker.peek(peek).await.unwrap().is_empty());
    world.stop().await;
}

#[tokio::test]
async fn a_revoked_token_ends_its_sessions_and_streams() {
    let world = World::new().await;
    let token = world.token(Role::Viewer, &[]).await;
    let login = Request::new("POST", "/login").form(&format!("token={token}&to=/"));
    let answer = world.send(login).await.expect(303);
    let cookie = answer
        .header("set-cookie")
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    let stream = Request::new("GET", "/api/v1/events")
        .header("Accept", "text/event-stream")
        .token(&token);
    let place = world.place.clone();
    let streaming = tokio::spawn(async move { stream.send(&place).await });
    let with_cookie = || Request::new("GET", "/api/v1/status").header("Cookie", &cookie);
    world.send(with_cookie()).await.expect(200);
    assert_eq!(revoke_token(&*world.broker, "viewer").await.unwrap(), 1);
    // It ends.
    streaming.await.unwrap().expect(200);
    wait_until("the cookie is refused", async || {
        world.send(with_cookie()).await.status == 401
    })
    .await;
    let bearer = Request::new("GET", "/api/v1/status").token(&token);
    world.send(bearer).await.expect(401);
    world.stop().await;
}

#[tokio::test]
async fn an_expired_token_is_refused() {
    let world = World::new().await;
    let new = NewToken {
        name: "late".into(),
        role: Role::Owner,
        rights: Vec::new(),
        expires_at: Some(Timestamp::now() - std::time::Duration::from_secs(1)),
    };
    let (_, token) = add_token(&*world.broker, new).await.unwrap();
    world
        .send(Request::new("GET", "/api/v1/status").token(&token))
        .await
        .expect(401);
    world.stop().await;
}

#[tokio::test]
async fn many_wrong_tokens_are_too_many() {
    let world = World::new().await;
    let wrong = || world.send(Request::new("GET", "/api/v1/status").token("wrong"));
    for _ in 0..10 {
        wrong().await.expect(401);
    }
    let answer = wrong().await.expect(429);
    assert_eq!(answer.header("retry-after"), Some("5"));
    let login = Request::new("POST", "/login").json(&json!({ "token": "wrong" }));
    world.send(login).await.expect(429);
    // Nobody who has a token is locked out.
    world.get("/api/v1/status").await.expect(200);
    world.stop().await;
}

#[tokio::test]
async fn a_cookie_outlives_the_server_and_not_its_secret() {
    let world = World::new().await;
    let cookie = world.cookie().await;
    let other = World::new().await;
    let request = Request::new("GET", "/api/v1/status").header("Cookie", &cookie);
    other.send(request.clone()).await.expect(200);
    let another = World::with(|options| Options {
        secret: [8; 32],
        ..options
    })
    .await;
    another.send(request).await.expect(401);
    for world in [world, other, another] {
        world.stop().await;
    }
}

#[tokio::test]
async fn another_scheme_of_authorization_is_a_wrong_token() {
    let world = World::new().await;
    for value in ["Basic b3duZXI6", OWNER, "Bearer", "Bearer  "] {
        let request = Request::new("GET", "/api/v1/status").header("Authorization", value);
        world.send(request).await.expect(401);
    }
    world.stop().await;
}
