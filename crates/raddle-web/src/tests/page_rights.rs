//! Pages and live updates ask for the rights that the API asks for.

use std::time::Duration;

use raddle_model::{QueueName, TaskSpec};
use tokio::{
    io::AsyncReadExt,
    time::{Instant, timeout},
};

use super::{client::Request, world::World};
use crate::auth::{Right, Role};

/// The deadline for what has to happen.
const SOON: Duration = Duration::from_secs(60);
/// How long an update that must not come is waited for: a few renderings.
const A_WHILE: Duration = Duration::from_secs(3);

#[tokio::test]
async fn pages_guard_queues_as_the_api_does() {
    let world = World::new().await;
    let tid = world.submit(TaskSpec::command(["true"])).await;
    let token = world
        .token(Role::Viewer, &[Right::Messages, Right::SeeData])
        .await;
    for queue in [
        "raddle.web.tokens".to_owned(),
        "raddle.audit".into(),
        "raddle.spawn.requests".into(),
        format!("T{tid}.ctrl_in"),
    ] {
        for form in [
            format!("queue={queue}&body=STOP"),
            format!("queue=free&to={queue}"),
        ] {
            let request = Request::new("POST", "/messages/act")
                .token(&token)
                .form(&form);
            world.send(request).await.expect(403);
        }
    }
    let trail = Request::new("GET", "/messages/raddle.audit").token(&token);
    world.send(trail).await.expect(403);
    world.stop().await;
}

#[tokio::test]
async fn a_viewer_sees_no_arguments_and_no_lines_of_errors_on_pages() {
    let world = World::new().await;
    let spec = TaskSpec::command(["sh", "-c", "a-secret"]);
    let tid = world.submit(spec).await;
    let token = world.token(Role::Viewer, &[]).await;
    for path in [format!("/tasks/{tid}"), "/tasks".into(), "/failures".into()] {
        let request = Request::new("GET", &path).token(&token);
        let page = world.send(request).await.expect(200);
        assert!(!page.body.contains("a-secret"), "{path}");
    }
    world.stop().await;
}

/// The text of live updates for a token, until it has the wanted part or the patience is over.
async fn live_text(world: &World, token: &str, wanted: &str, patience: Duration) -> String {
    let open = Request::new("GET", "/live").token(token);
    let mut stream = open.open(&world.place).await.unwrap();
    let (mut text, mut is_shown) = (String::new(), false);
    let begun = Instant::now();
    while !text.contains(wanted) && begun.elapsed() < patience {
        let mut bytes = [0; 4096];
        let Ok(read) = timeout(Duration::from_millis(200), stream.read(&mut bytes)).await else {
            continue;
        };
        text.push_str(&String::from_utf8_lossy(&bytes[..read.unwrap()]));
        let session = text
            .split_once("event: hello\ndata: ")
            .and_then(|(_, rest)| rest.split_once('\n'));
        if let (false, Some((session, _))) = (is_shown, session) {
            is_shown = true;
            let show = Request::new("POST", &format!("/live/{}", session.trim()))
                .token(token)
                .form("screen=/messages/orders&screen=/tasks");
            world.send(show).await.expect(204);
        }
    }
    assert!(is_shown, "{text}");
    text
}

#[tokio::test]
async fn live_updates_show_a_viewer_only_what_its_pages_show() {
    let world = World::new().await;
    let queue = QueueName::Free("orders".into());
    let body = vec!["a-secret".to_owned()];
    world.broker.put(queue, body).await.unwrap();
    let (viewer, reader) = (
        world.token(Role::Viewer, &[]).await,
        world.token(Role::Reader, &[]).await,
    );
    let seen = live_text(&world, &reader, "a-secret", SOON).await;
    assert!(seen.contains("a-secret"), "readers do see it: {seen}");
    let seen = live_text(&world, &viewer, "a-secret", A_WHILE).await;
    assert!(!seen.contains("a-secret"), "{seen}");
    world.stop().await;
}
