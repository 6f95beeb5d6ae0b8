//! Processes that are replaced although nothing is wrong with them, those that cannot reach their
//! broker, and how soon it is all done.

use super::*;
use crate::spawner::serve_redis;

/// The processes that wear the title of this worker process, as the system has them: asking costs
/// nothing that would be measured with it.
fn titled(world: &World, process: &str) -> BTreeSet<i32> {
    let title = format!(":{process}:");
    let is_it = |line: &str| line.starts_with("raddle-") && line.contains(&title);
    world
        .processes()
        .into_iter()
        .filter(|(_, line)| is_it(line))
        .map(|(pid, _)| pid)
        .collect()
}

fn replaced_again_and_again(bound: &str, why: &str) {
    let world = World::new();
    let file = format!("[process.a]\n{bound}\njitter = 0\n[[process.a.worker]]\nslug = 'a'\n");
    world.file("raddle.toml", file);
    let manager = world.start(["--verbose", "up"]);
    let mut seen = BTreeSet::new();
    wait_until("there were three", || {
        seen.extend(pids(&world, "a"));
        seen.len() >= 3
    });
    let said = manager.stderr();
    assert!(
        said.contains(&format!("a process is stopped: {why}")),
        "{said}"
    );
    assert!(
        !said.contains("processes exit right after"),
        "that is no crash loop: {said}"
    );
    let tid = world.submit(&["--queue", "a", "--", "true"]);
    world.raddle(["wait", &tid]).ok();
    down(&world, manager);
}

#[test]
fn recycles_processes_by_age() {
    replaced_again_and_again("max_age = '1s'", "it has reached its maximum age");
}

#[test]
fn recycles_processes_by_memory() {
    // No process of this program fits into so little.
    replaced_again_and_again("max_rss_mb = 8", "it has reached its memory limit");
}

#[test]
fn a_handler_gets_the_message_as_its_arguments() {
    let world = World::new();
    world.file("count.sh", "read task; echo \"{\\\"result\\\": $task}\"");
    world.file(
        "count.handler.toml",
        "name = 'count'\nprovides = []\ncommand = ['sh', 'count.sh']\n",
    );
    world.file(
        "raddle.toml",
        "[process.a]\n[[process.a.worker]]\nslug = 'a'\nsources = ['in']\nhandler = 'count'\n",
    );
    let manager = world.start(["up", "--handlers", "."]);
    wait_until("it is up", || manager.stderr().contains(" up\n"));
    world.raddle(["queue", "write", "in", "[\"one\", 2]"]).ok();
    let done = || {
        world
            .raddle([
                "task",
                "list",
                "--queue",
                "a",
                "--status",
                "completed",
                "--json",
            ])
            .ok()
            .json()
    };
    wait_until("it is done", || done().as_array().unwrap().len() == 1);
    let told = done()[0]["report"]["value"]["spec"].clone();
    assert_eq!(told["args"], serde_json::json!(["one", 2]));
    assert_eq!(told["metadata"]["source"], "in");
    down(&world, manager);
}

#[test]
fn a_process_gives_up_on_its_server_after_give_up_after() {
    let (world, server) = on_redis();
    let patience = |slug: &str, reconnect: &str| {
        format!("[process.{slug}]\n{reconnect}\n[[process.{slug}.worker]]\nslug = '{slug}'\n")
    };
    let brief = "reconnect = { initial = '20ms', max = '100ms', give_up_after = '1s' }";
    let manager = up(
        &world,
        &[patience("brief", brief), patience("ample", "")].concat(),
    );
    // One that is ready wears its title a little later.
    wait_until("both wear their titles", || {
        titled(&world, "brief").len() == 1 && titled(&world, "ample").len() == 1
    });
    let (before, patient) = (titled(&world, "brief"), titled(&world, "ample"));
    let began = Instant::now();
    end(server);
    wait_until("it has given up", || {
        manager.stderr().contains("ended by itself")
    });
    assert!(
        began.elapsed() < Duration::from_secs(25),
        "others wait for 30 s: {:?}",
        began.elapsed()
    );
    assert!(titled(&world, "brief").is_disjoint(&before));
    assert_eq!(titled(&world, "ample"), patient, "which this one does");
    manager.signal(libc::SIGTERM);
    manager.signal(libc::SIGTERM);
    std::thread::sleep(Duration::from_millis(200));
    manager.stop();
}

const TWO: &str = "[process.a]\nreplicas = 2\n[[process.a.worker]]\nslug = 'a'\n";

/// Two processes are there at once, and work.
fn are_back(world: &World, before: &BTreeSet<i32>) {
    let began = Instant::now();
    wait_until("two others are there", || {
        let now = titled(world, "a");
        now.len() == 2 && now.is_disjoint(before)
    });
    // Tries are 2 s apart at most, and a process is there in a fraction of a second on a machine
    // that has nothing else to do.
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    let tid = world.submit(&["--queue", "a", "--", "true"]);
    world.raddle(["wait", &tid]).ok();
}

/// Its processes have given up again and again, and the next pause between two of them would be
/// longer than this takes.
#[test]
fn processes_recover_soon_after_the_server_was_down() {
    let (world, server) = on_redis();
    let url = world
        .read("raddle.toml")
        .replace("namespace=cli", "namespace=cli&give_up_after=500ms");
    world.file("raddle.toml", url);
    let manager = up(&world, TWO);
    wait_until("both wear their titles", || titled(&world, "a").len() == 2);
    let before = titled(&world, "a");
    end(server);
    wait_until("a pause is long", || {
        manager.stderr().contains("the next start is in 16 s")
    });
    let server = serve_redis(&world);
    are_back(&world, &before);
    manager.stop().ok();
    end(server);
    assert_eq!(world.processes(), []);
}

/// For longer than the manager waits for an answer. Its lease is lost by then, and those of its
/// processes.
#[test]
fn processes_recover_soon_after_the_server_was_unresponsive() {
    let (world, server) = on_redis();
    let manager = up(&world, TWO);
    wait_until("both wear their titles", || titled(&world, "a").len() == 2);
    server.signal(libc::SIGSTOP);
    wait_until("the manager has tried in vain", || {
        manager
            .stderr()
            .contains("waiting for the broker, which is away")
    });
    server.signal(libc::SIGCONT);
    // They have waited, too, or others are in their place.
    are_back(&world, &BTreeSet::new());
    manager.stop().ok();
    end(server);
    assert_eq!(world.processes(), []);
}

#[test]
fn notices_a_dead_process_at_once() {
    let world = World::new();
    let manager = up(
        &world,
        "[process.a]\nreplicas = 5\nhang_timeout = '1m'\n[[process.a.worker]]\nslug = 'a'\n",
    );
    let mut took = Vec::new();
    for (number, pid) in pids(&world, "a").into_iter().enumerate() {
        let began = Instant::now();
        signal(pid, libc::SIGKILL);
        wait_until("it is noticed", || {
            manager.stderr().matches("ended by itself").count() > number
        });
        took.push(began.elapsed());
    }
    took.sort();
    // A check every second would take half a second on average.
    assert!(took[2] < Duration::from_millis(250), "{took:?}");
    wait_until("all are there again", || pids(&world, "a").len() == 5);
    down(&world, manager);
}

#[test]
fn replaces_a_process_with_a_hanging_task_soon_after_its_limit() {
    let world = World::new();
    // Its `execution_timeout`, and the time to clean up.
    let limit = Duration::from_secs(5);
    let file = "[process.keeper]\nshutdown_timeout = '2s'\n[[process.keeper.worker]]\nslug = 'a'\nsources = ['in']\nexecution_timeout = '3s'\n\
                command = ['sh', '-c', 'date +%s.%N > begun; sleep 1000']\n";
    let manager = up(&world, file);
    let mut quickest = Duration::MAX;
    for _ in 0..2 {
        let _ = fs::remove_file(world.path().join("begun"));
        wait_until("it wears its title", || titled(&world, "keeper").len() == 1);
        let before = titled(&world, "keeper");
        world.raddle(["queue", "write", "in", "x"]).ok();
        let runner = || {
            world
                .processes()
                .into_iter()
                .find(|(_, line)| line.contains(":a:running"))
        };
        wait_until("it runs", || {
            runner().is_some() && !lines(&world, "begun").is_empty()
        });
        signal(runner().unwrap().0.into(), libc::SIGSTOP);
        wait_until("another is there", || {
            !titled(&world, "keeper").is_subset(&before)
        });
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
        let begun: f64 = lines(&world, "begun").concat().parse().unwrap();
        quickest = quickest.min(Duration::from_secs_f64((now - begun).max(0.0)));
        wait_until("the old one is gone", || {
            titled(&world, "keeper").is_disjoint(&before)
        });
    }
    // An idle machine needs a second at most. Code that waited for a lease would need more than
    // this.
    assert!(
        quickest >= limit && quickest <= limit + Duration::from_secs(4),
        "{quickest:?}"
    );
    down(&world, manager);
}

#[test]
fn stops_ten_idle_processes_at_once() {
    let world = World::new();
    let manager = up(
        &world,
        "[process.a]\nreplicas = 10\n[[process.a.worker]]\nslug = 'a'\n",
    );
    let began = Instant::now();
    manager.stop().ok();
    // An idle machine needs a tenth of this. Code that waited for a check or a timeout would need
    // more.
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(world.processes(), []);
}
