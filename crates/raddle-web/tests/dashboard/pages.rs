//! Each screen over HTTP, without a browser.

use std::net::SocketAddr;

use raddle_broker::OutputStream;
use raddle_model::{ExitStatus, TaskState};
use raddle_web::auth::Role;

use crate::{
    client::{Reply, send},
    site::{HOSTILE, Site, spec},
};

/// All screens of a filled site.
pub(crate) fn screens(site: &Site) -> Vec<String> {
    let [done, failed, running, waiting] = site.fill();
    let worker = site.runtime.block_on(site.broker.workers()).unwrap()[0].tid;
    let fixed = [
        "/",
        "/tasks",
        "/tasks?q=state:failed",
        "/failures",
        "/queues",
        "/queues/video",
        "/queues/no%2Fsuch.queue",
        "/workers",
        "/groups",
        "/schedules",
        "/schedules/nightly-backup",
        "/messages",
        "/messages/orders",
        "/events",
        "/audit",
        "/system",
        "/new",
        "/help",
    ];
    let mut screens: Vec<String> = fixed.iter().map(|path| (*path).to_owned()).collect();
    screens.extend([done, failed, running, waiting].map(|tid| format!("/tasks/{tid}")));
    screens.push(format!("/workers/{worker}"));
    screens
}

fn get(site: &Site, path: &str) -> Reply {
    send(site.address, "GET", path, &[], "")
}

fn post(address: SocketAddr, path: &str, body: &str) -> Reply {
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    send(address, "POST", path, &form, body)
}

#[test]
fn every_screen_is_served_and_no_name_is_markup() {
    let site = Site::new(Role::Owner);
    for path in screens(&site) {
        let reply = get(&site, &path);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        let html = &reply.body;
        assert!(
            html.contains("</main>") && !html.contains("<img"),
            "{path}: {html}"
        );
        assert!(!html.contains("<script>alert"), "{path}");
        // The content security policy would block these.
        for inline in [" style=", "<style", " onclick=", "javascript:"] {
            assert!(!html.contains(inline), "{path} contains {inline}");
        }
        for foreign in ["src=\"http", "src=\"//", "href=\"http", "href=\"//"] {
            assert!(!html.contains(foreign), "{path} contains {foreign}");
        }
        let policy = reply.header("content-security-policy").unwrap();
        assert!(
            policy.contains("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert!(
            html.contains("The same from a terminal"),
            "{path} names the commands"
        );
        assert!(html.len() < 70_000, "{path}: {} bytes", html.len());
    }
    assert!(
        get(&site, "/messages/orders")
            .body
            .contains("&#60;img src=x"),
        "{HOSTILE}"
    );
}

#[test]
fn empty_screens_say_what_to_type_next() {
    let site = Site::new(Role::Owner);
    for (path, command) in [
        ("/", "raddle submit -- echo hello"),
        ("/tasks", "raddle submit -- echo hello"),
        ("/workers", "raddle worker start"),
        ("/queues", "raddle submit --queue mail"),
        ("/schedules", "raddle schedule add"),
        ("/messages", "raddle queue write"),
        ("/groups", "raddle up"),
        ("/events", "raddle submit -- echo hello"),
    ] {
        let reply = get(&site, path);
        assert!(
            reply.status == 200 && reply.body.contains(command),
            "{path}: {}",
            reply.body
        );
    }
}

#[test]
fn the_first_load_is_small() {
    let site = Site::new(Role::Owner);
    site.fill();
    let page = get(&site, "/tasks").body;
    assert_eq!(page.matches("<tr id=").count(), 50);
    let names = page.split('"').filter(|part| part.starts_with("/assets/"));
    let mut sum = page.len();
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    let (mut script, mut style) = (0, 0);
    for name in names {
        let asset = get(&site, name);
        assert!(
            asset.header("cache-control").unwrap().contains("immutable"),
            "{name}"
        );
        sum += asset.body.len();
        match name.rsplit('.').next() {
            Some("js") => script += asset.body.len(),
            Some("css") => style += asset.body.len(),
            _ => {}
        }
    }
    println!("first load {sum} bytes, script {script}, style {style}");
    assert!(script > 0 && script <= 12_000, "{script} bytes of script");
    assert!(style > 0 && style <= 14_000, "{style} bytes of style");
    assert!(sum <= 70_000, "{sum} bytes in all");
}

#[test]
fn lists_are_paged_and_filtered_by_links() {
    let site = Site::new(Role::Viewer);
    let [done, ..] = site.fill();
    let first = get(&site, "/tasks?q=name:send-welcome").body;
    assert_eq!(first.matches("<tr id=").count(), 10);
    let all = get(&site, "/tasks").body;
    let older = all
        .split("href=\"")
        .find(|link| link.contains("before="))
        .unwrap();
    let older = older.split('"').next().unwrap().replace("&#38;", "&");
    let second = get(&site, &older).body;
    let ids = |html: &str| html.matches("<tr id=").count();
    assert!(ids(&second) > 0 && second.contains("Newest"), "{older}");
    let bad = get(&site, "/tasks?q=state:nothing");
    assert!(
        bad.status == 400 && bad.body.contains("character"),
        "{}",
        bad.body
    );
    assert_eq!(get(&site, "/nothing").status, 404);
    assert_eq!(get(&site, "/tasks/123").status, 404);
    let go = get(&site, &format!("/go?to={done}"));
    assert_eq!(
        (go.status, go.header("location").unwrap()),
        (303, format!("/tasks/{done}").as_str())
    );
    let words = get(&site, "/go?to=send%20welcome");
    assert!(words.header("location").unwrap().starts_with("/tasks?q="));
}

#[test]
fn forms_act_on_what_they_name_and_lead_back() {
    let site = Site::new(Role::Owner);
    let worker = site.worker("w", &["default"], 4);
    let fail = || {
        site.run(
            worker,
            spec("broken", "default", &["false"]),
            ExitStatus::Code { code: 1 },
            "",
        )
    };
    let (a, b, other) = (fail(), fail(), fail());
    let reply = post(
        site.address,
        "/tasks/act",
        &format!("action=retry&tid={a}&tid={b}&back=%2Ftasks%3Fq%3Ddead%3Ayes"),
    );
    assert_eq!(
        (reply.status, reply.header("location").unwrap()),
        (303, "/tasks?q=dead:yes")
    );
    let task = |tid| site.runtime.block_on(site.broker.task(tid)).unwrap();
    assert!(!task(a).unwrap().dead && !task(b).unwrap().dead && task(other).unwrap().dead);
    // The message is shown once.
    let cookie = reply
        .header("set-cookie")
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    let said = send(site.address, "GET", "/tasks", &[("Cookie", &cookie)], "");
    assert!(said.body.contains("Retry: 2 tasks"), "{}", said.body);
    assert!(said.header("set-cookie").unwrap().contains("Max-Age=0"));

    let waiting = site.submit(spec("later", "nowhere", &["true"]));
    post(
        site.address,
        "/tasks/act",
        &format!("action=stop&tid={waiting}"),
    );
    assert_eq!(task(waiting).unwrap().state, TaskState::Cancelled);
    post(
        site.address,
        "/tasks/act",
        &format!("action=delete&tid={waiting}"),
    );
    assert!(task(waiting).is_none());
    let spec = "%7B%22target%22%3A%7B%22command%22%3A%5B%22true%22%5D%7D%7D";
    let submitted = post(site.address, "/new", &format!("spec={spec}"));
    assert!(
        submitted
            .header("location")
            .unwrap()
            .starts_with("/tasks/1"),
        "{}",
        submitted.body
    );
    for (path, body) in [
        ("/tasks/act", "action=explode&tid=1"),
        ("/new", "spec=nonsense"),
        ("/messages/act", "queue=raddle.tasks.log&body=x"),
    ] {
        let reply = post(site.address, path, body);
        let is_flash = reply.status == 303
            && reply
                .header("set-cookie")
                .unwrap()
                .contains("raddle_said=%21");
        assert!(
            is_flash || (400..500).contains(&reply.status),
            "{path}: {}",
            reply.status
        );
    }
    let waits = site.submit(crate::site::spec("held", "mail", &["true"]));
    post(site.address, "/queues/act", "action=pause&queue=mail");
    assert!(get(&site, "/queues/mail").body.contains("paused: no task"));
    assert!(
        get(&site, &format!("/tasks/{waits}"))
            .body
            .contains("paused")
    );
    post(site.address, "/queues/act", "action=resume&queue=mail");
    assert!(!get(&site, "/queues/mail").body.contains("paused: no task"));
    // A link in a form leads to no other site.
    let away = post(
        site.address,
        "/tasks/act",
        &format!("action=retry&tid={other}&back=//evil.test/"),
    );
    assert_eq!(away.header("location").unwrap(), "/tasks");
}

#[test]
fn viewers_see_states_and_no_data_and_change_nothing() {
    let site = Site::new(Role::Viewer);
    let [done, failed, _, waiting] = site.fill();
    let page = get(&site, &format!("/tasks/{failed}")).body;
    assert!(
        !page.contains("KeyError") && page.contains("Needs the right"),
        "{page}"
    );
    assert!(
        !get(&site, &format!("/tasks/{waiting}"))
            .body
            .contains("hunter2")
    );
    assert_eq!(
        get(&site, &format!("/tasks/{done}/output/1/stdout")).status,
        403
    );
    for path in ["/messages", "/messages/orders", "/audit", "/new"] {
        assert_eq!(get(&site, path).status, 403, "{path}");
    }
    for (path, body) in [
        ("/tasks/act", format!("action=retry&tid={failed}")),
        ("/tasks/act", format!("action=kill&tid={waiting}")),
        (
            "/schedules/act",
            "action=run-now&name=nightly-backup".into(),
        ),
        ("/messages/act", "queue=orders&body=x".into()),
        ("/new", "spec=%7B%7D".into()),
        ("/purge", String::new()),
    ] {
        let status = post(site.address, path, &body).status;
        assert_eq!(status, 403, "{path} {body}");
    }
    let task = site
        .runtime
        .block_on(site.broker.task(failed))
        .unwrap()
        .unwrap();
    assert!(task.dead);
}

#[test]
fn output_is_downloaded_byte_for_byte() {
    let site = Site::new(Role::Reader);
    let worker = site.worker("w", &["default"], 4);
    let leased = site.claim(worker, site.submit(spec("print", "default", &["x"])));
    site.start_task(&leased);
    let text = "<script>\u{1b}[1m\r10 %\r\u{0}end\n".repeat(2000);
    site.print(&leased, OutputStream::Stdout, &text);
    let tid = leased.attempt_id.tid;
    let file = get(&site, &format!("/tasks/{tid}/output/1/stdout"));
    assert!(
        file.header("content-disposition")
            .unwrap()
            .starts_with("attachment")
    );
    assert_eq!(file.body, text);
    let page = get(&site, &format!("/tasks/{tid}")).body;
    assert!(
        page.contains("the last") && !page.contains("<script>\u{1b}"),
        "only the end is shown, as text"
    );
}
