//! `raddle web`: the server as a command, and its answers beside those of the other commands.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    time::Duration,
};

use serde_json::Value;

use crate::{
    metrics::said,
    world::{RunningCommand, World, wait_until},
};

/// An answer: its status, its head and its body.
struct Answer(u16, String, String);

/// Sends a request without a body.
fn request(address: &str, method: &str, path: &str, header: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    send(&mut stream, address, method, path, header)
}

fn send(
    stream: &mut (impl Read + Write),
    host: &str,
    method: &str,
    path: &str,
    header: &str,
) -> Answer {
    let header = match header {
        "" => String::new(),
        header => format!("{header}\r\n"),
    };
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n{header}\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer(status, head.to_owned(), body.to_owned())
}

/// A server of a world, and the owner's token.
struct Web {
    server: RunningCommand,
    address: String,
    header: String,
}

impl Web {
    fn start(world: &World, flags: &[&str]) -> Self {
        let server = world.start([&["web", "--json", "--addr", "127.0.0.1:0"], flags].concat());
        let url = said(&server)["url"].as_str().unwrap().to_owned();
        let address = url.split('/').nth(2).unwrap().to_owned();
        let token = fs::read_to_string(world.path().join(".raddle/web.token")).unwrap();
        Self {
            server,
            address,
            header: format!("Authorization: Bearer {}", token.trim()),
        }
    }

    fn get(&self, path: &str) -> Value {
        let Answer(status, head, body) = request(&self.address, "GET", path, &self.header);
        assert_eq!(status, 200, "{path}: {head}\n{body}");
        serde_json::from_str(&body).unwrap()
    }
}

/// Without what changes between two reads.
fn steady(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for key in [
                "load",
                "rss_bytes",
                "age_seconds",
                "cpu_seconds",
                "duration_seconds",
            ] {
                fields.remove(key);
            }
            fields
                .values_mut()
                .for_each(|value| *value = steady(value.take()));
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| *item = steady(item.take())),
        _ => {}
    }
    value
}

#[test]
fn the_api_answers_what_the_commands_print() {
    let world = World::new();
    let failed = world
        .raddle([
            "run",
            "--json",
            "--",
            "sh",
            "-c",
            "echo out; echo err >&2; exit 3",
        ])
        .code(3)
        .json();
    let failed = failed["tid"].as_str().unwrap();
    let waiting = world.submit(&["--queue", "aside", "--name", "later", "--", "true"]);
    world.raddle(["queue", "write", "jobs", "message"]).ok();
    world
        .raddle(["schedule", "add", "seldom", "--every", "1h", "--", "true"])
        .ok();
    let web = Web::start(&world, &[]);
    let cli = |words: &[&str]| steady(world.raddle([words, &["--json"]].concat()).json());
    for (words, path) in [
        (vec!["status"], "status".to_owned()),
        (vec!["task", "status", failed], format!("tasks/{failed}")),
        (
            vec!["task", "status", &waiting],
            format!("tasks/{}", &waiting[9..]),
        ),
        (
            vec!["task", "explain", &waiting],
            format!("tasks/{waiting}/explain"),
        ),
        (
            vec!["task", "tree", &waiting],
            format!("tasks/{waiting}/tree"),
        ),
        (
            vec!["schedule", "show", "seldom"],
            "schedules/seldom".into(),
        ),
        (vec!["queue", "stats", "jobs"], "queues/jobs".into()),
    ] {
        assert_eq!(
            steady(web.get(&format!("/api/v1/{path}"))),
            cli(&words),
            "{path}"
        );
    }
    for (words, path) in [
        (vec!["task", "list"], "tasks"),
        (vec!["task", "list", "state:failed"], "tasks?q=state:failed"),
        (vec!["queue", "list"], "queues"),
        (vec!["queue", "peek", "jobs"], "messages/jobs"),
        (vec!["schedule", "list"], "schedules"),
        (vec!["worker", "list"], "workers"),
        (vec!["group", "list"], "groups"),
    ] {
        let page = steady(web.get(&format!("/api/v1/{path}")));
        assert_eq!(page["items"], cli(&words), "{path}");
    }
    let result = world.raddle(["result", "--json", failed]).code(3).json();
    assert_eq!(
        steady(web.get(&format!("/api/v1/tasks/{failed}/result"))),
        steady(result)
    );
    let failures = cli(&["failures"]);
    assert_eq!(web.get("/api/v1/failures")["items"], failures["items"]);
    web.server.stop().ok();
}

#[test]
fn a_link_signs_in_once_and_the_stop_leaves_nothing() {
    let world = World::new();
    let tid = world.submit(&["--", "true"]);
    let web = Web::start(&world, &[]);
    let token = world.path().join(".raddle/web.token");
    assert_eq!(
        fs::metadata(&token).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let Answer(status, ..) = request(&web.address, "GET", "/api/v1/status", "");
    assert_eq!(status, 401, "also on this machine");
    let opened = world.raddle(["web", "open", &tid[9..]]).ok();
    let link = opened.text().trim();
    let path = link
        .strip_prefix(&format!("http://{}", web.address))
        .unwrap();
    let Answer(status, head, _) = request(&web.address, "GET", path, "");
    assert_eq!(status, 303, "{head}");
    assert!(head.contains(&format!("location: /tasks/{tid}")), "{head}");
    let cookie = head
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .unwrap();
    let header = format!("Cookie: {}", cookie.split(';').next().unwrap());
    assert_eq!(
        request(&web.address, "GET", "/api/v1/status", &header).0,
        200
    );
    assert_eq!(
        request(&web.address, "GET", path, "").0,
        401,
        "a second use"
    );
    web.server.stop().ok();
    assert!(!world.path().join(".raddle/web.url").exists());
    world
        .raddle(["web", "open"])
        .code(2)
        .stderr_contains("raddle web");
    // The same token and the same sessions after a restart.
    let again = Web::start(&world, &[]);
    assert_eq!(
        request(&again.address, "GET", "/api/v1/status", &header).0,
        200
    );
    again.server.stop().ok();
}

#[test]
fn tokens_are_added_listed_and_revoked() {
    let world = World::new();
    world.submit(&["--", "true"]);
    let web = Web::start(&world, &[]);
    let added = world
        .raddle(["web", "token", "add", "grafana", "--expires", "90d"])
        .ok();
    let header = format!("Authorization: Bearer {}", added.text().trim());
    let status = || request(&web.address, "GET", "/api/v1/status", &header).0;
    assert_eq!(status(), 200);
    assert_eq!(
        request(&web.address, "POST", "/api/v1/tasks/last/stop", &header).0,
        403
    );
    let listed = world.raddle(["web", "token", "list", "--json"]).ok();
    assert!(!listed.text().contains(added.text().trim()) && !listed.text().contains("sha256"));
    assert_eq!(listed.json()[0]["role"], "viewer");
    world.raddle(["web", "token", "revoke", "grafana"]).ok();
    wait_until("it is refused", || status() == 401);
    world.raddle(["web", "token", "revoke", "grafana"]).code(2);
    web.server.stop().ok();
}

#[test]
fn a_socket_lets_its_user_in_and_other_addresses_need_tls() {
    let world = World::new();
    world.submit(&["--", "true"]);
    let server = world.start(["web", "--json", "--socket", "web.sock"]);
    said(&server);
    let path = world.path().join("web.sock");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let mut stream = UnixStream::connect(&path).unwrap();
    let Answer(status, ..) = send(&mut stream, "localhost:9460", "GET", "/api/v1/status", "");
    assert_eq!(status, 200);
    server.stop().ok();
    assert!(!path.exists());
    world
        .raddle(["web", "--addr", "0.0.0.0:0"])
        .code(2)
        .stderr_contains("--tls-cert");
    fs::set_permissions(
        world.path().join(".raddle/web.token"),
        fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    world
        .raddle(["web", "--addr", "127.0.0.1:0"])
        .code(2)
        .stderr_contains("no secret");
}

#[test]
fn starts_in_the_background() {
    let world = World::new();
    world.submit(&["--", "true"]);
    let started = world
        .raddle(["web", "--json", "--detach", "--addr", "127.0.0.1:0"])
        .ok()
        .json();
    let address = started["url"]
        .as_str()
        .unwrap()
        .split('/')
        .nth(2)
        .unwrap()
        .to_owned();
    assert_eq!(request(&address, "GET", "/healthz", "").0, 200);
    let pid = started["pid"].as_i64().unwrap();
    assert_eq!(
        crate::world::kill(pid.try_into().unwrap(), libc::SIGTERM),
        0
    );
    wait_until("it is gone", || TcpStream::connect(&address).is_err());
}
