//! `raddle spawner` with workers in pods: of a small cluster on loopback, in which each pod is a
//! process with a host name of its own.

use std::{
    collections::BTreeSet,
    fs,
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Mishap, pending, waiting},
    kubectl::is_kept,
    metrics::scrape,
    world::{RunningCommand, World, wait_until},
};

/// A world whose broker is a Redis server on loopback, and a cluster beside it.
struct Site {
    cluster: Cluster,
    server: Option<RunningCommand>,
    url: String,
    world: World,
}

impl Site {
    fn new() -> Self {
        Self::with("")
    }

    /// With this password.
    fn with(password: &str) -> Self {
        let world = World::new();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let server = format!(
            "exec setpriv --pdeathsig KILL redis-server --bind 127.0.0.1 --port {port} --dir $PWD --appendonly yes --save '' \
             --requirepass '{password}' >server.log"
        );
        let server = Some(world.start_bash(&server));
        let user = if password.is_empty() {
            String::new()
        } else {
            format!(":{password}@")
        };
        let url = format!("redis://{user}127.0.0.1:{port}?namespace=pods");
        world.file("raddle.toml", format!("queue_url = '{url}'\n"));
        wait_until("it answers", || world.raddle(["status"]).code == 0);
        Self {
            cluster: Cluster::new(&world),
            server,
            url,
            world,
        }
    }

    /// Writes a `spawner.toml`, with these lines in its table for the cluster.
    fn configure(&self, lines: &str) {
        let server = self.cluster.url();
        self.world.file(
            "spawner.toml",
            format!(
                "[spawner]\nlauncher = 'kubernetes'\nworker_image = 'some/image:1'\nwarm_pool = 2\nmax_workers = 6\npoll_ms = 100\n\
                 [spawner.kubernetes]\nserver = '{server}'\nnamespace = 'work'\n{lines}\n"
            ),
        );
    }

    fn spawner(&self) -> RunningCommand {
        let spawner = self
            .world
            .start(["spawner", "run", "--config", "spawner.toml"]);
        wait_until("it has said its id", || {
            assert!(
                !spawner.stderr().contains("raddle: "),
                "{}",
                spawner.stderr()
            );
            spawner.stdout().trim().len() == 19
        });
        spawner
    }

    fn until_warm(&self, count: usize) {
        wait_until("they are warm", || self.world.one_shots().len() == count);
    }

    fn wait(&self, tids: &str) {
        self.world
            .raddle(["wait"].into_iter().chain(tids.lines()))
            .ok();
    }

    /// Asks the spawner to stop, and sees that nothing is left.
    fn stop(&self, spawner: RunningCommand) -> crate::world::CommandOutput {
        let ran = spawner.stop().ok();
        assert_eq!(self.cluster.pods(), [] as [Value; 0], "{}", ran.stderr);
        ran
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // Workers of a test that has failed may be left, and have to find their broker to be told.
        let _ = self
            .world
            .raddle(["worker", "stop", "--all", "--kill", "--quiet"]);
        if let Some(server) = self.server.take() {
            server.signal(libc::SIGKILL);
            server.finish();
        }
        // Nothing is there any more that the end of the world could ask.
        let _ = fs::remove_file(self.world.path().join("raddle.toml"));
    }
}

const HOST: &str = "cat /proc/sys/kernel/hostname >> hosts";

#[test]
fn runs_ten_tasks_in_ten_pods_and_deletes_them() {
    let site = Site::new();
    site.configure("");
    let spawner = site.spawner();
    site.until_warm(2);
    let tids = site
        .world
        .submit(&["--array", "1-10", "--", "sh", "-c", HOST]);
    site.wait(&tids);
    let hosts = site.world.lines("hosts");
    let hosts: BTreeSet<&str> = hosts.iter().map(String::as_str).collect();
    assert_eq!(hosts.len(), 10, "each task had a pod of its own");
    wait_until("two are warm again, and the others removed", || {
        let pods = site.cluster.pods();
        pods.len() == 2
            && pods
                .iter()
                .all(|pod| !hosts.contains(pod["metadata"]["name"].as_str().unwrap()))
    });
    let made = site.cluster.calls("create");
    let tid = spawner.stdout().trim().to_owned();
    for pod in &made {
        assert_eq!(pod["metadata"]["labels"]["raddle.spawner"], tid.as_str());
        assert_eq!(pod["spec"]["restartPolicy"], "Never");
        assert!(
            pod["metadata"].get("ownerReferences").is_none(),
            "workers outlive their spawner"
        );
    }
    is_kept("env", &["NO=thing"], &made[0]);
    site.stop(spawner).stderr_contains("launched ");
}

/// Pods reach Redis themselves, so that nothing of what they do passes through the spawner.
#[test]
fn counts_the_tasks_of_pods() {
    let site = Site::new();
    site.configure("");
    let spawner = site.world.start([
        "spawner",
        "run",
        "--config",
        "spawner.toml",
        "--json",
        "--metrics-addr",
        "127.0.0.1:0",
    ]);
    let url = crate::metrics::said(&spawner)["metrics"]
        .as_str()
        .unwrap()
        .to_owned();
    site.until_warm(2);
    let tids = site.world.submit(&["--array", "1-3", "--", "sleep", "0.1"]);
    site.wait(&tids);
    let failed = site
        .world
        .submit(&["--retry", "1", "--retry-base", "0.01", "--", "false"]);
    site.world.raddle(["wait", &failed]).code(1);
    // Another worker on the same broker is not this spawner's.
    let elsewhere = site.world.submit(&["--queue", "elsewhere", "--", "true"]);
    site.world
        .raddle([
            "worker",
            "start",
            "--no-detach",
            "--queues",
            "elsewhere",
            "--idle-exit",
            "0",
        ])
        .ok();
    site.wait(&elsewhere);
    let after = site.world.submit(&["--", "true"]);
    site.wait(&after);
    wait_until("all are counted", || {
        scrape(&url).get("worker_runtime_seconds_count") == Some(6.0)
    });
    let metrics = scrape(&url);
    for (series, count) in [
        ("worker_task_total{status=\"completed\"}", 4.0),
        ("worker_task_total{status=\"failed\"}", 1.0),
        ("worker_task_total{status=\"retried\"}", 1.0),
        ("worker_task_total{status=\"lost\"}", 0.0),
        ("raddle_task_wait_seconds_count", 5.0),
        ("raddle_tasks_in_flight", 0.0),
    ] {
        assert_eq!(metrics.get(series), Some(count), "{series}");
    }
    let sum = |name: &str| metrics.get(name).unwrap();
    assert!(sum("raddle_task_run_seconds_sum") >= 0.3);
    assert!(sum("worker_runtime_seconds_sum") >= sum("raddle_task_run_seconds_sum"));
    // Two were warm for three tasks.
    let (hits, misses) = (
        sum("raddle_warm_tasks_total{worker=\"waiting\"}"),
        sum("raddle_warm_tasks_total{worker=\"none\"}"),
    );
    assert!(hits >= 2.0 && hits + misses == 5.0, "{hits} {misses}");
    assert!(sum("raddle_warm_hit_ratio") > 0.0);
    // One that is killed is counted, too.
    let tid = site.world.submit(&[
        "--",
        "sh",
        "-c",
        &format!("{HOST}; test $RADDLE_ATTEMPT != 1 || sleep 600"),
    ]);
    wait_until("it runs", || site.world.lines("hosts").len() == 1);
    site.cluster.kill(&site.world.lines("hosts")[0], "Error");
    site.wait(&tid);
    wait_until("its loss is counted", || {
        scrape(&url).get("worker_task_total{status=\"lost\"}") == Some(1.0)
    });
    wait_until("its end is counted", || {
        scrape(&url).get("worker_task_total{status=\"completed\"}") == Some(5.0)
    });
    site.stop(spawner);
}

#[test]
fn tolerates_an_overloaded_or_forgetful_api_server() {
    let site = Site::new();
    site.configure("");
    // Too many at once, then an answer that is lost, then a server that is away.
    site.cluster
        .mishap("create", Mishap::Refused(429, "TooManyRequests", Some(1)));
    site.cluster.mishap("create", Mishap::Unanswered);
    site.cluster
        .mishap("create", Mishap::Refused(503, "ServiceUnavailable", None));
    let begun = Instant::now();
    let spawner = site.spawner();
    site.until_warm(2);
    let names: Vec<Value> = site
        .cluster
        .calls("create")
        .iter()
        .map(|pod| pod["metadata"]["name"].clone())
        .collect();
    let different: BTreeSet<String> = names.iter().map(Value::to_string).collect();
    assert_eq!(
        (names.len(), different.len()),
        (5, 2),
        "each was tried again under its name: {names:?}"
    );
    assert!(
        begun.elapsed() >= Duration::from_secs(1),
        "the server wanted to be left alone for a second"
    );
    // Two tasks end while no watch is open: once the watch is cut, once its position is forgotten.
    for forgets in [false, true] {
        let tids = site.world.submit(&[
            "--array",
            "1-2",
            "--",
            "sh",
            "-c",
            "echo >> begun; while ! test -e go; do sleep 0.02; done",
        ]);
        wait_until("they run", || site.world.lines("begun").len() == 2);
        wait_until("others are warm", || site.world.one_shots().len() == 4);
        site.cluster
            .mishap("watch", Mishap::Refused(500, "InternalError", None));
        if forgets {
            site.cluster.forget()
        } else {
            site.cluster.hang_up()
        }
        site.world.file("go", "");
        site.wait(&tids);
        wait_until("they are removed", || site.cluster.pods().len() == 2);
        let _ = fs::remove_file(site.world.path().join("go"));
        let _ = fs::remove_file(site.world.path().join("begun"));
    }
    assert!(
        site.cluster.calls("list").len() >= 3,
        "it has asked anew for all there are"
    );
    let ran = site.stop(spawner);
    assert!(
        !ran.stderr.contains("no worker can be launched"),
        "{}",
        ran.stderr
    );
}

#[test]
fn the_next_spawner_adopts_the_pods_of_a_killed_one() {
    let site = Site::new();
    site.configure("");
    let first = site.spawner();
    let wait = "echo {} >> begun; while ! test -e go; do sleep 0.02; done; echo {} >> ran";
    let tids = site
        .world
        .submit(&["--array", "1-8", "--", "sh", "-c", wait]);
    wait_until("six run, which is all there may be", || {
        site.world.lines("begun").len() == 6
    });
    first.signal(libc::SIGKILL);
    assert_eq!(first.finish().code, 128 + libc::SIGKILL);
    let pods = site.cluster.pods().len();
    assert_eq!(pods, 6, "they go on without it");
    let next = site.spawner();
    let tid = next.stdout().trim().to_owned();
    // The lease of the first runs out meanwhile, and that is when its pods are taken over. Two more
    // tasks wait.
    thread::sleep(Duration::from_secs(4));
    assert_eq!(
        site.cluster.calls("create").len(),
        6,
        "those that live are counted: {}",
        next.stderr()
    );
    site.world.file("go", "");
    site.wait(&tids);
    let mut ran = site.world.lines("ran");
    ran.sort();
    assert_eq!(
        ran,
        ["1", "2", "3", "4", "5", "6", "7", "8"],
        "each ran once"
    );
    assert_eq!(site.world.lines("begun").len(), 8);
    wait_until(
        "the pods of the first are removed, and two of its own are warm",
        || {
            let pods = site.cluster.pods();
            pods.len() == 2
                && pods
                    .iter()
                    .all(|pod| pod["metadata"]["labels"]["raddle.spawner"] == tid.as_str())
        },
    );
    site.stop(next);
}

#[test]
fn removes_unstarted_pods_of_a_dead_spawner() {
    let site = Site::new();
    site.configure("");
    // One never becomes a worker, because it waits for a node; one ends while no spawner is
    // there.
    site.cluster.next_pods(1, &pending());
    let first = site.spawner();
    site.until_warm(1);
    first.signal(libc::SIGKILL);
    first.finish();
    let pods = site.cluster.pods();
    let runs = pods
        .iter()
        .find(|pod| pod["status"]["phase"] == "Running")
        .unwrap();
    site.cluster
        .kill(runs["metadata"]["name"].as_str().unwrap(), "Error");
    let next = site.spawner();
    let tid = next.stdout().trim().to_owned();
    wait_until("they are removed, and two of its own are warm", || {
        let pods = site.cluster.pods();
        pods.len() == 2
            && pods
                .iter()
                .all(|pod| pod["metadata"]["labels"]["raddle.spawner"] == tid.as_str())
    });
    site.stop(next);
}

#[test]
fn names_an_image_that_cannot_be_pulled_and_backs_off() {
    let site = Site::new();
    site.configure("");
    site.cluster
        .next_pods(3, &waiting("ImagePullBackOff", "Back-off pulling image"));
    let spawner = site.world.start([
        "spawner",
        "run",
        "--config",
        "spawner.toml",
        "--json",
        "--metrics-addr",
        "127.0.0.1:0",
    ]);
    wait_until("it says so", || {
        spawner
            .stderr()
            .contains("the image 'some/image:1' cannot be pulled (ImagePullBackOff)")
    });
    let text = spawner.stderr();
    assert!(
        text.contains("no worker can be launched: tried again in 0.5 s"),
        "{text}"
    );
    let metrics = crate::metrics::said(&spawner)["metrics"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        scrape(&metrics)
            .get("raddle_spawner_launch_failures_total{reason=\"image\"}")
            .unwrap()
            >= 1.0
    );
    // The image is there by now.
    site.until_warm(2);
    wait_until("stuck pods are removed", || site.cluster.pods().len() == 2);
    assert!(
        site.cluster.calls("create").len() <= 6,
        "{}",
        spawner.stderr()
    );
    site.stop(spawner);
}

#[test]
fn reports_the_end_of_a_pod_and_retries_its_task() {
    let site = Site::new();
    site.configure("");
    let spawner = site.spawner();
    for (number, (reason, words)) in [
        ("OOMKilled", "ran out of memory"),
        ("Evicted", "was evicted from its node"),
    ]
    .into_iter()
    .enumerate()
    {
        let script =
            "cat /proc/sys/kernel/hostname >> hosts; test $RADDLE_ATTEMPT != 1 || sleep 600";
        let tid = site.world.submit(&["--", "sh", "-c", script]);
        wait_until("it runs", || {
            site.world.lines("hosts").len() == 2 * number + 1
        });
        site.cluster
            .kill(site.world.lines("hosts").last().unwrap(), reason);
        site.wait(&tid);
        assert_eq!(
            site.world.lines("hosts").len(),
            2 * number + 2,
            "it ran again, elsewhere"
        );
        wait_until("the spawner logs it", || spawner.stderr().contains(words));
    }
    wait_until("they are removed", || site.cluster.pods().len() == 2);
    site.stop(spawner);
}

#[test]
fn names_missing_permissions_of_a_spawner() {
    let site = Site::new();
    site.configure("");
    site.cluster
        .mishap("create", Mishap::Refused(403, "Forbidden", None));
    let spawner = site.spawner();
    wait_until("it says so", || {
        spawner
            .stderr()
            .contains("needs to create, list, watch and delete pods")
    });
    site.until_warm(2);
    site.stop(spawner);
}

#[test]
fn names_an_unreachable_api_server_and_stops_without_it() {
    let site = Site::new();
    site.configure("");
    let config = site.world.read("spawner.toml");
    site.world.file(
        "spawner.toml",
        config.replace(&site.cluster.url(), "http://127.0.0.1:9"),
    );
    let spawner = site.spawner();
    wait_until("it says so", || {
        spawner
            .stderr()
            .contains("the API server at 127.0.0.1:9 cannot be reached")
    });
    site.stop(spawner);
}

#[test]
fn gives_up_a_pod_that_cannot_be_scheduled() {
    let site = Site::new();
    site.configure("start_within = '1s'");
    let refused = json!([{ "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient cpu" }]);
    site.cluster
        .next_pods(2, &json!({ "phase": "Pending", "conditions": refused }));
    let spawner = site.spawner();
    let words = "a pod did not run within 1 s: no node accepts it: 0/3 nodes are available: 3 Insufficient cpu";
    wait_until("it says so", || spawner.stderr().contains(words));
    site.until_warm(2);
    wait_until("unschedulable pods are removed", || {
        site.cluster.pods().len() == 2
    });
    site.stop(spawner);
}

#[test]
fn finishes_the_running_task_before_its_pod_is_deleted() {
    let site = Site::new();
    site.configure("");
    let spawner = site.spawner();
    let tid = site.world.submit(&[
        "--",
        "sh",
        "-c",
        "echo >> begun; while ! test -e go; do sleep 0.02; done; echo >> ran",
    ]);
    wait_until("it runs", || site.world.lines("begun").len() == 1);
    wait_until("others are warm", || site.world.one_shots().len() == 3);
    // One that waits for a node when all is over has nothing to finish.
    site.cluster.next_pods(1, &pending());
    let more = site.world.submit(&["--", "sh", "-c", "true"]);
    site.wait(&more);
    wait_until("it waits", || {
        site.cluster
            .pods()
            .iter()
            .any(|pod| pod["status"]["phase"] == "Pending")
    });
    spawner.signal(libc::SIGTERM);
    wait_until("the idle ones are gone", || site.cluster.pods().len() == 1);
    site.world.file("go", "");
    let ran = spawner.finish().ok();
    assert_eq!(site.world.task(&tid)["state"], "completed");
    assert_eq!(
        (site.world.lines("ran").len(), site.cluster.pods().len()),
        (1, 0),
        "{}",
        ran.stderr
    );
    assert!(
        !ran.stderr.contains("die before they are ready"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_second_stop_requeues_running_tasks() {
    let site = Site::new();
    site.configure("");
    let spawner = site.spawner();
    let tid = site
        .world
        .submit(&["--", "sh", "-c", "echo >> begun; exec sleep 600"]);
    wait_until("it runs", || site.world.lines("begun").len() == 1);
    wait_until("others are warm", || site.world.one_shots().len() == 3);
    spawner.signal(libc::SIGTERM);
    wait_until("the idle ones are gone", || site.cluster.pods().len() == 1);
    spawner.stop().ok();
    assert_eq!(site.cluster.pods().len(), 0);
    assert_eq!(
        site.world.task(&tid)["state"],
        "created",
        "it waits for another"
    );
    let graces: BTreeSet<String> = site
        .cluster
        .calls("delete")
        .iter()
        .map(|options| options["gracePeriodSeconds"].to_string())
        .collect();
    assert!(
        graces.contains("null") && graces.contains("20"),
        "as long as the pod's spec says, and then less: {graces:?}"
    );
}

#[test]
fn keeps_a_password_only_in_a_secret() {
    let site = Site::with("geheim");
    site.configure("");
    let plain = site
        .world
        .raddle(["spawner", "run", "--config", "spawner.toml"])
        .code(2);
    plain
        .stderr_contains("spawner.kubernetes.queue_secret")
        .stderr_contains("kubectl create secret");
    site.configure("queue_secret = 'raddle-queue'\ntemplate = 'worker.yaml'");
    site.world.file(
        "worker.yaml",
        "metadata: {labels: {team: ml}}\nspec: {nodeSelector: {disk: fast}}\n",
    );
    let spawner = site.spawner();
    wait_until("it is missed", || {
        spawner
            .stderr()
            .contains("secret \"raddle-queue\" not found")
    });
    site.cluster.secret("raddle-queue", "QUEUE_URL", &site.url);
    site.until_warm(2);
    let tid = site.world.submit(&["--", "sh", "-c", HOST]);
    site.wait(&tid);
    // Nor has a task it.
    let tid = site.world.submit(&[
        "--",
        "sh",
        "-c",
        "env; cat /proc/$PPID/environ /proc/$(awk '{print $4}' /proc/$PPID/stat)/environ",
    ]);
    site.wait(&tid);
    let seen = site.world.raddle(["logs", &tid]).ok();
    assert!(
        seen.text().contains("RADDLE_TID") && !seen.text().contains("geheim"),
        "{}",
        seen.text()
    );
    let made = site.cluster.calls("create");
    assert!(!json!(made).to_string().contains("geheim"));
    assert_eq!(made[0]["metadata"]["labels"]["team"], "ml");
    assert_eq!(made[0]["spec"]["nodeSelector"]["disk"], "fast");
    is_kept("env", &["NO=thing"], &made[0]);
    let ran = site.stop(spawner);
    assert!(!ran.stderr.contains("geheim"), "{}", ran.stderr);
}

#[test]
fn refuses_settings_that_pods_cannot_have() {
    let world = World::new();
    let kubernetes = "[spawner.kubernetes]\nserver = 'http://127.0.0.1:9'\n";
    for (queue, lines, flags, words) in [
        ("sqlite:x.db", kubernetes, "", "pods cannot reach it"),
        ("redis://broker", "", "", "kubectl proxy"),
        (
            "redis://broker",
            "[spawner.kubernetes]\nserver = 'http://10.0.0.1'",
            "",
            "use https",
        ),
        (
            "redis://broker",
            "[spawner.container]\nnetworks = ['a']\n",
            "",
            "NetworkPolicy",
        ),
        (
            "redis://broker",
            "[spawner.container]\ngpus = 'all'\n",
            "",
            "give a number",
        ),
        (
            "redis://broker",
            kubernetes,
            "--serve=x.sock",
            "--serve cannot be used with pods",
        ),
        (
            "redis://broker",
            kubernetes,
            "--handlers=.",
            "--handlers cannot be used with pods",
        ),
        (
            "redis://broker",
            "[spawner.kubernetes]\ntemplate = 'none.yaml'\n",
            "",
            "none.yaml",
        ),
        (
            "redis://broker",
            "[spawner.kubernetes]\ntemplate = 'bad.yaml'\n",
            "",
            "at 'spec.hostNetwork'",
        ),
    ] {
        world.file("bad.yaml", "spec: {hostNetwork: true}\n");
        let head = format!(
            "[spawner]\nqueue_url = '{queue}'\nlauncher = 'kubernetes'\nworker_image = 'x'\n"
        );
        world.file("spawner.toml", format!("{head}{lines}"));
        let args = ["spawner", "run", "--config", "spawner.toml", flags];
        world
            .raddle(args.into_iter().filter(|arg| !arg.is_empty()))
            .code(2)
            .stderr_contains(words);
    }
}
