//! A Docker engine that does what a real one cannot be made to do: it fills its disk, restarts, and
//! refuses. It speaks HTTP on a Unix socket, a thread for each connection, and keeps account of
//! what it is asked.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::world::{RunningCommand, World, wait_until};

/// A request: `POST /containers/create`, and the body.
#[derive(Clone, Debug)]
struct Asked {
    what: String,
    body: Value,
    at: Instant,
}

/// How the engine behaves.
#[derive(Clone, Copy, Default)]
struct Ways {
    /// The answer to `create`, unless it is well.
    create: Option<(u16, &'static str)>,
    /// How often it is given; always, if that is not said.
    create_times: Option<usize>,
    start: Option<(u16, &'static str)>,
    unfiltered: bool,
    /// The containers that are there from the start, in JSON.
    left: Option<&'static str>,
    /// Containers that were there are gone after a restart.
    forgets: bool,
}

#[derive(Default)]
struct Inner {
    asked: Vec<Asked>,
    /// The open ends of what containers say.
    attached: HashMap<String, UnixStream>,
    running: Vec<String>,
    down: bool,
}

#[derive(Clone)]
struct Engine {
    path: PathBuf,
    ways: Ways,
    inner: Arc<Mutex<Inner>>,
}

impl Engine {
    fn start(world: &World, ways: Ways) -> Self {
        let engine = Self {
            path: world.path().join("engine.sock"),
            ways,
            inner: Arc::default(),
        };
        engine.listen();
        engine
    }

    fn listen(&self) {
        let listener = UnixListener::bind(&self.path).unwrap();
        let engine = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if engine.inner.lock().unwrap().down {
                    return;
                }
                let engine = engine.clone();
                thread::spawn(move || engine.serve(stream));
            }
        });
    }

    /// Stops answering, and drops every connection.
    fn stop(&self) {
        let mut inner = self.inner.lock().unwrap();
        inner.down = true;
        for (_, stream) in inner.attached.drain() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        if self.ways.forgets {
            inner.running.clear();
        }
        drop(inner);
        // The listener lets go when it is asked once more.
        let _ = UnixStream::connect(&self.path);
        std::fs::remove_file(&self.path).unwrap();
    }

    fn restart(&self) {
        self.inner.lock().unwrap().down = false;
        self.listen();
    }

    fn serve(&self, stream: UnixStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let mut words = line.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut length = 0;
        loop {
            line.clear();
            reader.read_line(&mut line).ok()?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let asked = Asked {
            what: format!("{method} {path}"),
            body,
            at: Instant::now(),
        };
        self.inner.lock().unwrap().asked.push(asked);
        self.answer(stream, &method, path, query)
    }

    fn answer(&self, mut stream: UnixStream, method: &str, path: &str, query: &str) -> Option<()> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (status, body) = match (method, &parts[..]) {
            ("GET", ["info"]) => {
                let options = if self.ways.unfiltered {
                    json!([])
                } else {
                    json!(["name=seccomp,profile=default"])
                };
                (
                    200,
                    json!({ "ServerVersion": "0.0-fake", "SecurityOptions": options }),
                )
            }
            ("GET", ["containers", "json"]) => (
                200,
                self.ways
                    .left
                    .map_or(json!([]), |left| serde_json::from_str(left).unwrap()),
            ),
            ("POST", ["containers", "create"]) => {
                let name = query
                    .split('&')
                    .find_map(|pair| pair.strip_prefix("name="))?;
                match self.ways.create.filter(|_| {
                    self.ways
                        .create_times
                        .is_none_or(|times| self.count("create") <= times)
                }) {
                    Some((status, message)) => (status, json!({ "message": message })),
                    None => (201, json!({ "Id": name, "Warnings": [] })),
                }
            }
            ("POST", ["containers", name, "attach"]) => {
                let head = "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: \
                            Upgrade\r\nUpgrade: tcp\r\n\r\n";
                // Under the lock: with this answer in hand it may be told to start, which looks for
                // the stream.
                let mut inner = self.inner.lock().unwrap();
                stream.write_all(head.as_bytes()).ok()?;
                inner.attached.insert((*name).to_owned(), stream);
                return None;
            }
            ("POST", ["containers", name, "start"]) => match self.ways.start {
                Some((status, message)) => (status, json!({ "message": message })),
                None => {
                    let mut inner = self.inner.lock().unwrap();
                    inner.running.push((*name).to_owned());
                    // A worker says its id.
                    let said = "1794800817069096960\n";
                    let mut frame = vec![1, 0, 0, 0, 0, 0, 0, said.len() as u8];
                    frame.extend(said.bytes());
                    inner.attached.get_mut(*name)?.write_all(&frame).ok()?;
                    (204, Value::Null)
                }
            },
            ("GET", ["containers", name, "logs"]) => {
                let mut inner = self.inner.lock().unwrap();
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
                    .ok()?;
                inner.attached.insert((*name).to_owned(), stream);
                return None;
            }
            ("GET", ["containers", name, "json"]) => {
                if self
                    .inner
                    .lock()
                    .unwrap()
                    .running
                    .iter()
                    .any(|running| running == name)
                {
                    (200, json!({ "Id": name, "State": { "Running": true } }))
                } else {
                    (404, json!({ "message": "No such container" }))
                }
            }
            // It has nothing to tell, and ends at once.
            ("GET", ["events"]) => (200, Value::Null),
            ("POST", ["containers", name, "kill"]) | ("DELETE", ["containers", name]) => {
                let mut inner = self.inner.lock().unwrap();
                inner.running.retain(|running| running != name);
                if let Some(attached) = inner.attached.remove(*name) {
                    let _ = attached.shutdown(std::net::Shutdown::Both);
                }
                (204, Value::Null)
            }
            _ => (404, json!({ "message": format!("page not found: {path}") })),
        };
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let head = format!(
            "HTTP/1.1 {status} .\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).ok()
    }

    fn asked(&self, what: &str) -> Vec<Asked> {
        let inner = self.inner.lock().unwrap();
        inner
            .asked
            .iter()
            .filter(|asked| asked.what.contains(what))
            .cloned()
            .collect()
    }

    fn count(&self, what: &str) -> usize {
        self.asked(what).len()
    }

    /// Whether it has not only been asked to start one, but did.
    fn has_started(&self) -> bool {
        !self.inner.lock().unwrap().running.is_empty()
    }
}

fn spawner(world: &World, engine: &Engine, more: &str) -> RunningCommand {
    let host = engine.path.display();
    let flags =
        "--launcher docker --worker-image some/image:1 --warm-pool 1 --max-workers 1 --poll-ms 100";
    world.start_bash(&format!(
        "DOCKER_HOST=unix://{host} exec raddle spawner run {flags} {more}"
    ))
}

/// The engine refuses like this, and is asked less and less often.
fn refuses(ways: Ways, what: &str, says: &[&str], metric: &str) {
    let world = World::new();
    let engine = Engine::start(&world, ways);
    let spawner = spawner(&world, &engine, "--metrics-addr 127.0.0.1:0 --json");
    wait_until("it was asked three times", || engine.count(what) >= 3);
    let times: Vec<Instant> = engine.asked(what).iter().map(|asked| asked.at).collect();
    let pauses: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        pauses[0] >= Duration::from_millis(450) && pauses[1] >= Duration::from_millis(900),
        "{pauses:?}"
    );
    for words in says {
        assert!(
            spawner.stderr().contains(words),
            "'{words}' is not in: {}",
            spawner.stderr()
        );
    }
    let first: Value = serde_json::from_str(spawner.stdout().lines().next().unwrap()).unwrap();
    let address = first["metrics"]
        .as_str()
        .unwrap()
        .trim_start_matches("http://")
        .trim_end_matches("/metrics")
        .replace(':', "/");
    let get = format!(
        "exec 3<>/dev/tcp/{address}; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
    );
    let tid = world.submit(&["--cwd", "/tmp", "--", "true"]);
    wait_until("that is explained", || {
        let explained = world
            .raddle(["task", "explain", &tid])
            .ok()
            .text()
            .to_owned();
        explained.contains("cannot, and tries again")
            && explained.contains(first["tid"].as_str().unwrap())
    });
    let page = world.bash(&get).ok().text().to_owned();
    let line = page
        .lines()
        .find(|line| line.contains(&format!("launch_failures_total{{reason=\"{metric}\"}}")));
    assert!(line.is_some_and(|line| !line.ends_with(" 0")), "{line:?}");
    assert!(page.contains("raddle_spawner_backing_off 1"));
    assert_eq!(engine.inner.lock().unwrap().running, [""; 0]);
    spawner.stop().ok();
}

#[test]
fn reports_a_full_disk_and_waits() {
    let full = "failed to create endpoint: write /var/lib/docker/x: no space left on device";
    let ways = Ways {
        create: Some((500, full)),
        ..Ways::default()
    };
    refuses(
        ways,
        "POST /containers/create",
        &["has no room on its disk", "docker system df"],
        "disk_full",
    );
}

#[test]
fn removes_containers_that_do_not_start() {
    let runc = "OCI runtime create failed: exec: \"/usr/local/bin/raddle\": stat /usr/local/bin/raddle: no such file or directory";
    let ways = Ways {
        start: Some((400, runc)),
        ..Ways::default()
    };
    let says = ["the image 'some/image:1' does not have this program"];
    refuses(ways, "DELETE /containers/", &says, "image");
}

#[test]
fn removes_unstarted_containers_of_a_killed_spawner_of_another_class() {
    let left = r#"[
        {"Names": ["/raddle-00000000000000aa-00000001"], "State": "created", "Created": 1700000000,
         "Labels": {"raddle.class": "00000000000000aa", "raddle.spawner": "1700000000000000000"}},
        {"Names": ["/raddle-00000000000000aa-00000002"], "State": "created", "Created": 4000000000,
         "Labels": {"raddle.class": "00000000000000aa", "raddle.spawner": "1700000000000000000"}},
        {"Names": ["/raddle-00000000000000aa-00000003"], "State": "running", "Created": 1700000000,
         "Labels": {"raddle.class": "00000000000000aa", "raddle.spawner": "1700000000000000000"}},
        {"Names": ["/database"], "State": "created", "Created": 1700000000,
         "Labels": {"raddle.class": "00000000000000aa", "raddle.spawner": "1700000000000000000"}}
    ]"#;
    let world = World::new();
    let engine = Engine::start(
        &world,
        Ways {
            left: Some(left),
            ..Ways::default()
        },
    );
    let spawner = spawner(&world, &engine, "");
    // Existing containers are inspected before any is started.
    wait_until("it has started one", || engine.count("/start") >= 1);
    let removed: Vec<String> = engine
        .asked("DELETE /containers/raddle-0")
        .into_iter()
        .map(|asked| asked.what)
        .collect();
    assert_eq!(
        removed,
        ["DELETE /containers/raddle-00000000000000aa-00000001"]
    );
    assert_eq!(engine.count("DELETE /containers/database"), 0);
    spawner.stop().ok();
}

#[test]
fn refuses_an_engine_without_a_seccomp_filter() {
    let ways = Ways {
        unfiltered: true,
        ..Ways::default()
    };
    refuses(ways, "GET /info", &["without a seccomp filter"], "refused");
}

#[test]
fn chooses_another_name_if_a_container_name_is_taken() {
    let world = World::new();
    let taken = "Conflict. The container name \"/raddle-x\" is already in use by container \"y\".";
    let engine = Engine::start(
        &world,
        Ways {
            create: Some((409, taken)),
            create_times: Some(1),
            ..Ways::default()
        },
    );
    let spawner = spawner(&world, &engine, "");
    wait_until("another is tried", || {
        engine.count("POST /containers/create") == 2 && engine.count("/start") == 1
    });
    assert!(
        spawner.stderr().contains("already in use"),
        "{}",
        spawner.stderr()
    );
    let hosts: Vec<Value> = engine
        .asked("POST /containers/create")
        .iter()
        .map(|asked| asked.body["Hostname"].clone())
        .collect();
    assert_ne!(hosts[0], hosts[1]);
    spawner.stop().ok();
    assert_eq!(engine.inner.lock().unwrap().running, [""; 0]);
}

#[test]
fn requests_containers_without_privileges() {
    let world = World::new();
    let engine = Engine::start(&world, Ways::default());
    world.file(
        "profile.json",
        r#"{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[]}"#,
    );
    let table = "[spawner]\n[spawner.container]\nmemory_mb=32\ncpus=0.25\npids=99\ntmp_mb=8\ngpus='all'\nnetworks=['a','b']\n\
                 seccomp='profile.json'\n";
    world.file("spawner.toml", table);
    let spawner = spawner(
        &world,
        &engine,
        "--config spawner.toml --min-isolation sandbox",
    );
    wait_until("it was asked", || {
        engine.count("POST /containers/create") == 1
    });
    let asked = engine.asked("POST /containers/create")[0].body.clone();
    let host = &asked["HostConfig"];
    assert!(
        asked["Env"]
            .as_array()
            .unwrap()
            .contains(&json!("WORKER_MIN_ISOLATION=sandbox")),
        "{}",
        asked["Env"]
    );
    assert_eq!(host["SecurityOpt"][0], "no-new-privileges:true");
    assert_eq!(
        host["SecurityOpt"][1],
        r#"seccomp={"defaultAction":"SCMP_ACT_ERRNO","syscalls":[]}"#
    );
    assert_eq!(
        (&host["Memory"], &host["MemorySwap"]),
        (&json!(32 << 20), &json!(32 << 20))
    );
    assert_eq!(
        (&host["NanoCpus"], &host["PidsLimit"]),
        (&json!(250_000_000), &json!(99))
    );
    assert_eq!(host["DeviceRequests"][0]["Count"], -1);
    assert_eq!(
        (&host["NetworkMode"], &host["Privileged"]),
        (&json!("a"), &json!(false))
    );
    assert_eq!(
        (&host["CapDrop"], &host["CapAdd"]),
        (&json!(["ALL"]), &Value::Null)
    );
    assert_eq!(host["Mounts"][0]["ReadOnly"], true);
    wait_until("the second network is joined", || {
        engine.count("POST /networks/b/connect") == 1
    });
    spawner.stop();
}

#[test]
fn reconnects_to_a_restarted_engine() {
    let world = World::new();
    let engine = Engine::start(&world, Ways::default());
    let spawner = spawner(&world, &engine, "");
    wait_until("one is started", || engine.has_started());
    engine.stop();
    wait_until("that is noticed", || {
        spawner
            .stderr()
            .contains("the state of a container is unknown: retrying")
    });
    engine.restart();
    wait_until("it goes on listening to it", || engine.count("/logs") >= 1);
    assert_eq!(engine.count("POST /containers/create"), 1, "it has one");
    spawner.stop().ok();
    assert_eq!(engine.inner.lock().unwrap().running, [""; 0]);
}

#[test]
fn replaces_containers_that_are_lost_in_a_restart() {
    let world = World::new();
    let engine = Engine::start(
        &world,
        Ways {
            forgets: true,
            ..Ways::default()
        },
    );
    let spawner = spawner(&world, &engine, "");
    wait_until("one is started", || engine.has_started());
    engine.stop();
    wait_until("that is noticed", || {
        spawner
            .stderr()
            .contains("the state of a container is unknown: retrying")
    });
    engine.restart();
    wait_until("another is started", || engine.count("/start") == 2);
    assert!(
        spawner.stderr().contains("for an unknown reason"),
        "{}",
        spawner.stderr()
    );
    spawner.stop().ok();
}

#[test]
fn names_a_missing_or_forbidden_engine() {
    let world = World::new();
    let absent = world.path().join("absent.sock");
    let host = format!("DOCKER_HOST=unix://{}", absent.display());
    let spawner = world.start_bash(&format!(
        "{host} exec raddle spawner run --launcher docker --worker-image x --warm-pool 1 --poll-ms 100"
    ));
    wait_until("it is named", || {
        spawner.stderr().contains(&format!(
            "there is no Docker engine at {}",
            absent.display()
        ))
    });
    // It is there from now on.
    let engine = Engine {
        path: absent,
        ways: Ways::default(),
        inner: Arc::default(),
    };
    engine.listen();
    wait_until("it is found", || engine.count("/start") == 1);
    spawner.stop().ok();
    world
        .bash("DOCKER_HOST=tcp://127.0.0.1:1 raddle spawner run --launcher docker --worker-image x")
        .code(2)
        .stderr_contains("unix://PATH");

    // A user without access. Root has access to everything.
    if rustix::process::geteuid().is_root() {
        let socket = world.path().join("closed.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        let run = |script: String| world.bash(&script).ok().text().to_owned();
        let doctor = run(format!(
            "chmod 711 .; chmod 600 closed.sock; cp $(command -v raddle) ./copy; chmod 755 copy; cd /; \
             DOCKER_HOST=unix://{0} setpriv --reuid 65534 --regid 65534 --clear-groups {1} --queue-url mem:// doctor",
            socket.display(),
            world.path().join("copy").display()
        ));
        let line = doctor
            .lines()
            .find(|line| line.contains("docker engine"))
            .unwrap();
        assert!(
            line.starts_with("warn") && line.contains("may not use the Docker engine"),
            "{line}"
        );
    }
}
