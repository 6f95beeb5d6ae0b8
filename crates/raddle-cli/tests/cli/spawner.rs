//! `raddle spawner`, with real workers: on SQLite, and where the engine could matter on Redis too.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::TcpListener,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::world::{RunningCommand, World, wait_until};

/// Two idle workers, and few at a time: this machine may be small.
const FLAGS: [&str; 6] = ["spawner", "run", "--warm-pool", "2", "--max-workers", "6"];

fn spawner(world: &World, flags: &[&str]) -> RunningCommand {
    let spawner = world.start([&FLAGS[..], flags].concat());
    spawner.tid();
    spawner
}

/// The workers of a spawner: process and load.
fn workers(world: &World) -> Vec<(i64, f64)> {
    let pid_and_load = |worker: &Value| {
        (
            worker["pid"].as_i64().unwrap(),
            worker["load"].as_f64().unwrap(),
        )
    };
    world.one_shots().iter().map(pid_and_load).collect()
}

/// The process of the worker that has this task.
fn worker_of(world: &World, tid: &str) -> i64 {
    let worker = world.task(tid)["worker"].clone();
    let list = world.workers();
    list.as_array()
        .unwrap()
        .iter()
        .find(|entry| entry["tid"] == worker)
        .unwrap()["pid"]
        .as_i64()
        .unwrap()
}

fn kill(pid: i64) {
    crate::world::kill(pid as i32, libc::SIGKILL);
}

fn sockets(world: &World) -> usize {
    let files = fs::read_dir(world.path().join(".raddle")).unwrap();
    files
        .filter(|file| {
            file.as_ref()
                .unwrap()
                .file_name()
                .to_string_lossy()
                .ends_with(".sock")
        })
        .count()
}

/// A world whose broker is a Redis server of its own. The server is gone with the world, or before.
pub(crate) fn on_redis() -> (World, RunningCommand) {
    let world = World::new();
    let server = serve_redis(&world);
    let url = format!(
        "redis+unix:{}?namespace=cli",
        world.path().join("redis.sock").display()
    );
    world.file("raddle.toml", format!("queue_url = '{url}'\n"));
    wait_until("it answers", || world.raddle(["status"]).code == 0);
    (world, server)
}

/// Starts the Redis server of a world, on what it has kept.
pub(crate) fn serve_redis(world: &World) -> RunningCommand {
    let server = "exec setpriv --pdeathsig KILL redis-server --port 0 --unixsocket $PWD/redis.sock --dir $PWD \
                  --appendonly yes --save '' >server.log";
    world.start_bash(server)
}

pub(crate) fn end(server: RunningCommand) {
    server.signal(libc::SIGKILL);
    server.finish();
}

#[test]
fn runs_ten_tasks_in_ten_worker_processes() {
    let world = World::new();
    ten_tasks(&world);
    assert_eq!((world.processes(), sockets(&world)), (vec![], 0));
}

#[test]
fn runs_ten_tasks_in_ten_worker_processes_on_redis() {
    let (world, server) = on_redis();
    ten_tasks(&world);
    end(server);
    assert_eq!(world.processes(), []);
}

#[test]
fn one_shot_workers_take_control_commands() {
    let world = World::new();
    one_shots_answer(&world);
    assert_eq!(world.processes(), []);
}

#[test]
fn one_shot_workers_take_control_commands_on_redis() {
    let (world, server) = on_redis();
    one_shots_answer(&world);
    end(server);
    assert_eq!(world.processes(), []);
}

fn one_shots_answer(world: &World) {
    let spawner = spawner(world, &[]);
    wait_until("two are warm", || workers(world).len() == 2);
    let tids = || -> BTreeSet<String> {
        world
            .one_shots()
            .iter()
            .map(|entry| entry["tid"].as_str().unwrap().to_owned())
            .collect()
    };
    let before = tids();
    let idle = before.first().unwrap().clone();
    assert_eq!(
        world.raddle(["task", "ping", &idle]).ok().text(),
        format!("{idle} listening\n")
    );
    let status = world
        .raddle(["task", "status", &idle, "--json"])
        .ok()
        .json();
    assert_eq!(
        (&status["state"], &status["spec"]["target"]["service"]),
        (&"running".into(), &"one-shot".into())
    );
    assert!(
        world
            .raddle(["task", "explain", &idle])
            .ok()
            .text()
            .contains(&idle)
    );
    world.raddle(["task", "stop", &idle]).ok();
    wait_until("another is warm", || {
        tids().len() == 2 && !tids().contains(&idle)
    });
    // One that has a task answers too, and ends after it.
    let task = world.submit(&["--", "sh", "-c", "while ! test -e go; do sleep 0.02; done"]);
    world.wait_for_state(&task, "running");
    let busy = world.task(&task)["worker"].as_str().unwrap().to_owned();
    assert_eq!(
        world.raddle(["task", "ping", &busy]).ok().text(),
        format!("{busy} busy\n")
    );
    assert!(
        world
            .raddle(["task", "explain", &busy])
            .ok()
            .text()
            .contains(&busy)
    );
    world.raddle(["task", "stop", "--timeout", "0", &busy]);
    world.file("go", "");
    world.raddle(["wait", &task]).ok();
    assert_eq!(world.task(&task)["attempt"], 1);
    // Where the registry says that one is asked, it is.
    wait_until("two are warm", || workers(world).len() == 2);
    let queue = world.one_shots()[0]["queue"].as_str().unwrap().to_owned();
    let asked = world
        .raddle([
            "queue",
            "write",
            &queue,
            r#"{"spec": {"target": {"command": ["true"]}}}"#,
        ])
        .ok();
    world.raddle(["wait", asked.text().trim()]).ok();
    spawner.stop().ok();
}

fn ten_tasks(world: &World) {
    let spawner = spawner(world, &[]);
    wait_until("two are warm", || workers(world).len() == 2);
    let tids = world.submit(&["--array", "1-10", "--", "sh", "-c", "echo $PPID >> parents"]);
    world.raddle(["wait"].into_iter().chain(tids.lines())).ok();
    let parents: BTreeSet<String> = world.lines("parents").into_iter().collect();
    let had_task: BTreeSet<String> = tids
        .lines()
        .map(|tid| world.task(tid)["worker"].to_string())
        .collect();
    assert_eq!(
        (parents.len(), had_task.len()),
        (10, 10),
        "each task had a worker and a runner of its own"
    );
    wait_until("they are gone, and two are warm again", || {
        workers(world).len() == 2
    });
    assert_eq!(
        world.raddle(["status", "--json"]).ok().json()["ready"],
        serde_json::json!({})
    );
    let tid = spawner.stdout().trim().to_owned();
    assert!(
        world
            .processes()
            .iter()
            .any(|(_, title)| title.contains(&format!("raddle-{}:spawner:listening", &tid[9..])))
    );
    assert_eq!(
        world.raddle(["task", "ping", &tid]).ok().text(),
        format!("{tid} listening\n")
    );
    spawner.stop().ok().stderr_contains("launched 12 workers");
}

#[test]
fn completes_a_task_whose_worker_is_killed() {
    killed_in_the_middle(&World::new());
}

#[test]
fn completes_a_task_whose_worker_is_killed_on_redis() {
    let (world, server) = on_redis();
    killed_in_the_middle(&world);
    end(server);
}

fn killed_in_the_middle(world: &World) {
    let spawner = spawner(world, &[]);
    // Its children must not outlive its worker.
    let script = "echo $RADDLE_ATTEMPT >> begun; test $RADDLE_ATTEMPT != 1 || { (sleep 600) & echo $! > grandchild; \
                  wait; }";
    let tid = world.submit(&["--", "sh", "-c", script]);
    wait_until("it runs", || world.lines("grandchild").len() == 1);
    let grandchild: i64 = world.lines("grandchild")[0].parse().unwrap();
    let killed_at = Instant::now();
    kill(worker_of(world, &tid));
    world.raddle(["wait", &tid]).ok();
    assert!(
        killed_at.elapsed() < Duration::from_secs(5),
        "{:?}",
        killed_at.elapsed()
    );
    assert_eq!(world.lines("begun"), ["1", "2"]);
    wait_until("nothing of it is left", || {
        !world
            .processes()
            .iter()
            .any(|(left, _)| i64::from(*left) == grandchild)
    });
    wait_until("it was told", || {
        spawner.stderr().contains("was killed by signal 9")
    });
    world
        .raddle(["worker", "stop", spawner.stdout().trim()])
        .ok();
    spawner.finish().ok();
}

#[test]
fn the_next_spawner_adopts_workers_of_a_killed_one() {
    let world = World::new();
    killed_spawner(&world);
    assert_eq!(
        sockets(&world),
        0,
        "the next has removed what the first had left"
    );
}

#[test]
fn the_next_spawner_adopts_workers_of_a_killed_one_on_redis() {
    let (world, server) = on_redis();
    killed_spawner(&world);
    end(server);
}

fn killed_spawner(world: &World) {
    let first = spawner(world, &[]);
    let tids = world.submit(&["--array", "1-100", "--", "sh", "-c", "echo {} >> ran"]);
    // One that runs when its spawner is killed, and continues until a file appears.
    let long = world.submit(&[
        "--priority",
        "9",
        "--",
        "sh",
        "-c",
        "echo before; while ! test -e go; do sleep 0.02; done; echo after; echo long >> ran",
    ]);
    world.wait_for_state(&long, "running");
    wait_until("it is in the middle of them", || {
        world.lines("ran").len() > 20
    });
    first.signal(libc::SIGKILL);
    assert_eq!(first.finish().code, 128 + libc::SIGKILL);
    wait_until(
        "those that were idle have drained the queue by one each",
        || workers(world).iter().all(|(_, load)| *load > 0.0),
    );
    assert_eq!(
        world.task(&long)["state"],
        "running",
        "it goes on without its spawner"
    );
    let next = spawner(world, &[]);
    world.raddle(["wait"].into_iter().chain(tids.lines())).ok();
    world.file("go", "");
    world.raddle(["wait", &long]).ok();
    let ran = world.lines("ran");
    let mut once: Vec<&String> = ran.iter().collect();
    once.sort();
    once.dedup();
    assert_eq!((ran.len(), once.len()), (101, 101), "each ran once");
    assert_eq!(world.task(&long)["attempt"], 1);
    // Output of the moment of the kill may be there twice, as documented: stored, and
    // its worker not told of it.
    let logs = world.raddle(["logs", &long]).ok();
    let mut said = logs.lines();
    said.dedup();
    assert_eq!(said, ["before", "after"]);
    next.stop().ok();
}

#[test]
fn counts_idle_workers_of_a_killed_spawner() {
    let world = World::new();
    let first = spawner(&world, &[]);
    wait_until("two are warm", || workers(&world).len() == 2);
    let warm = workers(&world);
    first.signal(libc::SIGKILL);
    first.finish();
    let next = spawner(&world, &["--poll-ms", "50"]);
    let tid = next.stdout().trim().to_owned();
    world.raddle(["task", "ping", &tid]).ok();
    assert_eq!(workers(&world), warm, "they have gone on");
    // They are told to leave with it, although it is not their parent.
    next.stop().ok().stderr_contains("launched 0 workers");
    wait_until("they have left", || workers(&world).is_empty());
}

#[test]
fn backs_off_and_reports_workers_that_cannot_start() {
    let world = World::new();
    fs::create_dir(world.path().join("handlers")).unwrap();
    let spawner = spawner(&world, &["--handlers", "handlers"]);
    wait_until("two are warm", || workers(&world).len() == 2);
    // From here on every new worker refuses to start.
    world.file("handlers/bad.handler.toml", "name = 3");
    world.submit(&["--array", "1-2", "--", "true"]);
    wait_until("it has said so more than once", || {
        spawner
            .stderr()
            .matches("die before they are ready")
            .count()
            >= 2
    });
    let said = spawner.stderr();
    assert!(
        said.contains("the next launch is in 0.5 s") && said.contains("the next launch is in 1 s"),
        "{said}"
    );
    assert!(
        said.contains("bad.handler.toml"),
        "the worker's output is there too: {said}"
    );
    fs::remove_file(world.path().join("handlers/bad.handler.toml")).unwrap();
    wait_until("they start again", || workers(&world).len() == 2);
    spawner.stop().ok();
}

#[test]
fn backs_off_for_workers_that_die_when_they_are_ready() {
    let world = World::new();
    let spawner = spawner(&world, &[]);
    let mut killed = BTreeSet::new();
    wait_until("it has said so more than once", || {
        for (pid, _) in workers(&world) {
            if killed.insert(pid) {
                kill(pid);
            }
        }
        spawner
            .stderr()
            .matches("die as soon as they are ready")
            .count()
            >= 2
    });
    let said = spawner.stderr();
    assert!(
        said.contains("was killed by signal 9): the next launch is in 0.5 s"),
        "{said}"
    );
    assert!(killed.len() <= 12, "{} were launched: {said}", killed.len());
    let status = || {
        let list = world.workers();
        let list = list.as_array().unwrap();
        list.iter()
            .find(|worker| worker["type"] == "spawner")
            .unwrap()["status"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    wait_until("others see it", || status() == "backing_off");
    // One that does its task shows that it is over.
    let tid = world.submit(&["--", "true"]);
    world.raddle(["wait", &tid]).ok();
    wait_until("they start again", || status() == "active");
    spawner.stop().ok();
}

#[test]
fn honours_worker_variables_and_limits_the_number_of_workers() {
    let world = World::new();
    let script = "WORKER_IDLE_EXIT=1h WORKER_MAX_UPTIME=2 exec raddle spawner run --warm-pool 1 --max-parallel 2 --json \
                  --metrics-addr 127.0.0.1:0";
    let spawner = world.start_bash(script);
    wait_until("one is warm", || workers(&world).len() == 1);
    let first = workers(&world)[0].0;
    wait_until("it has left when it was old enough", || {
        workers(&world).iter().all(|(pid, _)| *pid != first)
    });
    let tids = world.submit(&[
        "--array",
        "1-5",
        "--",
        "sh",
        "-c",
        "echo >>ran; while ! test -e go; do sleep 0.02; done",
    ]);
    wait_until("two run", || world.lines("ran").len() == 2);
    let url = crate::metrics::said(&spawner)["metrics"]
        .as_str()
        .unwrap()
        .to_owned();
    wait_until("the others wait, and it has looked since", || {
        let metrics = crate::metrics::scrape(&url);
        metrics.get("raddle_spawner_pending") == Some(3.0)
            && metrics.get("warm_spawner_live_workers") == Some(2.0)
    });
    assert_eq!((workers(&world).len(), world.lines("ran").len()), (2, 2));
    assert!(
        crate::metrics::scrape(&url)
            .get("worker_exit_reason{reason=\"timeout\"}")
            .unwrap()
            >= 1.0
    );
    world.file("go", "");
    world.raddle(["wait"].into_iter().chain(tids.lines())).ok();
    spawner.stop().ok();
    world
        .bash("WORKER_IDLE_EXIT=0 raddle spawner run")
        .code(2)
        .stderr_contains("spawner.idle_timeout");
    world
        .bash("WORKER_MAX_UPTIME=0 raddle spawner run")
        .code(2)
        .stderr_contains("spawner.max_uptime");
}

#[test]
fn the_file_names_handlers_and_plugins() {
    let world = World::new();
    let directory = world.path().join("there");
    fs::create_dir_all(directory.join("handlers")).unwrap();
    for name in ["Upper", "Lower"] {
        let text =
            format!("name = '{name}'\nprovides = ['cpu']\ncommand = ['echo', '{{\"ok\":true}}']\n");
        fs::write(
            directory.join(format!("handlers/{name}.handler.toml")),
            text,
        )
        .unwrap();
    }
    let text = "[spawner]\ncaps = ['cpu']\nwarm_pool = 1\nmax_workers = 2\nhandlers = 'handlers'\nplugins = ['Upper']\n";
    fs::write(directory.join("spawner.toml"), text).unwrap();
    let spawner = world.start(["spawner", "run", "--config", "there/spawner.toml"]);
    wait_until("one is warm", || workers(&world).len() == 1);
    let caps = world.one_shots()[0]["capabilities"].to_string();
    assert!(
        caps.contains("@handler:Upper") && !caps.contains("@handler:Lower"),
        "{caps}"
    );
    spawner.stop().ok();
    fs::write(
        directory.join("spawner.toml"),
        text.replace("Upper", "Other"),
    )
    .unwrap();
    world
        .raddle(["spawner", "run", "--config", "there/spawner.toml"])
        .code(2)
        .stderr_contains("there is no handler 'Other'");
}

#[test]
fn waits_for_a_server_that_is_missing_or_away() {
    let world = World::new();
    let url = format!(
        "redis+unix:{}?namespace=cli",
        world.path().join("redis.sock").display()
    );
    world.file("raddle.toml", format!("queue_url = '{url}'\n"));
    let serve = || {
        let server = "exec setpriv --pdeathsig KILL redis-server --port 0 --unixsocket $PWD/redis.sock --dir $PWD \
                      --appendonly yes --save '' >server.log";
        let server = world.start_bash(server);
        wait_until("it answers", || world.raddle(["status"]).code == 0);
        server
    };
    let waiting = "waiting for the broker, which is away";
    let spawner = world.start(["spawner", "run", "--warm-pool", "1"]);
    let worker = world.start(["worker", "start", "--no-detach", "--queues", "other"]);
    world.file(
        "groups.toml",
        "[process.p]\n[[process.p.worker]]\nslug = 'w'\ncommand = ['true']\n",
    );
    let groups = world.start(["up", "-f", "groups.toml", "--queue-url", &url]);
    for waits in [&spawner, &worker, &groups] {
        wait_until("it says that it waits", || waits.stderr().contains(waiting));
    }
    // A command says so at once, and so does one that starts a worker in the background.
    world
        .raddle(["status"])
        .code(125)
        .stderr_contains("cannot reach");
    world
        .raddle(["worker", "start"])
        .code(125)
        .stderr_contains("cannot reach");
    // One that waits can be told to stop.
    let stopped = world.start(["worker", "start", "--no-detach"]);
    wait_until("it says that it waits", || {
        stopped.stderr().contains(waiting)
    });
    stopped.stop().ok();
    let server = serve();
    wait_until("they are there", || {
        world.workers().as_array().unwrap().len() == 5
    });
    for waits in [&spawner, &worker, &groups] {
        assert_eq!(
            waits.stderr().matches(waiting).count(),
            1,
            "{}",
            waits.stderr()
        );
    }
    let tids = world.submit(&[
        "--queue",
        "other",
        "--array",
        "1-2",
        "--",
        "sh",
        "-c",
        "echo >>ran; sleep 0.2",
    ]);
    end(server);
    wait_until("both say that it is away", || {
        [&spawner, &worker]
            .iter()
            .all(|waits| waits.stderr().matches(waiting).count() == 2)
    });
    let server = serve();
    world.raddle(["wait"].into_iter().chain(tids.lines())).ok();
    let tid = world.submit(&["--", "true"]);
    world.raddle(["wait", &tid]).ok();
    spawner.stop().ok();
    worker.stop().ok();
    groups.stop().ok();
    end(server);
    fs::remove_file(world.path().join("raddle.toml")).unwrap();
}

#[test]
fn waits_for_a_server_that_loads_its_data() {
    let world = World::new();
    let loading = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = loading.local_addr().unwrap().port();
    let url = format!("redis://127.0.0.1:{port}?namespace=cli&max=100ms");
    let worker = world.start(["worker", "start", "--no-detach", "--queue-url", &url]);
    // A server that answers every command as Redis does until its data is read.
    loading.set_nonblocking(true).unwrap();
    let mut clients = Vec::new();
    wait_until("it says that it waits, and why", || {
        while let Ok((client, _)) = loading.accept() {
            client.set_nonblocking(true).unwrap();
            clients.push(client);
        }
        for client in &mut clients {
            let mut words = [0; 4096];
            let read = client.read(&mut words).unwrap_or(0);
            for _ in words[..read].iter().filter(|byte| **byte == b'*') {
                let _ = client.write_all(b"-LOADING Redis is loading the dataset in memory\r\n");
            }
        }
        let said = worker.stderr();
        said.contains("waiting for the broker, which is away") && said.contains("LOADING")
    });
    drop((loading, clients));
    let server = format!(
        "exec setpriv --pdeathsig KILL redis-server --bind 127.0.0.1 --port {port} --dir $PWD --appendonly yes --save '' >server.log"
    );
    let server = world.start_bash(&server);
    worker.tid();
    world
        .raddle(["--queue-url", &url, "run", "--", "true"])
        .ok();
    worker.stop().ok();
    end(server);
}

#[test]
fn operators_see_time_task_and_host_of_a_worker_in_redis() {
    let (world, server) = on_redis();
    let worker = world.worker(&["--concurrency", "1"]);
    let show = || {
        let shown = world
            .bash(&format!(
                "redis-cli -s redis.sock HGETALL 'raddle:{{cli}}:worker:{worker}'"
            ))
            .ok();
        let lines: Vec<String> = shown.text().lines().map(str::to_owned).collect();
        lines
            .chunks_exact(2)
            .map(|pair| (pair[0].clone(), pair[1].clone()))
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    assert_eq!(
        (
            show()["host"].as_str(),
            show()["task"].as_str(),
            show()["busy"].as_str()
        ),
        (&*host, "", "0")
    );
    let tid = world.submit(&["--", "sh", "-c", "while ! test -e go; do sleep 0.02; done"]);
    wait_until("its task is shown", || show()["task"] == tid);
    let then = show()["time"].clone();
    assert!(then.starts_with("20") && then.ends_with('Z'), "{then}");
    wait_until("it is refreshed", || show()["time"] != then);
    // One that has expired is whole again with the next heartbeat.
    world
        .bash(&format!(
            "redis-cli -s redis.sock DEL 'raddle:{{cli}}:worker:{worker}'"
        ))
        .ok();
    wait_until("it is back", || {
        show().get("host").is_some_and(|shown| *shown == host)
    });
    world.file("go", "");
    world.raddle(["wait", &tid]).ok();
    wait_until("its task is gone", || show()["task"].is_empty());
    world.raddle(["worker", "stop", "--all"]).ok();
    end(server);
    fs::remove_file(world.path().join("raddle.toml")).unwrap();
}

#[test]
fn idle_workers_exit_and_are_launched_again() {
    let world = World::new();
    let spawner = spawner(&world, &["--idle-timeout", "0.5", "--poll-ms", "60000"]);
    wait_until("two were warm", || workers(&world).len() == 2);
    wait_until("they have left", || workers(&world).is_empty());
    let begun = Instant::now();
    let tid = world.submit(&["--", "true"]);
    world.raddle(["wait", &tid]).ok();
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "an arrival does not wait for the next poll"
    );
    // Told to pause, it launches none.
    let name = spawner.tid();
    world.raddle(["task", "pause", &name]).ok();
    // By their processes: one that is launched already is no worker before it has registered.
    wait_until("all have left again", || world.processes().len() == 1);
    let tid = world.submit(&["--", "true"]);
    world.raddle(["wait", "--timeout", "1", &tid]).code(124);
    world.raddle(["task", "resume", &name]).ok();
    world.raddle(["wait", &tid]).ok();
    spawner.stop().ok();
}

#[test]
fn stop_waits_for_running_tasks_and_kill_requeues_them() {
    let world = World::new();
    let tid = world.submit(&["--", "sh", "-c", "while ! test -e go; do sleep 0.02; done"]);
    let first = spawner(&world, &[]);
    world.wait_for_state(&tid, "running");
    first.signal(libc::SIGTERM);
    wait_until("the idle ones have left", || workers(&world).len() == 1);
    world.file("go", "");
    first.finish().ok();
    assert_eq!(world.task(&tid)["state"], "completed");

    let tid = world.submit(&["--", "sleep", "600"]);
    let next = spawner(&world, &[]);
    world.wait_for_state(&tid, "running");
    world
        .raddle(["worker", "stop", "--kill", next.stdout().trim()])
        .ok();
    next.finish().ok();
    assert_eq!(
        (&world.task(&tid)["state"], world.processes()),
        (&"created".into(), vec![])
    );
}

#[test]
fn a_terminated_worker_finishes_its_task() {
    let world = World::new();
    let spawner = spawner(&world, &["--poll-ms", "50"]);
    let tid = world.submit(&["--", "sh", "-c", "while ! test -e go; do sleep 0.02; done"]);
    world.wait_for_state(&tid, "running");
    let tell = |pid: i64| world.bash(&format!("kill {pid}")).ok();
    let busy = worker_of(&world, &tid);
    tell(busy);
    // One that has nothing to run leaves at once, and is replaced.
    wait_until("two are warm", || workers(&world).len() == 3);
    let idle = workers(&world)
        .into_iter()
        .find(|(pid, _)| *pid != busy)
        .unwrap()
        .0;
    tell(idle);
    wait_until("it has left", || {
        workers(&world).iter().all(|(pid, _)| *pid != idle)
    });
    world.file("go", "");
    world.raddle(["wait", &tid]).ok();
    assert_eq!(
        (&world.task(&tid)["state"], &world.task(&tid)["attempt"]),
        (&"completed".into(), &1.into())
    );

    // Told a second time, it gives its task back.
    let tid = world.submit(&[
        "--",
        "sh",
        "-c",
        "echo x >> begun; test $RADDLE_ATTEMPT != 1 || sleep 600",
    ]);
    world.wait_for_state(&tid, "running");
    let busy = worker_of(&world, &tid);
    tell(busy);
    wait_until("it drains", || {
        world.workers().to_string().contains("draining")
    });
    tell(busy);
    world.raddle(["wait", &tid]).ok();
    assert_eq!(
        (world.lines("begun").len(), &world.task(&tid)["losses"]),
        (2, &0.into())
    );
    // One-shot workers are tasks, and take words as every worker does.
    let worker = world.workers();
    let worker = worker
        .as_array()
        .unwrap()
        .iter()
        .find(|worker| worker["type"] == "one-shot")
        .unwrap();
    world
        .raddle(["worker", "stop", worker["tid"].as_str().unwrap()])
        .ok();
    world.raddle(["worker", "stop", "--all"]).ok();
    spawner.finish().ok();
}

#[test]
fn explains_that_a_task_waits_for_a_spawner() {
    let world = World::new();
    let spawner = world.start([
        "spawner",
        "run",
        "--warm-pool",
        "0",
        "--max-workers",
        "1",
        "--poll-ms",
        "60000",
    ]);
    spawner.tid();
    world
        .raddle([
            "run",
            "--no-inline",
            "--",
            "sh",
            "-c",
            "ps -o args= -p $PPID",
        ])
        .ok();
    assert_eq!(
        world.raddle(["task", "list", "--json"]).ok().json()[0]["worker"]
            .as_str()
            .map(str::len),
        Some(19)
    );
    let first = world.submit(&["--", "sh", "-c", "while ! test -e go; do sleep 0.02; done"]);
    world.wait_for_state(&first, "running");
    let next = world.submit(&["--", "true"]);
    let explained = || {
        world
            .raddle(["task", "explain", &next])
            .ok()
            .text()
            .to_owned()
    };
    wait_until("the registry knows that the one worker is busy", || {
        explained().contains("is next: a spawner launches a worker for it")
    });
    world.file("go", "");
    world.raddle(["wait", &next]).ok();
    spawner.stop().ok();
}

#[test]
fn checks_its_settings() {
    let world = World::new();
    let run = |flags: &[&str]| world.raddle([&["spawner", "run"], flags].concat()).code(2);
    for (text, said) in [
        (
            "[spawner]\nwarm_poll = 2",
            "at 'spawner.warm_poll': unknown field",
        ),
        ("[spawner]\nwarm_pool = 'x'", "at 'spawner.warm_pool'"),
        (
            "[spawner]\nwarm_pool = 9\nmax_workers = 2",
            "raise max_parallel, or lower this",
        ),
        (
            "[spawner]\ncaps = ['gp/u']",
            "at 'spawner.caps': 'gp/u' is not a capability",
        ),
        ("[spawner]\nqueue_url = 'ftp://x'", "is not a queue URL"),
    ] {
        world.file("bad.toml", text);
        run(&["--config", "bad.toml"]).stderr_contains(said);
    }
    run(&["--config", "absent.toml"]).stderr_contains("absent.toml: No such file");
    run(&["--warm-pool", "9", "--max-workers", "2"]).stderr_contains("spawner.warm_pool");
    run(&["--queue-url", "mem://"]).stderr_contains("exists only in one process");
    let unreachable = "redis://127.0.0.1:1/0?give_up_after=0.2s";
    world
        .raddle(["spawner", "run", "--queue-url", unreachable])
        .code(125)
        .stderr_contains("cannot reach");
    assert_eq!(world.processes(), []);
}

#[test]
fn file_flags_and_environment_set_the_pool() {
    let world = World::new();
    let directory = world.path().join("there");
    fs::create_dir(&directory).unwrap();
    let text = "[spawner]\nqueue_url = 'sqlite:work.db'\ncaps = ['cpu']\nwarm_pool = 1\nmax_workers = 2\nworker_image = 'x'\n";
    fs::write(directory.join("spawner.toml"), text).unwrap();
    let spawner = world.start_bash(
        "WARM_POOL=2 WORKER_CAPS=gpu,cpu exec raddle spawner run --config there/spawner.toml",
    );
    let at =
        |args: &[&str]| world.raddle([&["--queue-url", "sqlite:there/work.db"], args].concat());
    wait_until("two are warm", || {
        directory.join("work.db").exists()
            && at(&["worker", "list", "--json"])
                .ok()
                .json()
                .as_array()
                .unwrap()
                .len()
                == 3
    });
    let list = at(&["worker", "list", "--json"]).ok().json();
    assert!(
        list.as_array()
            .unwrap()
            .iter()
            .all(|worker| worker["capabilities"] == serde_json::json!(["@sandbox", "cpu", "gpu"])),
        "{list}"
    );
    let tid = at(&["submit", "--requires", "gpu", "--", "true"])
        .ok()
        .text()
        .trim()
        .to_owned();
    at(&["wait", &tid]).ok();
    assert!(
        spawner.stderr().contains("worker_image is ignored"),
        "{}",
        spawner.stderr()
    );
    // Tasks that its workers cannot take launch none.
    at(&["submit", "--requires", "tpu", "--", "true"]).ok();
    spawner.stop().ok().stderr_contains("launched 3 workers");
}

#[test]
fn sizes_the_pool_automatically_and_serves_a_broker_in_memory() {
    let world = World::new();
    let flags = [
        "spawner",
        "run",
        "--queue-url",
        "stub://",
        "--serve",
        "work.sock",
        "--warm-pool",
        "auto",
        "--json",
    ];
    let spawner = world.start(flags);
    wait_until("it serves", || spawner.stdout().contains("work.sock"));
    let url = format!("unix:{}", world.path().join("work.sock").display());
    let ran = world
        .raddle([
            "--queue-url",
            &url,
            "submit",
            "--array",
            "1-20",
            "--",
            "sh",
            "-c",
            "echo {} >> ran",
        ])
        .ok();
    world
        .raddle(["--queue-url", &url, "wait"].into_iter().chain(ran.lines()))
        .ok();
    assert_eq!(world.lines("ran").len(), 20);
    spawner.stop().ok();
}
