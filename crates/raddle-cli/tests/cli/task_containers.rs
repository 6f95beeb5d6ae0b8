//! Tasks in containers of the real Docker engine: isolation `docker`.

mod engine_proxy;

use std::{
    borrow::Cow,
    cell::RefCell,
    collections::BTreeSet,
    io::{Read, Write},
    process::{Command, Stdio},
};

use raddle_model::{Tid, frame};
use raddle_runner::{ExecRequest, ToRunner, container::VERSION};
use serde_json::Value;

use self::engine_proxy::EngineProxy;
use crate::{
    worker_containers::{docker, image, inspect, said},
    world::{CommandOutput, RunningCommand, World, wait_until},
};

/// The label of all of its containers.
const SUPERVISOR_LABEL: &str = "raddle.supervisor";
/// Says so, and stays until it is killed, unless it is run again.
const STAYS: &str = "echo on; test $RADDLE_ATTEMPT != 1 || sleep 600";

/// A world with workers that run tasks in containers.
struct Bay {
    world: World,
    image: String,
    /// The tasks there were.
    tids: RefCell<BTreeSet<String>>,
}

impl Bay {
    fn new() -> Option<Self> {
        let image = image()?;
        Some(Self {
            world: World::new(),
            image,
            tids: RefCell::default(),
        })
    }

    /// And a worker.
    fn with_worker() -> Option<Self> {
        let bay = Self::new()?;
        bay.worker(&[]);
        Some(bay)
    }

    fn worker(&self, flags: &[&str]) -> String {
        self.world
            .worker(&[&["--task-image", &self.image], flags].concat())
    }

    /// A worker that reaches the engine through a proxy.
    fn worker_behind(&self, proxy: &EngineProxy) {
        self.world
            .bash(&format!(
                "DOCKER_HOST={} raddle worker start --task-image {}",
                proxy.host(),
                self.image
            ))
            .ok();
    }

    /// The process of the one worker there is.
    fn worker_pid(&self) -> i32 {
        let list = self.world.workers();
        list[0]["pid"].as_i64().unwrap() as i32
    }

    /// Runs a script in a container, and waits for its end.
    fn run(&self, flags: &[&str], script: &str) -> CommandOutput {
        self.world.raddle(
            [
                &["run", "--isolation", "docker"],
                flags,
                &["--", "sh", "-c", script],
            ]
            .concat(),
        )
    }

    fn submit(&self, script: &str) -> String {
        let tid = self
            .world
            .submit(&["--isolation", "docker", "--", "sh", "-c", script]);
        self.tids.borrow_mut().insert(tid.clone());
        tid
    }

    /// Submits, and waits until the script has said something.
    fn begun(&self, script: &str) -> String {
        let tid = self.submit(script);
        wait_until("it has begun", || !self.logs(&tid).is_empty());
        tid
    }

    fn logs(&self, tid: &str) -> String {
        self.world.raddle(["logs", tid]).ok().text().to_owned()
    }

    fn wait(&self, tid: &str) -> Value {
        self.world.raddle(["wait", "--timeout", "50", tid]);
        self.world.task(tid)
    }

    /// The containers of a task, running or not.
    fn containers(&self, tid: &str) -> Vec<String> {
        let label = format!("label=raddle.task={tid}");
        said(&["ps", "--all", "--filter", &label, "--format", "{{.Names}}"])
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// The process with this part in the title of a task.
    fn process(&self, tid: &str, part: &str) -> i32 {
        let title = format!("raddle-{}:sh:{part}", &tid[tid.len() - 10..]);
        let found = || {
            self.world
                .processes()
                .into_iter()
                .find(|(_, title_of)| title_of.starts_with(&title))
        };
        wait_until(&title, || found().is_some());
        found().unwrap().0
    }

    fn gone(&self, tid: &str) {
        wait_until("its container is gone", || self.containers(tid).is_empty());
    }

    /// All is over, and nothing is left.
    fn assert_clean(&self) {
        self.world
            .raddle(["worker", "stop", "--all", "--quiet"])
            .ok();
        wait_until("its processes are gone", || {
            self.world.processes().is_empty()
        });
        for tid in self.tids.borrow().iter() {
            assert_eq!(self.containers(tid), [""; 0]);
        }
    }
}

/// Whatever a test left when it failed.
impl Drop for Bay {
    fn drop(&mut self) {
        for name in self
            .tids
            .borrow()
            .iter()
            .flat_map(|tid| self.containers(tid))
        {
            docker(&["rm", "--force", &name]);
        }
    }
}

fn kill(pid: i32) {
    crate::world::kill(pid, libc::SIGKILL);
}

#[test]
fn a_command_runs_in_a_container_without_privileges() {
    let Some(bay) = Bay::new() else { return };
    let start = format!(
        "SECRET=worker raddle worker start --task-image {}",
        bay.image
    );
    bay.world.bash(&start).ok();
    let ran = bay
        .run(
            &["--env", "TOLD=task"],
            "echo out; echo err >&2; pwd; export; exit 3",
        )
        .code(3);
    assert_eq!(ran.stderr, "err\n");
    let lines = ran.lines();
    assert_eq!(lines[..2], ["out", "/tmp"]);
    let has = |name: &str| lines.iter().any(|line| line.contains(name));
    assert!(
        has("TOLD='task'") && has("RADDLE_ATTEMPT='1'") && has("HOME='/tmp'"),
        "{lines:?}"
    );
    assert!(
        !has("SECRET") && !has("WORLD") && !has("QUEUE_URL"),
        "{lines:?}"
    );

    let script = "cat /proc/self/status | while read l; do case $l in Uid*|Cap*|NoNew*|Seccomp:*) echo $l;; esac; done; \
                  echo x > /x || echo readonly; ls 2>&- /tmp; echo x > /tmp/x && cat /tmp/x; cat /proc/net/dev | while read n r; do \
                  case $n in *:) echo $n;; esac; done; cat /proc/1/environ || echo closed";
    for _ in 0..2 {
        let ran = bay.run(&[], script).ok();
        let expected = "Uid: 65532 65532 65532 65532\nCapInh: 0000000000000000\nCapPrm: 0000000000000000\n\
                        CapEff: 0000000000000000\nCapBnd: 0000000000000000\nCapAmb: 0000000000000000\nNoNewPrivs: 1\nSeccomp: 2\n\
                        readonly\nx\nlo:\nclosed\n";
        assert_eq!(ran.text(), expected, "{}", ran.stderr);
    }
    assert_eq!(
        bay.run(&[], "cat /tmp/x").code,
        1,
        "nothing is left of the one before"
    );
    assert_eq!(bay.run(&[], "kill -9 $$").code, 137);
    bay.world
        .raddle(["run", "--isolation", "docker", "--", "no-such"])
        .code(127)
        .stderr_contains("command not found: no-such");
    bay.assert_clean();
}

#[test]
fn arguments_and_environment_are_not_in_the_container_settings() {
    let Some(bay) = Bay::with_worker() else {
        return;
    };
    let script = "echo on; sleep 600";
    let flags = [
        "--isolation",
        "docker",
        "--memory",
        "64",
        "--max-procs",
        "20",
        "--cpu",
        "50",
        "--env",
        "KEY=hidden",
    ];
    let tid = bay
        .world
        .submit(&[&flags[..], &["--", "sh", "-c", script, "hidden"]].concat());
    bay.tids.borrow_mut().insert(tid.clone());
    wait_until("it has begun", || !bay.logs(&tid).is_empty());
    let found = inspect(&bay.containers(&tid)[0]);
    let host = &found["HostConfig"];
    assert!(!found.to_string().contains("hidden"), "{found}");
    assert_eq!(
        (&host["Memory"], &host["PidsLimit"]),
        (&(64u64 << 20).into(), &21.into())
    );
    assert_eq!(
        (&host["NanoCpus"], &host["NetworkMode"]),
        (&500_000_000.into(), &"none".into())
    );
    assert_eq!(
        (&host["ReadonlyRootfs"], &host["AutoRemove"]),
        (&true.into(), &true.into())
    );
    assert_eq!(found["Config"]["Labels"]["raddle.task"], tid.as_str());
    let supervisor = bay.process(&tid, "contained");
    let seen = std::fs::read(format!("/proc/{supervisor}/cmdline")).unwrap();
    let env = std::fs::read(format!("/proc/{supervisor}/environ")).unwrap();
    assert!(!String::from_utf8_lossy(&[seen, env].concat()).contains("hidden"));
    bay.world.raddle(["task", "stop", &tid]).ok();
    assert_eq!(bay.wait(&tid)["state"], "cancelled");
    assert_eq!(bay.containers(&tid), [""; 0]);
    bay.assert_clean();
}

#[test]
fn passes_input_of_any_length_and_ignores_unread_input() {
    let Some(bay) = Bay::with_worker() else {
        return;
    };
    let input = "0123456789abcde\n".repeat(200_000);
    let args = |script| {
        [
            "run",
            "--isolation",
            "docker",
            "--stdin",
            "--",
            "sh",
            "-c",
            script,
        ]
    };
    let ran = bay
        .world
        .raddle_with_input(&args("cat"), input.as_bytes())
        .ok();
    assert!(
        ran.text() == input,
        "{} of {}",
        ran.stdout.len(),
        input.len()
    );
    bay.world
        .raddle_with_input(&args("exec 0<&-; echo done"), input.as_bytes())
        .ok();
    // The loss of the supervisor is noticed, although unread input blocks the pipe.
    bay.world.file("input", &input);
    let submit = format!("raddle submit --isolation docker --stdin -- sh -c '{STAYS}' < input");
    let tid = bay.world.bash(&submit).ok().text().trim().to_owned();
    bay.tids.borrow_mut().insert(tid.clone());
    wait_until("it has begun", || !bay.logs(&tid).is_empty());
    kill(bay.process(&tid, "contained"));
    assert_eq!(bay.wait(&tid)["state"], "completed");
    bay.assert_clean();
}

#[test]
fn names_the_limit_that_ended_a_command() {
    let Some(bay) = Bay::with_worker() else {
        return;
    };
    let grow = "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done";
    bay.run(&["--memory", "32"], grow)
        .code(137)
        .stderr_contains("used more memory than allowed");
    bay.run(&["--memory", "32"], "cat /dev/zero > /tmp/x")
        .code(137)
        .stderr_contains("used more memory than allowed");
    bay.run(&[], "cat /dev/zero > /tmp/x")
        .code(1)
        .stderr_contains("No space left on device");
    let many = "i=0; while [ $i -lt 30 ]; do sleep 600 & i=$((i+1)); done; wait";
    bay.run(&["--max-procs", "10"], many)
        .code(137)
        .stderr_contains("ran into max_procs");
    assert_eq!(bay.run(&["--max-fds", "9"], "ulimit -n").text(), "9\n");
    bay.assert_clean();
}

#[test]
fn a_stop_ends_the_command_and_removes_its_container() {
    let Some(bay) = Bay::with_worker() else {
        return;
    };
    let end = |script: &str, how: &[&str], state: &str| {
        let tid = bay.begun(script);
        bay.world
            .raddle(how.iter().copied().chain([tid.as_str()]))
            .ok();
        let task = bay.wait(&tid);
        assert_eq!(task["state"], state);
        assert_eq!(bay.containers(&tid), [""; 0], "{how:?}");
        tid
    };
    let polite = end(
        "trap 'echo bye; exit 0' TERM; echo on; sleep 600 & wait",
        &["task", "stop"],
        "cancelled",
    );
    assert_eq!(bay.logs(&polite), "on\nbye\n");
    let deaf = "trap '' TERM; echo on; while :; do sleep 1; done";
    end(deaf, &["task", "kill"], "killed");
    let tid = bay.world.submit(&[
        "--isolation",
        "docker",
        "--timeout",
        "1",
        "--",
        "sh",
        "-c",
        deaf,
    ]);
    assert_eq!(bay.wait(&tid)["state"], "timeout");
    assert_eq!(bay.containers(&tid), [""; 0]);
    bay.assert_clean();
}

#[test]
fn a_pause_freezes_the_processes_in_the_container() {
    let Some(bay) = Bay::with_worker() else {
        return;
    };
    let tid = bay.begun("i=0; while [ $i -lt 20 ]; do echo $i; sleep 0.1; i=$((i+1)); done");
    bay.world.raddle(["task", "pause", &tid]).ok();
    let mut lines = bay.logs(&tid).lines().count();
    wait_until("it stands still", || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        lines == std::mem::replace(&mut lines, bay.logs(&tid).lines().count())
    });
    assert!(lines < 20, "{lines}");
    bay.world.raddle(["task", "resume", &tid]).ok();
    assert_eq!(bay.wait(&tid)["state"], "completed");
    assert_eq!(bay.logs(&tid).lines().count(), 20);
    // No process is left that could wake it.
    let tid = bay.begun(STAYS);
    bay.world.raddle(["task", "pause", &tid]).ok();
    kill(bay.process(&tid, "contained"));
    bay.gone(&tid);
    bay.world.raddle(["task", "kill", &tid]);
    bay.wait(&tid);
    bay.assert_clean();
}

#[test]
fn removes_the_container_and_retries_when_any_process_is_killed() {
    let Some(bay) = Bay::with_worker() else {
        return;
    };
    // The supervisor, and the container itself.
    let tid = bay.begun(STAYS);
    kill(bay.process(&tid, "contained"));
    let task = bay.wait(&tid);
    assert_eq!(
        (&task["state"], &task["attempt"]),
        (&"completed".into(), &2.into())
    );
    let tid = bay.begun(STAYS);
    said(&["kill", &bay.containers(&tid)[0]]);
    let task = bay.wait(&tid);
    assert_eq!(
        (&task["state"], &task["attempt"]),
        (&"completed".into(), &2.into())
    );
    // The runner: as without a container, that is how a task is killed by hand.
    let tid = bay.begun(STAYS);
    kill(bay.process(&tid, "running"));
    assert_eq!(bay.wait(&tid)["state"], "killed");
    assert_eq!(bay.containers(&tid), [""; 0]);
    // The worker.
    let tid = bay.begun(STAYS);
    kill(bay.worker_pid());
    bay.gone(&tid);
    bay.worker(&[]);
    let task = bay.wait(&tid);
    assert_eq!(
        (&task["state"], &task["attempt"]),
        (&"completed".into(), &2.into())
    );
    // All at once.
    let tid = bay.begun(STAYS);
    let all = [
        bay.worker_pid(),
        bay.process(&tid, "running"),
        bay.process(&tid, "contained"),
    ];
    all.into_iter().for_each(kill);
    bay.gone(&tid);
    bay.worker(&[]);
    assert_eq!(bay.wait(&tid)["state"], "completed");
    bay.assert_clean();
}

#[test]
fn the_next_worker_removes_containers_that_never_started() {
    let Some(bay) = Bay::new() else { return };
    let label = format!("{SUPERVISOR_LABEL}=another-boot/x 1 1");
    let make = |name: &str| {
        let name = format!("{name}-{}", std::process::id());
        said(&[
            "create",
            "--label",
            &label,
            "--name",
            &name,
            "--entrypoint",
            "sleep",
            &bay.image,
            "600",
        ]);
        name
    };
    let (left, foreign) = (make("raddle-left"), make("foreign-left"));
    let is_there = |name: &str| docker(&["inspect", name]).status.success();
    bay.worker(&[]);
    wait_until("it is removed", || !is_there(&left));
    assert!(is_there(&foreign), "labels can be put on anything");
    said(&["rm", &foreign]);
    bay.assert_clean();
}

#[test]
fn removes_an_unstarted_container_when_its_supervisor_is_killed() {
    let Some(bay) = Bay::new() else { return };
    let proxy = EngineProxy::new(&bay.world.path().join("proxy.sock"));
    proxy.drop_starts();
    bay.worker_behind(&proxy);
    let made = |attempt: u32, tid: &str| {
        let name = format!("raddle-{tid}-{attempt}");
        // One that is being made is listed before it can be looked at.
        wait_until("it is made", || {
            docker(&["inspect", "--format", "{{.State.Status}}", &name]).stdout == b"created\n"
        });
    };
    // By the worker, which has seen that.
    let tid = bay.submit("echo here");
    made(1, &tid);
    kill(bay.process(&tid, "contained"));
    wait_until("it is removed", || {
        !bay.containers(&tid).contains(&format!("raddle-{tid}-1"))
    });
    // By the next one, when no other has seen it.
    made(2, &tid);
    let all = [
        bay.worker_pid(),
        bay.process(&tid, "running"),
        bay.process(&tid, "contained"),
    ];
    all.into_iter().for_each(kill);
    wait_until("they are gone", || bay.world.processes().is_empty());
    bay.worker(&[]);
    let task = bay.wait(&tid);
    assert_eq!(
        (&task["state"], &task["attempt"]),
        (&"completed".into(), &3.into())
    );
    bay.gone(&tid);
    bay.assert_clean();
}

#[test]
fn losing_the_engine_costs_the_running_task_an_attempt() {
    let Some(bay) = Bay::new() else { return };
    let proxy = EngineProxy::new(&bay.world.path().join("proxy.sock"));
    bay.worker_behind(&proxy);
    let tid = bay.begun(STAYS);
    proxy.shut();
    // No process holds it any more.
    bay.gone(&tid);
    assert_eq!(
        bay.world.task(&tid)["attempt"],
        1,
        "its end is not known yet"
    );
    proxy.open();
    let task = bay.wait(&tid);
    assert_eq!(
        (&task["state"], &task["attempt"]),
        (&"completed".into(), &2.into())
    );
    bay.assert_clean();
}

/// Tells process 1 to run `sleep`, in a container with these flags, and returns what it says.
fn told_to_begin(image: &str, flags: &[&str]) -> String {
    let request = ExecRequest::command(
        Tid::from_u64(1_700_000_000_000_000_000).unwrap(),
        "sleep",
        ["sleep"],
    );
    let version = frame::encode(&ToRunner::Version(VERSION));
    let frames = [
        version,
        frame::encode(&ToRunner::Start(Cow::Owned(request))),
    ]
    .concat();
    let program = format!("{}:/.raddle:ro", env!("CARGO_BIN_EXE_raddle"));
    let usual = [
        "run",
        "--interactive",
        "--rm",
        "--network",
        "none",
        "--volume",
        &program,
        "--entrypoint",
        "/.raddle",
    ];
    let mut docker = Command::new("docker")
        .args(usual)
        .args(flags)
        .args([image, "__init"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Open until it has answered: its end would be that of process 1.
    let mut stdin = docker.stdin.take().unwrap();
    stdin.write_all(&frames).unwrap();
    let mut said = Vec::new();
    docker
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut said)
        .unwrap();
    drop(stdin);
    docker.wait().unwrap();
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn refuses_to_run_in_a_container_that_lacks_an_isolation_layer() {
    let Some(image) = image() else { return };
    let (user, root) = (["--user", "65532:65532"], ["--user", "0:0"]);
    let (privileges, unfiltered) = (
        ["--security-opt", "no-new-privileges"],
        ["--security-opt", "seccomp=unconfined"],
    );
    let capabilities = ["--cap-drop", "ALL"];
    // With all layers it gets as far as looking for the program.
    let nowhere = ["--env", "PATH=/nowhere"];
    for (flags, reason) in [
        (&[user, privileges, capabilities][..], "command not found"),
        (&[user, privileges], "without the loss of all capabilities"),
        (&[user, capabilities], "without no-new-privileges"),
        (
            &[root, privileges, capabilities],
            "without a user that is not root",
        ),
        (
            &[user, privileges, capabilities, unfiltered],
            "without a seccomp filter",
        ),
    ] {
        let said = told_to_begin(&image, &[flags.concat(), nowhere.to_vec()].concat());
        assert!(said.contains(reason), "{flags:?}: {said:?}");
    }
}

#[test]
fn names_a_missing_image_or_engine() {
    let Some(bay) = Bay::new() else { return };
    let absent = format!("raddle-absent:{}", std::process::id());
    let explained = |tid: &str| {
        bay.world
            .raddle(["task", "explain", tid])
            .ok()
            .text()
            .to_owned()
    };
    let tid = bay.submit("echo here");
    assert!(
        explained(&tid).contains("raddle worker start --task-image IMAGE"),
        "{}",
        explained(&tid)
    );
    bay.world.raddle(["task", "kill", &tid]).ok();
    let flags = ["run", "--isolation", "docker", "--retry", "1", "--", "true"];
    let worker = bay.world.worker(&["--task-image", &absent]);
    let reason = format!("the image '{absent}' for tasks is not on this machine");
    bay.world.raddle(flags).code(125).stderr_contains(&reason);
    let log = bay
        .world
        .path()
        .join(format!(".raddle/worker-{worker}.log"));
    wait_until("the worker has said so before", || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains(&reason))
    });
    bay.world
        .raddle(["worker", "stop", "--all", "--quiet"])
        .ok();

    let none = bay.world.path().join("none.sock");
    let start = format!(
        "DOCKER_HOST=unix://{} raddle worker start --task-image {}",
        none.display(),
        bay.image
    );
    bay.world.bash(&start).ok();
    let tid = bay.submit("echo here");
    wait_until("it was given back", || {
        explained(&tid).contains("there is no Docker engine at")
    });
    let task = bay.world.task(&tid);
    assert_eq!(
        (&task["state"], &task["failures"]),
        (&"created".into(), &0.into()),
        "it is charged nothing"
    );
    // Another worker has one.
    bay.world
        .raddle(["worker", "stop", "--all", "--quiet"])
        .ok();
    bay.worker(&[]);
    assert_eq!(bay.wait(&tid)["state"], "completed");
    bay.assert_clean();
}

#[test]
fn a_worker_can_have_every_task_in_a_container() {
    let Some(bay) = Bay::new() else { return };
    bay.world
        .raddle(["worker", "start", "--min-isolation", "docker"])
        .code(2)
        .stderr_contains("--task-image");
    bay.worker(&["--min-isolation", "docker"]);
    let first = "cat /proc/1/cmdline; pwd";
    let ran = bay
        .world
        .raddle(["run", "--no-inline", "--", "sh", "-c", first])
        .ok();
    let said = ran.text();
    // After the loader and its option, where the program is linked dynamically.
    assert!(said.ends_with("/.raddle\0__init\0/tmp\n"), "{said:?}");
    for (flags, reason) in [
        (
            &["--isolation", "docker", "--network", "host"][..],
            "gives no task its host's network",
        ),
        (
            &["--isolation", "sandbox", "--network", "example.org:443"],
            "use the isolation 'sandbox'",
        ),
    ] {
        bay.world
            .raddle([&["run", "--no-inline"], flags, &["--", "true"]].concat())
            .code(125)
            .stderr_contains(reason);
    }
    bay.assert_clean();
}

#[test]
fn network_host_gives_a_container_the_network_of_the_host() {
    let Some(bay) = Bay::with_worker() else {
        return;
    };
    let here = std::fs::read_to_string("/proc/net/dev")
        .unwrap()
        .lines()
        .count();
    let there = bay
        .run(&["--network", "host"], "cat /proc/net/dev")
        .ok()
        .lines()
        .len();
    assert_eq!(there, here);
    bay.assert_clean();
}

/// Gone with the test.
struct Image(String);

impl Drop for Image {
    fn drop(&mut self) {
        docker(&["rmi", "--force", &self.0]);
    }
}

#[test]
fn volumes_of_an_image_are_in_memory_and_its_entrypoint_is_used() {
    let Some(bay) = Bay::new() else { return };
    let wants = Image(format!("raddle-wants:{}", std::process::id()));
    let id = said(&["create", "--entrypoint", "sleep", &bay.image, "1"]);
    let changes = [
        "--change",
        "VOLUME /data",
        "--change",
        "ENV OF_IMAGE=yes",
        "--change",
        "ENTRYPOINT [\"/wrong\"]",
    ];
    docker(&[&["commit"], &changes[..], &[&id, &wants.0]].concat());
    said(&["rm", &id]);
    bay.world.worker(&["--task-image", &wants.0]);
    let tid = bay.begun("echo x > /data/x; echo $OF_IMAGE; sleep 600");
    let found = inspect(&bay.containers(&tid)[0]);
    let kinds: Vec<&str> = found["Mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["Type"].as_str().unwrap())
        .collect();
    assert!(!kinds.contains(&"volume"), "{kinds:?}");
    assert_eq!(bay.logs(&tid), "yes\n");
    bay.world.raddle(["task", "kill", &tid]).ok();
    bay.wait(&tid);
    bay.assert_clean();
}

#[test]
fn one_shot_workers_inherit_the_task_image_and_survive_their_spawner() {
    let Some(bay) = Bay::new() else { return };
    let text = format!(
        "[spawner]\nwarm_pool = 1\nmax_workers = 2\npoll_ms = 200\ntask_image = '{}'\n",
        bay.image
    );
    bay.world.file("spawner.toml", text);
    let spawner: RunningCommand = bay
        .world
        .start(["spawner", "run", "--config", "spawner.toml"]);
    bay.run(&[], "exit 4").code(4);
    let tid = bay.begun("echo on; sleep 3; echo off");
    spawner.signal(libc::SIGKILL);
    spawner.finish();
    let task = bay.wait(&tid);
    assert_eq!(
        (&task["state"], &task["attempt"]),
        (&"completed".into(), &1.into()),
        "{task}"
    );
    assert_eq!(bay.logs(&tid), "on\noff\n");
    bay.assert_clean();
}
