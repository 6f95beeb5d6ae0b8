//! The Redis engine against the throughput of a client that only moves bytes.

use std::{
    cell::Cell,
    collections::HashMap,
    net::{Ipv4Addr, TcpListener},
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use raddle_broker::{Broker, ClaimRequest, NewTask};
use raddle_broker_connect::connect;
use raddle_model::{CapSet, HumanDuration, TaskSpec, Tid, worker::WorkerInfo};
use redis::{Commands, Connection, streams::StreamReadReply};

use crate::{
    Plan,
    project_dir::ProjectDir,
    queue::{claim_and_finish_all, enqueue, finish, payload, register, request},
    stats::{Requirement, median, micros, print_rounds, rate, ratio},
};

/// The pipeline depth of `redis-benchmark -P 16`.
const DEPTH: usize = 16;
const GROUP: usize = 100;
/// Distinct sets of capabilities.
const SETS: usize = 200;
/// Waits timed in each round.
const WAITS: usize = 300;
/// The least number of commands for `redis-benchmark`: with fewer its start is part of the figure.
const FLOOR_COUNT: usize = 200_000;
/// Delayed tasks timed in each round.
const DELAYED: usize = 100;

pub(crate) fn bench(plan: &Plan) -> Vec<Requirement> {
    let tasks = if plan.quick { 5_000 } else { 50_000 };
    let mut requirements = throughput(plan, tasks);
    requirements.extend(delayed_start(plan));
    requirements.extend(many_waiting(plan));
    requirements.extend(sets(plan));
    requirements
}

fn throughput(plan: &Plan, tasks: usize) -> Vec<Requirement> {
    let (mut xadd, mut bare, mut submitted, mut finished) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        let project = ProjectDir::new();
        let server = Server::start(&project);
        xadd.push(server.pipelined_xadd(tasks.max(FLOOR_COUNT)));
        bare.push(rate(tasks, bare_loop(&mut server.connection(), tasks)));
        let broker = server.broker(&project);
        submitted.push(rate(tasks, submit_at_once(&project, &*broker, tasks)));
        let owner = project.wait(register(&*broker));
        let began = Instant::now();
        project.wait(async {
            tokio::join!(
                claim_and_finish_all(&*broker, owner),
                claim_and_finish_all(&*broker, owner)
            )
        });
        finished.push(rate(tasks, began.elapsed()));
    }
    print_rounds("pipelined XADD (redis-benchmark -P 16)", "/s", &xadd);
    print_rounds(
        "bare XREADGROUP + XACK + XDEL, 16 in a pipeline",
        "/s",
        &bare,
    );
    print_rounds("submit, batches of 100, 8 in flight", "/s", &submitted);
    print_rounds("claim + finish, batches of 100", "/s", &finished);
    vec![
        Requirement::at_least(
            "redis: submit, of pipelined XADD",
            ratio(&submitted, &xadd),
            0.5,
        ),
        Requirement::at_least(
            "redis: claim + finish, of the bare loop",
            ratio(&finished, &bare),
            0.5,
        ),
    ]
}

/// Submits from one process, several batches at a time: `redis-benchmark` has 50 connections with
/// 16 commands in flight on each.
fn submit_at_once(project: &ProjectDir, broker: &dyn Broker, tasks: usize) -> Duration {
    let began = Instant::now();
    let left = Cell::new(tasks / GROUP);
    let submit_batches = async || {
        while left.get() > 0 {
            left.set(left.get() - 1);
            let batch = (0..GROUP)
                .map(|_| NewTask::new(TaskSpec::command(["/bin/true"])))
                .collect();
            broker.submit(batch).await.expect("there is room");
        }
    };
    project.wait(async {
        tokio::join!(
            submit_batches(),
            submit_batches(),
            submit_batches(),
            submit_batches(),
            submit_batches(),
            submit_batches(),
            submit_batches(),
            submit_batches()
        )
    });
    began.elapsed()
}

/// From a submit to the claim of a worker that is waiting.
pub(crate) fn latency(plan: &Plan) -> Vec<Requirement> {
    let project = ProjectDir::new();
    let server = Server::start(&project);
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    let broker = server.broker(&project);
    for _ in 0..plan.rounds {
        bare.push(bare_wake_up(&server));
        ours.push(wake_up(&project, &server.url(), &*broker));
    }
    print_rounds("bare blocked XREADGROUP wake-up, p50", "us", &bare);
    print_rounds("submit to claim, worker waiting, p50", "us", &ours);
    vec![Requirement::at_most(
        "redis: submit to start, of the bare wake-up",
        ratio(&ours, &bare),
        4.0,
    )]
}

/// How late a delayed task starts, with two waiting workers that also get other tasks.
fn delayed_start(plan: &Plan) -> Vec<Requirement> {
    let project = ProjectDir::new();
    let server = Server::start(&project);
    let broker = server.broker(&project);
    let late: Vec<f64> = (0..plan.rounds)
        .map(|_| measure_lateness(&project, &server, &*broker))
        .collect();
    print_rounds("a delayed task starts late, p99", "ms", &late);
    vec![Requirement::at_most(
        "redis: ms that a delayed task starts late, p99",
        median(&late),
        50.0,
    )]
}

fn measure_lateness(project: &ProjectDir, server: &Server, broker: &dyn Broker) -> f64 {
    let (sender, claimed) = mpsc::channel();
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let (url, sender) = (server.url(), sender.clone());
            thread::spawn(move || claim_until_stopped(&url, &sender))
        })
        .collect();
    drop(sender);
    thread::sleep(Duration::from_millis(200));
    let mut due = HashMap::new();
    for n in 0..DELAYED {
        let delay = Duration::from_millis(20 + (n as u64 * 37) % 400);
        let later = TaskSpec {
            delay: Some(HumanDuration(delay)),
            ..TaskSpec::command(["/bin/true"])
        };
        let specs = vec![
            NewTask::new(later),
            NewTask::new(TaskSpec::command(["/bin/true"])),
        ];
        let stored = project.wait(broker.submit(specs)).expect("there is room");
        due.insert(stored[0].tid(), Instant::now() + delay);
        thread::sleep(Duration::from_millis(7));
    }
    let mut late = Vec::new();
    while late.len() < DELAYED {
        let (tid, at) = claimed
            .recv_timeout(Duration::from_secs(10))
            .expect("every task is claimed");
        late.extend(
            due.get(&tid)
                .map(|due: &Instant| at.saturating_duration_since(*due).as_secs_f64() * 1e3),
        );
    }
    for _ in &workers {
        submit(
            project,
            broker,
            vec![TaskSpec {
                name: Some(STOP.into()),
                ..TaskSpec::command(["/bin/true"])
            }],
        );
    }
    workers
        .into_iter()
        .for_each(|worker| worker.join().expect("a worker does not panic"));
    late.sort_by(f64::total_cmp);
    late[DELAYED * 99 / 100 - 1]
}

/// The name of the task that ends a worker.
const STOP: &str = "stop";

fn claim_until_stopped(url: &str, sender: &mpsc::Sender<(Tid, Instant)>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made");
    runtime.block_on(async {
        let broker = connect(&url.parse().expect("a URL"))
            .await
            .expect("the server answers");
        let owner = register(&*broker).await;
        loop {
            let wait = Duration::from_secs(20);
            let claims = broker
                .claim(ClaimRequest {
                    wait,
                    ..request(owner, 1)
                })
                .await
                .expect("the broker answers");
            let now = Instant::now();
            broker
                .complete(claims.iter().map(finish).collect())
                .await
                .expect("they are ours");
            let Some(claim) = claims.first() else {
                panic!("no task arrived in time")
            };
            if claim.spec.name.as_deref() == Some(STOP) {
                break;
            }
            let _ = sender.send((claim.attempt_id.tid, now));
        }
        broker
            .deregister(owner, None)
            .await
            .expect("it was registered");
    });
}

/// The time per task with few and with many others waiting.
fn many_waiting(plan: &Plan) -> Vec<Requirement> {
    let many = if plan.quick { 100_000 } else { 1_000_000 };
    let (project, other) = (ProjectDir::new(), ProjectDir::new());
    let (few_server, many_server) = (Server::start(&project), Server::start(&other));
    let (few_broker, many_broker) = (few_server.broker(&project), many_server.broker(&other));
    enqueue(&project, &*few_broker, 1_000);
    println!(
        "submitting {many} tasks took {:.1} s",
        enqueue(&other, &*many_broker, many).as_secs_f64()
    );
    // The server rewrites its append-only file after some growth. That second process is no cost of
    // a task.
    many_server.wait_for_rewrite();
    let (mut light, mut heavy) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds.max(3) {
        light.push(measure_task(&project, &*few_broker, || {
            TaskSpec::command(["/bin/true"])
        }));
        heavy.push(measure_task(&other, &*many_broker, || {
            TaskSpec::command(["/bin/true"])
        }));
    }
    print_rounds("task in and out, 1,000 waiting", "us", &light);
    print_rounds("task in and out, 1,000,000 waiting", "us", &heavy);
    vec![Requirement::at_most(
        "redis: a task with a million waiting, of one with 1,000",
        ratio(&heavy, &light),
        1.3,
    )]
}

/// The time per task when the tasks have many different needs.
fn sets(plan: &Plan) -> Vec<Requirement> {
    let beds = [ProjectDir::new(), ProjectDir::new()];
    let servers = beds.each_ref().map(Server::start);
    let sizes = [2, SETS];
    let mut next = 0;
    let mut one_of = move |sets: usize| {
        next += 1;
        TaskSpec {
            requires: caps(next % sets),
            ..TaskSpec::command(["/bin/true"])
        }
    };
    let sides: Vec<_> = beds
        .iter()
        .zip(&servers)
        .map(|(project, server)| (project, server.broker(project)))
        .collect();
    // Tasks of all sets are waiting all the time.
    for ((project, broker), sets) in sides.iter().zip(sizes) {
        for _ in 0..10 {
            submit(
                project,
                &**broker,
                (0..SETS).map(|_| one_of(sets)).collect(),
            );
        }
    }
    let mut costs = [const { Vec::new() }; 2];
    for _ in 0..plan.rounds.max(3) {
        for (((project, broker), sets), costs) in sides.iter().zip(sizes).zip(&mut costs) {
            costs.push(measure_task(project, &**broker, || one_of(sets)));
        }
    }
    let [few_broker, many] = &costs;
    print_rounds(
        "task in and out, 2 sets of capabilities, turn about",
        "us",
        few_broker,
    );
    print_rounds(
        "task in and out, 200 sets of capabilities, turn about",
        "us",
        many,
    );
    vec![Requirement::at_most(
        "redis: a task among 200 sets, of one among two",
        ratio(many, few_broker),
        1.3,
    )]
}

fn caps(set: usize) -> CapSet {
    format!("cap{set}").parse().expect("a capability's name")
}

/// The time to submit, claim and finish one task, in groups. The number of waiting tasks stays the
/// same.
fn measure_task(
    project: &ProjectDir,
    broker: &dyn Broker,
    mut spec: impl FnMut() -> TaskSpec,
) -> f64 {
    const TASKS: usize = 5_000;
    let capabilities: CapSet = (0..SETS)
        .map(|set| format!("cap{set}"))
        .collect::<Vec<_>>()
        .join(",")
        .parse()
        .expect("names");
    project.wait(async {
        let info = WorkerInfo {
            capabilities: capabilities.clone(),
            queues: vec!["default".into()],
            concurrency: 1,
            pid: std::process::id(),
            host: "bench".into(),
            ..WorkerInfo::new("bench", "bench")
        };
        let owner = broker
            .register(info, Duration::from_secs(3600))
            .await
            .expect("a worker can register");
        let began = Instant::now();
        for _ in 0..TASKS / GROUP {
            let batch = (0..GROUP).map(|_| NewTask::new(spec())).collect();
            broker.submit(batch).await.expect("there is room");
            let wanted = ClaimRequest {
                caps: capabilities.clone(),
                ..request(owner, GROUP as u32)
            };
            let claims = broker.claim(wanted).await.expect("the broker answers");
            assert_eq!(claims.len(), GROUP);
            broker
                .complete(claims.iter().map(finish).collect())
                .await
                .expect("they are ours");
        }
        let took = micros(began.elapsed()) / TASKS as f64;
        broker
            .deregister(owner, None)
            .await
            .expect("it was registered");
        took
    })
}

fn submit(project: &ProjectDir, broker: &dyn Broker, specs: Vec<TaskSpec>) {
    project
        .wait(broker.submit(specs.into_iter().map(NewTask::new).collect()))
        .expect("there is room");
}

/// A client that only reads, acknowledges and deletes.
fn bare_loop(connection: &mut Connection, tasks: usize) -> Duration {
    let body = payload();
    let () = redis::cmd("DEL")
        .arg("bare")
        .query(connection)
        .expect("the server answers");
    let () = redis::cmd("XGROUP")
        .arg(&["CREATE", "bare", "g", "0", "MKSTREAM"])
        .query(connection)
        .expect("a new group");
    for _ in 0..tasks / GROUP {
        let mut pipe = redis::pipe();
        for _ in 0..GROUP {
            pipe.cmd("XADD")
                .arg("bare")
                .arg("*")
                .arg("d")
                .arg(&body)
                .ignore();
        }
        let () = pipe.query(connection).expect("the server answers");
    }
    let began = Instant::now();
    let mut left = tasks;
    while left > 0 {
        let mut pipe = redis::pipe();
        for _ in 0..DEPTH.min(left) {
            pipe.cmd("XREADGROUP")
                .arg(&["GROUP", "g", "c", "COUNT", "1", "STREAMS", "bare", ">"]);
        }
        let read: Vec<StreamReadReply> = pipe.query(connection).expect("the server answers");
        let mut pipe = redis::pipe();
        for entry in read
            .iter()
            .flat_map(|reply| &reply.keys)
            .flat_map(|key| &key.ids)
        {
            pipe.cmd("XACK")
                .arg("bare")
                .arg("g")
                .arg(&entry.id)
                .ignore();
            pipe.cmd("XDEL").arg("bare").arg(&entry.id).ignore();
            left -= 1;
        }
        let () = pipe.query(connection).expect("the server answers");
    }
    began.elapsed()
}

/// The median time from an XADD to the return of a blocked XREADGROUP.
fn bare_wake_up(server: &Server) -> f64 {
    let mut writer = server.connection();
    let () = redis::cmd("DEL")
        .arg("wake")
        .query(&mut writer)
        .expect("the server answers");
    let () = redis::cmd("XGROUP")
        .arg(&["CREATE", "wake", "g", "0", "MKSTREAM"])
        .query(&mut writer)
        .expect("a new group");
    let mut reader = server.connection();
    let (sender, wakeups) = mpsc::channel();
    let thread = thread::spawn(move || {
        for _ in 0..WAITS {
            let read: StreamReadReply = redis::cmd("XREADGROUP")
                .arg(&[
                    "GROUP", "g", "c", "COUNT", "1", "BLOCK", "10000", "STREAMS", "wake", ">",
                ])
                .query(&mut reader)
                .expect("the server answers");
            let now = Instant::now();
            assert_eq!(read.keys.len(), 1, "it was woken");
            let _ = sender.send(now);
        }
    });
    let body = payload();
    let times: Vec<f64> = (0..WAITS)
        .map(|_| {
            // Until the reader is blocked again.
            thread::sleep(Duration::from_millis(2));
            let began = Instant::now();
            let _: String = writer
                .xadd("wake", "*", &[("d", &body)])
                .expect("the server answers");
            micros(
                wakeups
                    .recv_timeout(Duration::from_secs(10))
                    .expect("it is woken")
                    .saturating_duration_since(began),
            )
        })
        .collect();
    thread.join().expect("the reader does not panic");
    median(&times)
}

pub(crate) fn wake_up(project: &ProjectDir, url: &str, broker: &dyn Broker) -> f64 {
    let url = url.to_owned();
    let (sender, wakeups) = mpsc::channel();
    let thread = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be made");
        runtime.block_on(async {
            let broker = connect(&url.parse().expect("a URL"))
                .await
                .expect("the server answers");
            let owner = register(&*broker).await;
            for _ in 0..WAITS {
                let wait = Duration::from_secs(10);
                let claims = broker
                    .claim(ClaimRequest {
                        wait,
                        ..request(owner, 1)
                    })
                    .await
                    .expect("the broker answers");
                let _ = sender.send(Instant::now());
                broker
                    .complete(claims.iter().map(finish).collect())
                    .await
                    .expect("they are ours");
            }
            broker
                .deregister(owner, None)
                .await
                .expect("it was registered");
        });
    });
    // Until the worker has registered and is waiting.
    thread::sleep(Duration::from_millis(200));
    let times: Vec<f64> = (0..WAITS)
        .map(|_| {
            thread::sleep(Duration::from_millis(4));
            let began = Instant::now();
            submit(project, broker, vec![TaskSpec::command(["/bin/true"])]);
            micros(
                wakeups
                    .recv_timeout(Duration::from_secs(10))
                    .expect("it is woken")
                    .saturating_duration_since(began),
            )
        })
        .collect();
    thread.join().expect("the worker does not panic");
    median(&times)
}

/// A server for one benchmark, killed on drop.
pub(crate) struct Server {
    port: u16,
    process: Child,
}

impl Server {
    pub(crate) fn start(project: &ProjectDir) -> Self {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        let port = listener.local_addr().expect("it is bound").port();
        drop(listener);
        let process = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "yes",
            ])
            .args(["--appendfsync", "everysec", "--dir"])
            .arg(project.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let server = Self { port, process };
        let began = Instant::now();
        while redis::Client::open(server.address())
            .and_then(|client| client.get_connection())
            .is_err()
        {
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "redis-server starts"
            );
            thread::sleep(Duration::from_millis(10));
        }
        server
    }

    pub(crate) fn address(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub(crate) fn url(&self) -> String {
        self.address() + "?namespace=bench"
    }

    fn connection(&self) -> Connection {
        redis::Client::open(self.address())
            .and_then(|client| client.get_connection())
            .expect("the server is up")
    }

    pub(crate) fn broker(&self, project: &ProjectDir) -> Arc<dyn Broker> {
        project
            .wait(connect(&self.url().parse().expect("a URL")))
            .expect("the server takes tasks")
    }

    /// Waits until the server is not rewriting its append-only file.
    fn wait_for_rewrite(&self) {
        let (mut connection, began) = (self.connection(), Instant::now());
        loop {
            let info: String = redis::cmd("INFO")
                .arg("persistence")
                .query(&mut connection)
                .expect("the server answers");
            if info.contains("aof_rewrite_in_progress:0")
                && info.contains("aof_rewrite_scheduled:0")
            {
                return;
            }
            assert!(
                began.elapsed() < Duration::from_secs(120),
                "a rewrite comes to its end"
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The rate that `redis-benchmark` measures.
    fn pipelined_xadd(&self, count: usize) -> f64 {
        let output = Command::new("redis-benchmark")
            .args([
                "-p",
                &self.port.to_string(),
                "-P",
                &DEPTH.to_string(),
                "-n",
                &count.to_string(),
                "--csv",
            ])
            .args(["XADD", "floor", "*", "d", &payload()])
            .output()
            .expect("redis-benchmark comes with the server");
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().last().unwrap_or_default();
        let figure = last
            .rsplit("\",\"")
            .nth(6)
            .and_then(|figure| figure.trim_matches('"').parse().ok());
        let rate = figure.unwrap_or_else(|| panic!("unexpected output of redis-benchmark: {text}"));
        let () = redis::cmd("DEL")
            .arg("floor")
            .query(&mut self.connection())
            .expect("the server answers");
        rate
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
