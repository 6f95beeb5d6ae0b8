//! Processes that hang, each in a way of its own: that one is replaced, and no other.

use super::*;

const FILE: &str = "[process.a]\nreplicas = 2\nhang_timeout = '3s'\nshutdown_timeout = '5s'\n[[process.a.worker]]\nslug = 'a'\n\
                    execution_timeout = '2s'\n";

/// The same, but with time for a few commands before a task has taken too long, also where all else
/// is busy.
fn patient() -> String {
    FILE.replace("execution_timeout = '2s'", "execution_timeout = '8s'")
}

/// One process hangs because of `deed`. It is replaced, with this in the log, and its sibling
/// stays.
fn replaced(world: &World, manager: &RunningCommand, hangs: i64, said: &str) {
    let before = pids(world, "a");
    wait_until("it is replaced", || {
        let now = pids(world, "a");
        now.len() == 2 && !now.contains(&hangs)
    });
    let log = manager.stderr();
    assert!(
        log.contains(said) && log.contains("doing=") && log.contains(&format!("pid={hangs}")),
        "{log}"
    );
    assert!(
        before
            .iter()
            .filter(|pid| **pid != hangs)
            .all(|pid| pids(world, "a").contains(pid)),
        "its sibling stays"
    );
    let tid = world.submit(&["--queue", "a", "--", "true"]);
    world.raddle(["wait", &tid]).ok();
}

/// The process with this in its title, and its parent: a runner, and the worker that it is of.
fn runner(world: &World, title: &str) -> (i64, i64) {
    let found = || {
        world
            .processes()
            .into_iter()
            .find(|(_, line)| line.contains(title))
    };
    wait_until("it runs", || found().is_some());
    let (runner, _) = found().unwrap();
    let stat = fs::read_to_string(format!("/proc/{runner}/stat")).unwrap();
    (
        runner.into(),
        stat.rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap(),
    )
}

#[test]
fn replaces_a_stopped_process() {
    let world = World::new();
    let manager = up(&world, FILE);
    let pid = *pids(&world, "a").first().unwrap();
    signal(pid, libc::SIGSTOP);
    wait_until("it is noticed", || {
        manager.stderr().contains("a process was suspended")
    });
    replaced(
        &world,
        &manager,
        pid,
        "its process was suspended and not continued",
    );
    // An earlier kill does not affect a later stop.
    std::thread::sleep(Duration::from_secs(11));
    let said = down(&world, manager);
    assert!(!said.contains("cannot be killed"), "{said}");
}

#[test]
fn keeps_a_process_that_is_continued_in_time() {
    let world = World::new();
    let manager = up(
        &world,
        "[process.a]\nhang_timeout = '30s'\n[[process.a.worker]]\nslug = 'a'\n",
    );
    let before = pids(&world, "a");
    let pid = *before.first().unwrap();
    signal(pid, libc::SIGSTOP);
    wait_until("it is noticed", || {
        manager.stderr().contains("a process was suspended")
    });
    signal(pid, libc::SIGCONT);
    let tid = world.submit(&["--queue", "a", "--", "true"]);
    world.raddle(["wait", &tid]).ok();
    assert_eq!(pids(&world, "a"), before);
    down(&world, manager);
}

#[test]
fn replaces_a_process_whose_event_loop_is_blocked() {
    let world = World::new();
    let manager = up(&world, FILE);
    let pid = *pids(&world, "a").first().unwrap();
    // Its first thread alone: the one that renews its lease goes on, so that none but its manager
    // could tell. SAFETY: plain integers to ptrace; the thread is let go when this process lets go
    // of it, or when it is killed.
    unsafe {
        assert_eq!(
            libc::ptrace(libc::PTRACE_SEIZE, pid as i32, 0, 0),
            0,
            "{}",
            std::io::Error::last_os_error()
        );
        assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, pid as i32, 0, 0), 0);
        libc::waitpid(pid as i32, std::ptr::null_mut(), libc::__WALL);
    }
    // A tracer is the first to be notified of the end of its thread, and has to wait for it.
    wait_until("it is killed", || {
        let mut status = 0;
        // SAFETY: `status` is written to, and lives until the call returns.
        let asked = unsafe { libc::waitpid(pid as i32, &mut status, libc::__WALL | libc::WNOHANG) };
        asked == pid as i32 && libc::WIFSIGNALED(status)
    });
    replaced(
        &world,
        &manager,
        pid,
        "it shows no progress: its loop is blocked",
    );
    down(&world, manager);
}

#[test]
fn stops_a_task_after_its_timeout_and_keeps_its_process() {
    let world = World::new();
    let manager = up(&world, FILE);
    let before = pids(&world, "a");
    let began = Instant::now();
    // It sets no timeout itself, and ignores SIGTERM.
    let tid = world.submit(&[
        "--queue",
        "a",
        "--",
        "sh",
        "-c",
        "trap '' TERM; while :; do sleep 0.05; done",
    ]);
    world.wait_for_state(&tid, "timeout");
    assert!(
        began.elapsed() >= Duration::from_secs(7),
        "it had shutdown_timeout to end"
    );
    assert_eq!(pids(&world, "a"), before);
    down(&world, manager);
}

#[test]
fn a_task_that_takes_too_long_has_shutdown_timeout_to_clean_up() {
    let world = World::new();
    // Its cleanup waits for a file, and so takes longer than any grace but that of its process.
    let command = "trap 'touch told; while ! test -e go; do sleep 0.02; done; touch cleaned; exit 1' TERM; \
                   touch begun; while :; do sleep 0.02; done";
    let file = format!(
        "[process.a]\nshutdown_timeout = '10m'\n[[process.a.worker]]\nslug = 'a'\nsources = ['in']\n\
         execution_timeout = '500ms'\ncommand = ['sh', '-c', \"\"\"{command}\"\"\"]\n"
    );
    let manager = up(&world, &file);
    let before = pids(&world, "a");
    world.raddle(["queue", "write", "in", "x"]).ok();
    wait_until("it has SIGTERM", || world.path().join("told").exists());
    // Longer than the 300 ms and 400 ms after which it, or its process, would be killed otherwise.
    std::thread::sleep(Duration::from_secs(2));
    assert!(!world.path().join("cleaned").exists());
    world.file("go", "");
    wait_until("it is over", || {
        let tasks = world
            .raddle(["task", "list", "--queue", "a", "--json"])
            .ok()
            .json();
        tasks[0]["state"] == "timeout"
    });
    assert!(world.path().join("cleaned").exists(), "it had the time to");
    assert_eq!(pids(&world, "a"), before, "its process stays");
    down(&world, manager);
}

#[test]
fn replaces_a_process_whose_runner_hangs() {
    let world = World::new();
    let manager = up(&world, FILE);
    let tid = world.submit(&["--queue", "a", "--", "sleep", "1000"]);
    world.wait_for_state(&tid, "running");
    let runs = format!("raddle-{}:sleep:running", &tid[9..]);
    let (runner, worker) = runner(&world, &runs);
    signal(runner, libc::SIGSTOP);
    replaced(
        &world,
        &manager,
        worker,
        "a task has run past its time limit",
    );
    assert!(
        manager.stderr().contains(&runs),
        "the hang report is logged: {}",
        manager.stderr()
    );
    world.wait_for_state(&tid, "timeout");
    down(&world, manager);
}

#[test]
fn kills_a_hanging_attempt_before_its_retry() {
    let world = World::new();
    let command = "if test $RADDLE_ATTEMPT = 1; then echo $$ > first; exec sleep 1000; fi; \
                   (cut -d\" \" -f3 /proc/$(cat first)/stat || echo gone) > second 2> /dev/null";
    let file = format!(
        "[process.a]\nreplicas = 2\nshutdown_timeout = '1s'\n[[process.a.worker]]\nslug = 'a'\nsources = ['in']\nexecution_timeout = '8s'\n\
         on_error = 'retry'\nretry = {{ attempts = 2, base = '1ms' }}\ncommand = ['sh', '-c', '''{command}''']\n"
    );
    let manager = up(&world, &file);
    world.raddle(["queue", "write", "in", "x"]).ok();
    wait_until("it has begun", || !lines(&world, "first").is_empty());
    signal(runner(&world, ":a:running").0, libc::SIGSTOP);
    wait_until("it has begun again", || !lines(&world, "second").is_empty());
    let state = lines(&world, "second").concat();
    assert!(
        ["Z", "gone"].contains(&state.as_str()),
        "the first attempt was still there: {state}"
    );
    down(&world, manager);
}

#[test]
fn replaces_a_process_whose_runner_hangs_before_its_start() {
    let world = World::new();
    let manager = up(&world, &FILE.replace("replicas = 2", "replicas = 1"));
    let first = world.submit(&["--queue", "a", "--", "sh", "-c", "echo $PPID > runner"]);
    world.raddle(["wait", &first]).ok();
    // It is kept for the next task, which it will not begin.
    signal(
        lines(&world, "runner").concat().parse().unwrap(),
        libc::SIGSTOP,
    );
    let tid = world.submit(&["--queue", "a", "--", "touch", "ran"]);
    wait_until("it is over", || {
        ["timeout", "completed"]
            .iter()
            .any(|state| world.task(&tid)["state"] == *state)
    });
    let task = world.task(&tid);
    assert_eq!(
        (&task["state"], &task["failures"], &task["losses"]),
        (&"timeout".into(), &1.into(), &0.into())
    );
    assert!(
        !world.path().join("ran").exists(),
        "nothing has run again unasked"
    );
    down(&world, manager);
}

#[test]
fn replaces_a_process_whose_runner_hangs_after_a_pause() {
    let world = World::new();
    let manager = up(&world, &patient());
    let tid = world.submit(&["--queue", "a", "--", "sleep", "1000"]);
    world.wait_for_state(&tid, "running");
    let title = |status: &str| format!("raddle-{}:sleep:{status}", &tid[9..]);
    world.raddle(["task", "pause", &tid]).ok();
    runner(&world, &title("paused"));
    world.raddle(["task", "resume", &tid]).ok();
    let (runner, worker) = runner(&world, &title("running"));
    signal(runner, libc::SIGSTOP);
    replaced(
        &world,
        &manager,
        worker,
        "a task has run past its time limit",
    );
    world.wait_for_state(&tid, "timeout");
    down(&world, manager);
}

#[test]
fn on_error_of_the_worker_applies_to_hung_events() {
    let world = World::new();
    let worker = |slug: &str, rest: &str| {
        format!(
            "[process.of-{slug}]\nshutdown_timeout = '1s'\n[[process.of-{slug}.worker]]\nslug = '{slug}'\nsources = ['in']\nexecution_timeout = '5s'\n\
             command = ['sh', '-c', 'echo {slug} >> tried; sleep 1000']\n{rest}\n"
        )
    };
    let retry = "on_error = 'retry'\nretry = { attempts = 2, base = '10ms' }";
    let file = [
        worker("ack", ""),
        worker("dead", "on_error = 'dead'"),
        worker("retry", retry),
    ]
    .concat();
    let manager = up(&world, &file);
    world.raddle(["queue", "write", "in", "x"]).ok();
    for slug in ["ack", "dead", "retry"] {
        let title = format!(":{slug}:running");
        let runner = || {
            world
                .processes()
                .into_iter()
                .find(|(_, line)| line.contains(&title))
        };
        wait_until("it runs", || {
            lines(&world, "tried").contains(&slug.to_owned()) && runner().is_some()
        });
        signal(runner().unwrap().0.into(), libc::SIGSTOP);
    }
    let tasks = || {
        let tasks = world
            .raddle(["task", "list", "--json"])
            .ok()
            .json()
            .as_array()
            .unwrap()
            .clone();
        let all = tasks
            .into_iter()
            .map(|task| (task["spec"]["queue"].as_str().unwrap().to_owned(), task));
        all.collect::<std::collections::BTreeMap<_, _>>()
    };
    wait_until("all are over", || {
        tasks().values().all(|task| task["state"] == "timeout")
    });
    let told = |slug: &str| {
        let task = &tasks()[slug];
        (
            task["dead"].as_bool().unwrap(),
            task["failures"].as_u64().unwrap(),
            task["losses"].as_u64().unwrap(),
        )
    };
    assert_eq!(told("ack"), (false, 1, 0));
    assert_eq!(told("dead"), (true, 1, 0));
    assert_eq!(told("retry"), (true, 2, 0));
    assert_eq!(
        lines(&world, "tried"),
        ["ack", "dead", "retry", "retry"],
        "nothing has run again unasked"
    );
    // The second attempt of the last one is ended by its own runner, unless that is late.
    assert!(
        manager
            .stderr()
            .matches("a task has run past its time limit")
            .count()
            >= 3
    );
    down(&world, manager);
}
