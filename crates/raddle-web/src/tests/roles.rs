//! Every route with every role: the table is the only source of rights.

use raddle_model::{TaskSpec, TaskState};
use serde_json::json;

use super::{client::Request, world::World};
use crate::{
    api, auth,
    auth::{Right, Role},
    pages, probe_routes,
    route::{Access, Face, Route, Verb},
};

/// All routes with their full paths. The names in them are those of things that do not exist.
fn routes() -> Vec<(&'static Route, String)> {
    let tables = [
        ("/api/v1", api::ROUTES),
        ("", auth::ROUTES),
        ("", pages::ROUTES),
        ("", crate::live::ROUTES),
        ("", probe_routes::CLOSED),
    ];
    let all = tables
        .into_iter()
        .flat_map(|(base, routes)| routes.iter().map(move |route| (base, route)));
    all.map(|(base, route)| {
        let path = route.path.split('/').map(|part| match part {
            "{tid}" => "1700000000000000001",
            "{stream}" => "stdout",
            "{attempt}" => "1",
            part if part.starts_with('{') => "absent",
            part => part,
        });
        (
            route,
            format!("{base}{}", path.collect::<Vec<_>>().join("/")),
        )
    })
    .collect()
}

fn request(route: &Route, path: &str) -> Request {
    let request = Request::new(&route.verb.as_str().to_uppercase(), path);
    match (route.verb, route.face) {
        (Verb::Get, _) => request,
        (_, Face::Page) => request.form("a=b"),
        _ => request.json(&json!({})),
    }
}

#[tokio::test]
async fn every_route_asks_for_its_right_in_every_role() {
    let world = World::new().await;
    let mut tokens = Vec::new();
    for role in Role::ALL {
        tokens.push((
            role.rights(),
            role.to_string(),
            world.token(role, &[]).await,
        ));
    }
    let submitter = [Right::Submit];
    let rights = Role::Viewer.rights().iter().chain(submitter).collect();
    tokens.push((
        rights,
        "viewer who submits".into(),
        world.token(Role::Viewer, &submitter).await,
    ));
    let mut checked = 0;
    for (route, path) in routes() {
        let stranger = world.send(request(route, &path)).await;
        let is_open = route.access == Access::Open;
        let is_refused = stranger.status == 401
            || stranger
                .header("location")
                .is_some_and(|to| to.contains("/login?to="));
        assert_eq!(
            is_refused && path != "/login",
            !is_open,
            "{path}: {stranger:?}"
        );
        for (rights, role, token) in &tokens {
            // A stream has no end.
            if matches!(route.access, Access::Needs(right) if rights.allow(right))
                && path.contains("/live")
            {
                continue;
            }
            let answer = world.send(request(route, &path).token(token)).await;
            let is_allowed = match route.access {
                Access::Needs(right) => rights.allow(right),
                Access::SignedIn | Access::Open => true,
            };
            let verb = route.verb.as_str();
            assert_eq!(
                answer.status != 403,
                is_allowed,
                "{role}: {verb} {path}: {answer:?}"
            );
            assert_ne!(answer.status, 405, "{verb} {path} has no handler");
            assert_ne!(answer.status, 500, "{role}: {verb} {path}: {answer:?}");
            if !is_allowed && route.face == Face::Api {
                let Access::Needs(right) = route.access else {
                    panic!("{path}");
                };
                assert_eq!(answer.json()["right"], right.as_str(), "{path}");
            }
            checked += 1;
        }
    }
    assert!(checked > 200, "{checked}");
    world.stop().await;
}

#[tokio::test]
async fn read_only_has_no_route_that_changes_anything() {
    let world = World::with(|options| crate::Options {
        is_read_only: true,
        ..options
    })
    .await;
    let tid = world.submit(TaskSpec::command(["true"])).await;
    for (route, path) in routes() {
        if route.changes_data() {
            let path = path.replace("1700000000000000001", &tid.to_string());
            let answer = world
                .send(request(route, &path).token(super::world::OWNER))
                .await;
            assert!(matches!(answer.status, 404 | 405), "{path}: {answer:?}");
        }
    }
    let task = world.broker.task(tid).await.unwrap().unwrap();
    assert_eq!(task.state, TaskState::Created);
    world.stop().await;
}

#[tokio::test]
async fn a_viewer_sees_no_data() {
    let world = World::new().await;
    let spec = TaskSpec {
        env: [("KEY".to_owned(), "secret-value".to_owned())].into(),
        stdin: Some("secret-value".into()),
        ..TaskSpec::command(["sh", "-c", "secret-value"])
    };
    let tid = world.submit(spec).await;
    let (viewer, reader) = (
        world.token(Role::Viewer, &[]).await,
        world.token(Role::Reader, &[]).await,
    );
    for path in [format!("/api/v1/tasks/{tid}"), "/api/v1/tasks".to_owned()] {
        let hidden = world
            .send(Request::new("GET", &path).token(&viewer))
            .await
            .expect(200);
        assert!(!hidden.body.contains("secret-value"), "{hidden:?}");
        assert!(hidden.body.contains(&tid.to_string()), "{hidden:?}");
        let shown = world
            .send(Request::new("GET", &path).token(&reader))
            .await
            .expect(200);
        assert!(shown.body.contains("secret-value"), "{shown:?}");
    }
    world.stop().await;
}
