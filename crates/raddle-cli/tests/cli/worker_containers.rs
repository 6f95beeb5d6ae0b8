//! `raddle spawner` with workers in containers of the real Docker engine.
//!
//! The image is built once for all of these tests, from the program that they test, and stays there
//! under one name: each test is a process of its own, and none knows whether it is the last. The
//! next build of the program replaces it.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::MetadataExt,
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    metrics::scrape,
    world::{RunningCommand, World, skip, wait_until},
};

/// The names of test images, and the directory in which they were built: another checkout on
/// this machine has its own.
fn repository() -> String {
    let mut directory = DefaultHasher::new();
    env!("CARGO_TARGET_TMPDIR").hash(&mut directory);
    format!("raddle-test-{:08x}", directory.finish() as u32)
}

/// The tasks that run there.
const COMMANDS: [&str; 3] = ["sh", "sleep", "cat"];

pub(crate) fn docker(args: &[&str]) -> Output {
    Command::new("docker").args(args).output().unwrap()
}

/// Returns the output of Docker's own command.
#[track_caller]
pub(crate) fn said(args: &[&str]) -> String {
    let output = docker(args);
    assert!(
        output.status.success(),
        "docker {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Whether there is an engine. In continuous integration there is.
fn has_engine() -> bool {
    let found = Command::new("docker")
        .args(["version", "--format", "{{.Server.Version}}"])
        .output();
    let is_there = found.is_ok_and(|output| output.status.success());
    if !is_there {
        skip("Docker engine");
    }
    is_there
}

/// The image of the program that is tested, or `None` without an engine.
pub(crate) fn image() -> Option<String> {
    if !has_engine() {
        return None;
    }
    let found = Path::new(env!("CARGO_BIN_EXE_raddle")).metadata().unwrap();
    let repository = repository();
    let tag = format!(
        "{repository}:{:x}-{:x}-{:x}",
        found.ino(),
        found.mtime(),
        found.mtime_nsec()
    );
    // Others may be about to build the same: they wait here, and find it.
    let lock = File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("image.lock")).unwrap();
    lock.lock().unwrap();
    if !docker(&["image", "inspect", &tag]).status.success() {
        build(&tag, &COMMANDS);
        for old in said(&[
            "images",
            "--format",
            "{{.Repository}}:{{.Tag}}",
            &repository,
        ])
        .lines()
        {
            if old != tag {
                docker(&["rmi", old]);
            }
        }
    }
    Some(tag)
}

/// The same with these commands in it, and under a name of its own. It is for who asks to remove
/// it.
pub(crate) fn image_with(commands: &[&str], name: &str) -> Option<String> {
    if !has_engine() {
        return None;
    }
    let tag = format!("{}-{name}:{}", repository(), std::process::id());
    build(&tag, commands);
    Some(tag)
}

fn build(tag: &str, commands: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/docker/build.sh");
    let built = Command::new(script)
        .arg(env!("CARGO_BIN_EXE_raddle"))
        .arg(tag)
        .args(commands)
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
}

/// A world, and a spawner's flags for containers in it.
struct Yard {
    world: World,
    image: String,
    /// The spawners there were.
    spawners: RefCell<Vec<String>>,
}

impl Yard {
    fn new() -> Option<Self> {
        let image = image()?;
        Some(Self {
            world: World::new(),
            image,
            spawners: RefCell::default(),
        })
    }

    fn spawner(&self, flags: &[&str]) -> RunningCommand {
        let base = [
            "spawner",
            "run",
            "--launcher",
            "docker",
            "--worker-image",
            &self.image,
            "--poll-ms",
            "200",
        ];
        let spawner = self.world.start([&base[..], flags].concat());
        wait_until("it has said its id", || {
            spawner.stdout().trim().len() == 19 || spawner.stderr().contains("raddle:")
        });
        assert_eq!(spawner.stdout().trim().len(), 19, "{}", spawner.stderr());
        self.spawners
            .borrow_mut()
            .push(spawner.stdout().trim().to_owned());
        spawner
    }

    /// As the flags say, and no others. Its standard output has its id, as text or in JSON.
    fn other_spawner(&self, flags: &[&str]) -> RunningCommand {
        let spawner = self.world.start([&["spawner", "run"], flags].concat());
        wait_until("it has said its id", || spawner.stdout().ends_with('\n'));
        let said = spawner.stdout();
        let tid = serde_json::from_str::<Value>(&said).unwrap();
        let tid = tid["tid"]
            .as_str()
            .map_or_else(|| said.trim().to_owned(), str::to_owned);
        self.spawners.borrow_mut().push(tid);
        spawner
    }

    /// The one-shot workers that are registered: host and load.
    fn workers(&self) -> Vec<(String, f64)> {
        let host_and_load = |worker: &Value| {
            (
                worker["host"].as_str().unwrap().to_owned(),
                worker["load"].as_f64().unwrap(),
            )
        };
        self.world.one_shots().iter().map(host_and_load).collect()
    }

    fn warm(&self, count: usize) -> Vec<String> {
        wait_until("they are warm", || self.workers().len() == count);
        self.workers().into_iter().map(|(host, _)| host).collect()
    }

    /// Submits tasks that containers can run.
    fn submit(&self, count: u32, script: &str) -> Vec<String> {
        let array = format!("1-{count}");
        let tids = self
            .world
            .submit(&["--cwd", "/tmp", "--array", &array, "--", "sh", "-c", script]);
        tids.lines().map(str::to_owned).collect()
    }

    fn wait(&self, tids: &[String]) {
        let args = ["wait", "--timeout", "50"]
            .into_iter()
            .chain(tids.iter().map(String::as_str));
        self.world.raddle(args).ok();
    }

    /// The containers of this world, running or not.
    fn containers(&self) -> Vec<String> {
        let mut names = Vec::new();
        for spawner in self.spawners.borrow().iter() {
            let label = format!("label=raddle.spawner={spawner}");
            let found = said(&["ps", "--all", "--filter", &label, "--format", "{{.Names}}"]);
            names.extend(found.lines().map(str::to_owned));
        }
        names
    }

    /// The spawner has left, and with it everything.
    fn assert_clean(&self) {
        // The engine removes them in its own time.
        wait_until("all containers are gone", || self.containers().is_empty());
        let left = std::fs::read_dir(self.world.path().join(".raddle")).unwrap();
        let left: Vec<String> = left
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(!left.iter().any(|name| name.contains("agent")), "{left:?}");
        assert_eq!(self.world.processes(), []);
    }
}

/// Whatever a test left when it failed.
impl Drop for Yard {
    fn drop(&mut self) {
        for name in self.containers() {
            docker(&["rm", "--force", &name]);
        }
    }
}

pub(crate) fn inspect(name: &str) -> Value {
    serde_json::from_str::<Value>(&said(&["inspect", name])).unwrap()[0].take()
}

#[test]
fn runs_each_task_in_its_own_container_and_removes_it() {
    let Some(yard) = Yard::new() else { return };
    let spawner = yard.spawner(&["--warm-pool", "2", "--max-workers", "4", "--caps", "cpu"]);
    let warm = yard.warm(2);
    let found = inspect(&warm[0]);
    let (config, host) = (&found["Config"], &found["HostConfig"]);
    assert_eq!(
        config["User"],
        if uid() == 0 {
            "65532:65532".to_owned()
        } else {
            format!("{0}:{0}", uid())
        }
    );
    assert_eq!(config["Labels"]["raddle.caps"], "cpu");
    assert_eq!(config["Labels"]["raddle.spawner"], spawner.stdout().trim());
    assert_eq!(host["CapDrop"], serde_json::json!(["ALL"]));
    assert_eq!(
        (&host["ReadonlyRootfs"], &host["AutoRemove"]),
        (&true.into(), &true.into())
    );
    assert_eq!(
        (&host["NetworkMode"], &host["PidsLimit"]),
        (&"none".into(), &256.into())
    );
    assert_eq!(host["Memory"], 1u64 << 30);
    let env: Vec<&str> = config["Env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line.as_str().unwrap())
        .collect();
    for line in [
        "QUEUE_URL=unix:/run/raddle/agent.sock",
        "WORKER_CAPS=cpu",
        "WORKER_CONCURRENCY=1",
        "WORKER_ONCE=true",
        "WORKER_IDLE_EXIT=600",
    ] {
        assert!(env.contains(&line), "{line} is not in {env:?}");
    }
    // The environment inside of the container.
    let script = "cat /proc/self/status | while read l; do case $l in CapEff*|NoNew*|Seccomp:*) echo $l;; esac; done; \
                  echo x > /x || echo readonly; echo x > /tmp/x && cat /tmp/x; cat /proc/net/dev | while read n r; do \
                  case $n in *:) echo $n;; esac; done";
    let tid = yard.world.submit(&[
        "--cwd",
        "/tmp",
        "--requires",
        "cpu",
        "--",
        "sh",
        "-c",
        script,
    ]);
    yard.wait(std::slice::from_ref(&tid));
    let logs = yard.world.raddle(["logs", &tid]).ok().text().to_owned();
    assert_eq!(
        logs,
        "CapEff: 0000000000000000\nNoNewPrivs: 1\nSeccomp: 2\nreadonly\nx\nlo:\n"
    );

    let tids = yard.submit(5, "echo $HOSTNAME; cat /proc/sys/kernel/hostname");
    yard.wait(&tids);
    let hosts: BTreeSet<String> = tids
        .iter()
        .map(|tid| {
            yard.world
                .raddle(["logs", tid])
                .ok()
                .text()
                .trim()
                .to_owned()
        })
        .collect();
    assert_eq!(hosts.len(), 5, "each had a container of its own: {hosts:?}");
    // Its lease is renewed from there, through the socket.
    let long = yard.submit(1, "sleep 5");
    yard.wait(&long);
    assert_eq!(yard.world.task(&long[0])["attempt"], 1);
    wait_until("they are gone, and two are warm again", || {
        let now = yard.containers();
        now.len() == 2 && now.iter().all(|name| !hosts.contains(name))
    });
    spawner.stop().ok();
    yard.assert_clean();
}

/// A task can write where its worker does.
#[test]
fn a_task_cannot_forge_or_flood_the_log_of_its_worker() {
    let Some(yard) = Yard::new() else { return };
    let spawner = yard.spawner(&["--warm-pool", "1", "--max-workers", "2"]);
    let host = yard.warm(1).remove(0);
    let script = "printf '\\033[2Jforged\\n' > /proc/1/fd/2; line=$(printf '%0500d' 0); i=0; \
                  while [ $i -lt 5000 ]; do echo $line; echo $line >&2; i=$((i+1)); done > /proc/1/fd/1 2> /proc/1/fd/2";
    let tids = yard.submit(1, script);
    yard.wait(&tids);
    wait_until("it logs that there is more", || {
        spawner.stderr().contains("the rest is dropped")
    });
    let log = spawner.stderr();
    assert!(
        log.contains(&format!("{host}: \\u{{1b}}[2Jforged")),
        "{}",
        &log[..log.len().min(2000)]
    );
    assert!(!log.contains('\u{1b}') && !log.lines().any(|line| line.starts_with("00")));
    assert!(log.len() < 3 << 19, "{} bytes", log.len());
    yard.wait(&yard.submit(2, "true"));
    spawner.stop().ok();
    yard.assert_clean();
}

/// A task has what its worker has, and so the socket.
#[test]
fn a_task_in_a_container_cannot_submit() {
    let Some(yard) = Yard::new() else { return };
    let spawner = yard.spawner(&["--warm-pool", "1", "--max-workers", "2"]);
    yard.warm(1);
    let script = "for c in 'submit --cwd /tmp -- true' 'task list' 'worker list' 'queue list'; do \
                  QUEUE_URL=unix:/run/raddle/agent.sock /usr/local/bin/raddle $c 2>&1; echo $?; done";
    let tids = yard.submit(1, script);
    yard.wait(&tids);
    let logs = yard.world.raddle(["logs", &tids[0]]).ok().text().to_owned();
    assert_eq!(
        logs.matches("it serves only what workers in containers need")
            .count(),
        4,
        "{logs}"
    );
    assert!(!logs.lines().any(|line| line == "0"), "{logs}");
    let tasks = yard.world.raddle(["task", "list", "--json"]).ok().json();
    assert_eq!(tasks.as_array().unwrap().len(), 1, "{tasks}");
    spawner.stop().ok();
    yard.assert_clean();
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn the_next_spawner_adopts_the_containers_of_a_killed_one() {
    let Some(yard) = Yard::new() else { return };
    // The one directory of this world that containers see, and a word for them in it.
    let seen = yard.world.path().join("seen");
    std::fs::create_dir(&seen).unwrap();
    let flags = [
        "--warm-pool",
        "0",
        "--max-workers",
        "20",
        "--handlers",
        "seen",
    ];
    let first = yard.spawner(&flags);
    let script = format!(
        "echo $RADDLE_ATTEMPT; while ! test -e {}/go; do sleep 0.2; done",
        seen.display()
    );
    let tids = yard.submit(20, &script);
    wait_until("twenty run", || {
        yard.workers()
            .iter()
            .filter(|(_, load)| *load > 0.0)
            .count()
            == 20
    });
    let before: BTreeSet<String> = yard.containers().into_iter().collect();
    assert_eq!(before.len(), 20);
    first.signal(libc::SIGKILL);
    first.finish();
    let next = yard.spawner(&[&flags[..], &["--verbose"]].concat());
    // One that was not served again within its lease has ended its task, and left. No other has.
    wait_until("it has taken charge of all that are left", || {
        let taken = next.stderr();
        let is_taken = |name: &String| {
            taken.contains(&format!(
                "adopted a worker of another spawner worker={name}"
            ))
        };
        yard.containers()
            .iter()
            .all(|name| !before.contains(name) || is_taken(name))
    });
    assert!(
        next.stderr().contains("adopted a worker"),
        "{}",
        next.stderr()
    );
    assert!(
        yard.containers().len() <= 20,
        "none is launched beyond the ceiling"
    );
    yard.world.file("seen/go", "");
    yard.wait(&tids);
    for tid in &tids {
        let task = yard.world.task(tid);
        assert_eq!(task["state"], "completed");
        // One whose lease ran out before the next spawner served it was ended, and then run again
        // by another.
        let attempts: Vec<u64> = (1..=task["attempt"].as_u64().unwrap()).collect();
        let begun = yard.world.raddle(["logs", tid]).ok().text().to_owned();
        let begun: Vec<u64> = begun
            .lines()
            .map(|line| line.trim().parse().unwrap())
            .collect();
        assert!(
            begun.is_sorted() && begun.iter().all(|attempt| attempts.contains(attempt)),
            "{begun:?}"
        );
    }
    next.stop().ok();
    yard.assert_clean();
}

#[test]
fn removes_unstarted_containers_of_a_killed_spawner() {
    let Some(yard) = Yard::new() else { return };
    let first = yard.spawner(&["--warm-pool", "1"]);
    let warm = yard.warm(1);
    let class = inspect(&warm[0])["Config"]["Labels"]["raddle.class"]
        .as_str()
        .unwrap()
        .to_owned();
    let first_tid = first.stdout().trim().to_owned();
    first.signal(libc::SIGKILL);
    first.finish();
    let (label, left_by) = (
        format!("raddle.class={class}"),
        format!("raddle.spawner={first_tid}"),
    );
    let make = |how: &[&str], number: &str| {
        let name = format!("raddle-{class}-{number}");
        let what = [
            "--label",
            &label,
            "--label",
            &left_by,
            "--name",
            &name,
            "--entrypoint",
            "sleep",
            &yard.image,
            "600",
        ];
        said(&[how, &what].concat());
        name
    };
    let (never_started, no_worker) = (
        make(&["create"], "000000aa"),
        make(&["run", "--detach"], "000000bb"),
    );
    // It has the label, but not the name: it belongs to another program.
    let foreign = format!("foreign-{class}");
    said(&[
        "create",
        "--label",
        &label,
        "--name",
        &foreign,
        "--entrypoint",
        "sleep",
        &yard.image,
        "600",
    ]);
    let next = yard.spawner(&["--warm-pool", "1"]);
    wait_until("containers that never began are gone", || {
        !yard.containers().contains(&never_started)
    });
    wait_until("the one that is no worker is gone, too", || {
        !yard.containers().contains(&no_worker)
    });
    assert!(
        next.stderr()
            .contains("that another spawner has left and that is not registered"),
        "{}",
        next.stderr()
    );
    assert_eq!(
        yard.containers(),
        warm,
        "the one that is a worker has stayed, and is enough"
    );
    said(&["rm", &foreign]);
    next.stop().ok();
    yard.assert_clean();
}

#[test]
fn retries_a_task_whose_container_is_killed() {
    let Some(yard) = Yard::new() else { return };
    let spawner = yard.spawner(&["--warm-pool", "1", "--max-workers", "2"]);
    let tids = yard.submit(
        1,
        "cat /proc/sys/kernel/hostname; test $RADDLE_ATTEMPT != 1 || sleep 600",
    );
    let host = || {
        yard.world
            .raddle(["logs", &tids[0]])
            .ok()
            .text()
            .trim()
            .to_owned()
    };
    wait_until("it runs", || {
        yard.world.task(&tids[0])["state"] == "running" && !host().is_empty()
    });
    said(&["kill", &host()]);
    yard.wait(&tids);
    let task = yard.world.task(&tids[0]);
    assert_eq!(
        (&task["state"], &task["attempt"]),
        (&"completed".into(), &2.into())
    );
    wait_until("it was told", || {
        spawner.stderr().contains("was killed by signal 9")
    });
    spawner.stop().ok();
    yard.assert_clean();
}

#[test]
fn reports_a_container_that_runs_out_of_memory() {
    let Some(yard) = Yard::new() else { return };
    let text = format!(
        "[spawner]\nlauncher = 'docker'\nworker_image = '{}'\nwarm_pool = 1\nmax_workers = 1\npoll_ms = 200\n\
         [spawner.container]\nmemory_mb = 64\ntmp_mb = 512\n",
        yard.image
    );
    yard.world.file("spawner.toml", text);
    let spawner = yard.other_spawner(&[
        "--config",
        "spawner.toml",
        "--metrics-addr",
        "127.0.0.1:0",
        "--json",
    ]);
    // Files in /tmp are memory that no process can be killed for: it is the largest that goes,
    // until all are gone.
    let script = "test $RADDLE_ATTEMPT != 1 || while :; do cat /dev/zero > /tmp/big; done";
    let tids = yard.submit(1, script);
    wait_until("it was told", || {
        spawner.stderr().contains("ran out of memory")
    });
    yard.wait(&tids);
    let url =
        serde_json::from_str::<Value>(spawner.stdout().lines().next().unwrap()).unwrap()["metrics"]
            .take();
    let page = yard.world.bash(&format!(
        "exec 3<>/dev/tcp/{}; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3",
        url.as_str()
            .unwrap()
            .trim_start_matches("http://")
            .trim_end_matches("/metrics")
            .replace(':', "/")
    ));
    let page = page.ok().text().to_owned();
    assert!(
        page.contains("worker_exit_reason{reason=\"out_of_memory\"} 1"),
        "{page}"
    );
    spawner.stop().ok();
    yard.assert_clean();
}

/// The kernel ends the largest process first: the task, and not its worker.
#[test]
fn reports_a_task_that_exhausts_the_memory_of_its_container() {
    let Some(yard) = Yard::new() else { return };
    let text = format!(
        "[spawner]\nlauncher = 'docker'\nworker_image = '{}'\nwarm_pool = 1\nmax_workers = 1\npoll_ms = 200\n\
         [spawner.container]\nmemory_mb = 96\n",
        yard.image
    );
    yard.world.file("spawner.toml", text);
    let spawner = yard.other_spawner(&["--config", "spawner.toml", "--json"]);
    // A shell that keeps what it reads.
    let tids = yard.submit(1, "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done");
    yard.world
        .raddle(["wait", "--timeout", "50", &tids[0]])
        .code(1);
    let task = yard.world.task(&tids[0]);
    assert_eq!(task["report"]["exit"]["kind"], "out_of_memory", "{task}");
    spawner.stop().ok();
    yard.assert_clean();
}

/// A sandbox has namespaces of its own, and nothing of what its worker sees: not the socket to the
/// broker either.
#[test]
fn a_task_has_a_sandbox_inside_the_container_of_its_worker() {
    let Some(yard) = Yard::new() else { return };
    let spawner = yard.spawner(&[
        "--warm-pool",
        "1",
        "--max-workers",
        "1",
        "--min-isolation",
        "sandbox",
    ]);
    let host = yard.warm(1).remove(0);
    let found = inspect(&host);
    assert_eq!(found["HostConfig"]["MaskedPaths"], serde_json::json!([]));
    assert_eq!(
        (
            &found["HostConfig"]["Privileged"],
            &found["HostConfig"]["CapAdd"]
        ),
        (&false.into(), &Value::Null)
    );
    let script = "test -e /run/raddle/agent.sock && echo socket || echo none; echo pid $$; test -d /proc/1 && cat /proc/1/comm; \
                  cat /proc/self/status | while read l; do case $l in CapEff*|NoNew*|Seccomp:*) echo $l;; esac; done";
    let tid = yard.submit(1, script);
    yard.wait(&tid);
    let logs = yard.world.raddle(["logs", &tid[0]]).ok().text().to_owned();
    assert!(
        logs.starts_with("none\npid 2\n") || logs.starts_with("none\npid 1\n"),
        "processes of its own: {logs}"
    );
    assert!(
        logs.ends_with("CapEff: 0000000000000000\nNoNewPrivs: 1\nSeccomp: 2\n"),
        "{logs}"
    );
    spawner.stop().ok();
    yard.assert_clean();
}

/// As the examples of the seed start it.
#[test]
fn the_image_runs_a_worker_or_a_spawner_by_default() {
    let Some(yard) = Yard::new() else { return };
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let server = yard.world.start_bash(&format!(
        "exec setpriv --pdeathsig KILL redis-server --port {port} --bind 127.0.0.1 --dir $PWD --appendonly yes --save '' >server.log"
    ));
    let url = format!("redis://127.0.0.1:{port}?namespace=image");
    yard.world
        .file("raddle.toml", format!("queue_url = '{url}'\n"));
    wait_until("it answers", || yard.world.raddle(["status"]).code == 0);
    let container = Container(format!("raddle-test-image-{}", std::process::id()));
    let variable = format!("QUEUE_URL={url}");
    let run = |flags: &[&str], words: &[&str]| {
        let base = [
            "run",
            "--detach",
            "--name",
            &container.0,
            "--network",
            "host",
            "-e",
            &variable,
        ];
        said(&[&base[..], flags, &[&yard.image], words].concat());
    };
    let left = || {
        wait_until("it has left", || {
            inspect(&container.0)["State"]["Running"] == false
        });
        let code = inspect(&container.0)["State"]["ExitCode"].as_i64().unwrap();
        said(&["rm", &container.0]);
        code
    };
    // One task, then exit: unset, and with a concurrency of 1; also with a command, in the
    // foreground.
    for (flags, words) in [
        (&[][..], &[][..]),
        (&["-e", "WORKER_CONCURRENCY=1"], &[]),
        (
            &["-e", "WORKER_CAPS=cpu, llm", "-e", "WORKER_CONCURRENCY="],
            &["worker", "start"],
        ),
        (&["--init"], &["worker", "start"]),
    ] {
        let tids = yard.submit(2, "true");
        run(flags, words);
        assert_eq!(left(), 0, "{flags:?}");
        let states = [0, 1].map(|n| {
            yard.world.task(&tids[n])["state"]
                .as_str()
                .unwrap()
                .to_owned()
        });
        assert_eq!(states, ["completed", "created"], "{flags:?}");
        yard.world
            .raddle(["worker", "start", "--no-detach", "--idle-exit", "0"])
            .ok();
    }
    // More at a time is a worker that stays.
    run(&["-e", "WORKER_CONCURRENCY=2"], &[]);
    wait_until("it is there", || {
        yard.world.workers()[0]["concurrency"] == 2
    });
    yard.wait(&yard.submit(3, "true"));
    assert_eq!(yard.world.workers()[0]["type"], "resident");
    said(&["stop", "--time", "50", &container.0]);
    assert_eq!(left(), 0);
    // The manifest of the seed.
    run(&["-e", "WORKER_CAPS=cpu,docker", "-e", "WARM_POOL=2"], &[]);
    wait_until("two are warm", || yard.world.one_shots().len() == 2);
    yard.wait(&yard.submit(3, "true"));
    said(&["stop", "--time", "50", &container.0]);
    assert_eq!(left(), 0);
    let no_broker = docker(&["run", "--rm", &yard.image]);
    assert_eq!(no_broker.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&no_broker.stderr).contains("set QUEUE_URL"));
    server.signal(libc::SIGKILL);
    server.finish();
    std::fs::remove_file(yard.world.path().join("raddle.toml")).unwrap();
}

/// Gone with the test.
struct Container(String);

impl Drop for Container {
    fn drop(&mut self) {
        docker(&["rm", "--force", &self.0]);
    }
}

#[test]
fn names_a_missing_or_empty_image_and_backs_off() {
    let Some(yard) = Yard::new() else { return };
    let absent = format!("raddle-absent:{}", std::process::id());
    let flags = [
        "--launcher",
        "docker",
        "--warm-pool",
        "1",
        "--poll-ms",
        "50",
        "--worker-image",
    ];
    let spawner = yard.other_spawner(&[&flags[..], &[&absent]].concat());
    let reason = format!("the image '{absent}' is not on this machine");
    wait_until("it is named", || spawner.stderr().contains(&reason));
    let begun = Instant::now();
    wait_until("it was tried again", || {
        spawner.stderr().matches(&reason).count() >= 3
    });
    assert!(
        begun.elapsed() > Duration::from_secs(1),
        "after 0.5 s, and 1 s after that"
    );
    assert!(
        spawner.stderr().contains("cargo xtask image"),
        "{}",
        spawner.stderr()
    );
    let tids = yard.submit(1, "echo here");
    said(&["tag", &yard.image, &absent]);
    yard.wait(&tids);
    spawner.stop().ok();
    said(&["rmi", &absent]);

    // An image with nothing in it that could be run.
    let empty = format!("raddle-empty:{}", std::process::id());
    yard.world.file("nothing", "");
    let change = "ENTRYPOINT [\"/usr/local/bin/raddle\"]";
    yard.world
        .bash(&format!(
            "tar c nothing | docker import --change '{change}' - {empty} >id"
        ))
        .ok();
    let spawner = yard.other_spawner(&[&flags[..], &[&empty]].concat());
    wait_until("it is named", || {
        spawner
            .stderr()
            .contains(&format!("the image '{empty}' does not have this program"))
    });
    wait_until("nothing is left of what could not be started", || {
        yard.containers().is_empty()
    });
    spawner.stop().ok().stderr_contains("launched 0 workers");
    said(&["rmi", &empty]);
    yard.assert_clean();
}

#[test]
fn containers_reach_a_broker_through_a_named_network() {
    let Some(yard) = Yard::new() else { return };
    let name = format!("raddle-test-{}", std::process::id());
    let url = "redis://:geheim@127.0.0.1:1/0";
    let flags = ["--launcher", "docker", "--worker-image", &yard.image];
    let refused = yard
        .world
        .raddle([&["spawner", "run"], &flags[..], &["--queue-url", url]].concat())
        .code(2);
    refused.stderr_contains("at 'spawner.container.networks'");

    said(&["network", "create", "--internal", &name]);
    let _network = Network(name.clone());
    let gateway = said(&[
        "network",
        "inspect",
        "--format",
        "{{(index .IPAM.Config 0).Gateway}}",
        &name,
    ]);
    let server = yard.world.start_bash(&format!(
        "exec setpriv --pdeathsig KILL redis-server --port 7391 --bind {gateway} --requirepass geheim --dir $PWD \
         --appendonly yes --save '' >server.log"
    ));
    let url = format!("redis://:geheim@{gateway}:7391/0?namespace=net");
    yard.world
        .file("raddle.toml", format!("queue_url = '{url}'\n"));
    wait_until("it answers", || yard.world.raddle(["status"]).code == 0);
    let table = format!("[spawner]\n[spawner.container]\nnetworks = ['{name}']\n");
    yard.world.file("net.toml", table);
    let watched = ["--json", "--metrics-addr", "127.0.0.1:0"];
    let spawner = yard.other_spawner(
        &[
            &flags[..],
            &["--config", "net.toml", "--warm-pool", "1"],
            &watched,
        ]
        .concat(),
    );
    let metrics_url = crate::metrics::said(&spawner)["metrics"]
        .as_str()
        .unwrap()
        .to_owned();
    let warm = yard.warm(1);
    let found = inspect(&warm[0]);
    let secrets = |value: &Value| value.to_string().contains("geheim");
    assert!(
        secrets(&found["Config"]["Env"]),
        "it knows how to get there"
    );
    for public in [
        &found["Config"]["Labels"],
        &found["Args"],
        &found["Name"],
        &found["Config"]["Cmd"],
    ] {
        assert!(!secrets(public), "{public}");
    }
    let tids = yard.submit(3, "echo here");
    yard.wait(&tids);
    // A task has neither the variable nor a way to read it from its worker, which is process 1 and
    // the same user.
    let looks = "echo =${QUEUE_URL:-none}=; cat /proc/1/environ || echo denied; cat /proc/1/mem || echo denied; exit 0";
    let tid = yard.submit(1, looks);
    yard.wait(&tid);
    let seen = yard.world.raddle(["logs", &tid[0]]).ok();
    assert!(
        seen.text().contains("=none=") && seen.text().matches("denied").count() >= 2,
        "{}",
        seen.text()
    );
    assert!(!seen.text().contains("geheim"), "{}", seen.text());
    wait_until(
        "tasks of workers that reach the server themselves are counted",
        || {
            let metrics = scrape(&metrics_url);
            metrics.get("worker_task_total{status=\"completed\"}") == Some(4.0)
                && metrics.get("worker_runtime_seconds_count") == Some(4.0)
                && metrics
                    .get("raddle_warm_hit_ratio")
                    .is_some_and(|ratio| ratio > 0.0)
        },
    );
    let ended = spawner.stop().ok();
    assert!(!ended.stderr.contains("geheim"), "{}", ended.stderr);
    server.signal(libc::SIGKILL);
    server.finish();
    wait_until("all containers are gone", || yard.containers().is_empty());
}

/// Removed with the test, together with its contents.
struct Network(String);

impl Drop for Network {
    fn drop(&mut self) {
        let inside = docker(&[
            "network",
            "inspect",
            "--format",
            "{{range $id, $_ := .Containers}}{{$id}} {{end}}",
            &self.0,
        ]);
        for id in String::from_utf8_lossy(&inside.stdout).split_whitespace() {
            docker(&["rm", "--force", id]);
        }
        docker(&["network", "rm", &self.0]);
    }
}
