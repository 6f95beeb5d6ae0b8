//! The four stages of a stop, and what becomes of processes whose manager is killed.

use super::*;

fn file(command: &str, execution: &str, shutdown: &str) -> String {
    format!(
        "[process.a]\nshutdown_timeout = '{shutdown}'\n[[process.a.worker]]\nslug = 'a'\nsources = ['in']\n\
         execution_timeout = '{execution}'\ncommand = ['sh', '-c', '''{command}''']\n"
    )
}

/// A manager with one event that runs.
fn busy(world: &World, file: &str) -> (RunningCommand, String) {
    let manager = up(world, file);
    world.raddle(["queue", "write", "in", "x"]).ok();
    wait_until("it runs", || world.path().join("begun").exists());
    let tasks = world.raddle(["task", "list", "--json"]).ok().json();
    (manager, tasks[0]["tid"].as_str().unwrap().to_owned())
}

#[test]
fn a_stop_waits_for_running_tasks() {
    let world = World::new();
    let (manager, tid) = busy(
        &world,
        &file("touch begun; sleep 1; touch ended", "30s", "5s"),
    );
    down(&world, manager);
    assert!(world.path().join("ended").exists());
    assert_eq!(world.task(&tid)["state"], "completed");
}

#[test]
fn a_second_request_cancels_and_requeues_the_task() {
    let world = World::new();
    // It cleans up when it receives SIGTERM.
    let command = "trap 'touch cleaned; exit 1' TERM; touch begun; while :; do sleep 0.05; done";
    let (manager, tid) = busy(&world, &file(command, "30s", "20s"));
    // It is stopped before its time is over: after that it would have taken too long.
    manager.signal(libc::SIGTERM);
    wait_until("it drains", || {
        world
            .processes()
            .iter()
            .any(|(_, line)| line.contains(":group:draining"))
    });
    manager.stop().ok();
    assert!(world.path().join("cleaned").exists());
    let task = world.task(&tid);
    assert_eq!(
        (&task["state"], &task["failures"]),
        (&"created".into(), &0.into()),
        "{task}"
    );
    assert_eq!(world.processes(), []);
}

#[test]
fn a_stalled_process_notices_both_requests_to_stop() {
    let world = World::new();
    let command = "trap 'touch cleaned; exit 1' TERM; touch begun; while :; do sleep 0.05; done";
    let (manager, tid) = busy(&world, &file(command, "600s", "60s"));
    // The pid of the registry: the runner of the task has a title like that of the group process,
    // and /proc lists it first once pids have wrapped around.
    let process = *pids(&world, "a").first().unwrap();
    // The signals of both requests are pending when the process continues.
    signal(process, libc::SIGSTOP);
    manager.signal(libc::SIGTERM);
    wait_until("it drains", || {
        world
            .processes()
            .iter()
            .any(|(_, line)| line.contains(":group:draining"))
    });
    manager.signal(libc::SIGTERM);
    wait_until("it is stopped faster", || {
        pending_signals(process).contains(&libc::SIGINT)
    });
    signal(process, libc::SIGCONT);
    manager.finish().ok();
    assert!(world.path().join("cleaned").exists());
    assert_eq!(world.task(&tid)["state"], "created");
    assert_eq!(world.processes(), []);
}

/// The signals that a process has not handled yet (`SigPnd` and `ShdPnd` of proc(5)).
fn pending_signals(pid: i64) -> Vec<i32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status
        .lines()
        .filter_map(|line| {
            line.strip_prefix("SigPnd:")
                .or(line.strip_prefix("ShdPnd:"))
        })
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .fold(0, |all, mask| all | mask);
    (1..=31)
        .filter(|signal| pending >> (signal - 1) & 1 == 1)
        .collect()
}

#[test]
fn kills_a_command_that_ignores_sigterm_with_its_children() {
    let world = World::new();
    let command = "trap '' TERM; (trap '' TERM; setsid sleep 1000) & touch begun; while :; do sleep 0.05; done";
    let (manager, tid) = busy(&world, &file(command, "600s", "1s"));
    manager.signal(libc::SIGTERM);
    wait_until("it drains", || {
        world
            .processes()
            .iter()
            .any(|(_, line)| line.contains(":group:draining"))
    });
    manager.signal(libc::SIGINT);
    let began = Instant::now();
    let said = manager
        .finish()
        .code(137)
        .stderr_contains("1 process had to be killed (SIGKILL)")
        .stderr;
    assert!(
        said.lines()
            .any(|line| line.contains("killed (SIGKILL)") && line.contains(&tid)),
        "{said}"
    );
    // All of it but for what is left for giving it back.
    assert!(
        began.elapsed() >= Duration::from_millis(700),
        "it had its time"
    );
    assert_eq!(world.processes(), []);
    assert_eq!(world.task(&tid)["state"], "created", "it goes back");
}

#[test]
fn a_third_request_kills_at_once() {
    let world = World::new();
    let command = "trap '' TERM; touch begun; while :; do sleep 0.05; done";
    let (manager, tid) = busy(&world, &file(command, "600s", "600s"));
    let is = |title: &str| {
        world
            .processes()
            .iter()
            .any(|(_, line)| line.contains(title))
    };
    manager.signal(libc::SIGTERM);
    wait_until("it drains", || is(":group:draining"));
    manager.signal(libc::SIGTERM);
    wait_until("it stops", || is(":group:stopping"));
    let said = manager.stop().code(137).stderr;
    assert!(
        said.contains("a process did not end when it was stopped, and is killed (SIGKILL)"),
        "{said}"
    );
    assert!(
        said.contains("process=\"a\"") && said.contains(&format!("raddle-{}", &tid[9..])),
        "{said}"
    );
    // A killed process takes its children with it, which takes a moment on a loaded machine.
    wait_until("no process is left", || world.processes().is_empty());
    world.raddle(["requeue-orphans"]).ok();
    wait_until("it goes back", || world.task(&tid)["state"] == "created");
}

#[test]
fn processes_of_a_killed_manager_finish_their_tasks_and_exit() {
    let world = World::new();
    let (manager, tid) = busy(
        &world,
        &file("touch begun; sleep 1; touch ended", "30s", "5s"),
    );
    let idle = world.submit(&["--queue", "a", "--", "touch", "late"]);
    manager.signal(libc::SIGKILL);
    manager.finish();
    wait_until("running tasks have ended", || {
        world.task(&tid)["state"] == "completed"
    });
    wait_until("no process is left", || world.processes().is_empty());
    assert!(
        world.path().join("ended").exists() && !world.path().join("late").exists(),
        "nothing new was begun"
    );
    // The next one goes on.
    let manager = up(&world, &file("true", "30s", "5s"));
    world.raddle(["wait", &idle]).ok();
    down(&world, manager);
}

#[test]
fn a_stopped_process_of_a_killed_manager_finishes_its_task_and_exits() {
    let world = World::new();
    let command = "touch begun; while ! test -e go; do sleep 0.02; done; touch ended";
    let (manager, tid) = busy(&world, &file(command, "30s", "5s"));
    signal(*pids(&world, "a").first().unwrap(), libc::SIGSTOP);
    wait_until("it stands still", || {
        manager.stderr().contains("a process was suspended")
    });
    manager.signal(libc::SIGKILL);
    manager.finish();
    world.file("go", "");
    wait_until("running tasks have ended", || {
        world.task(&tid)["state"] == "completed"
    });
    assert_eq!(world.task(&tid)["attempt"], 1);
    wait_until("no process is left", || world.processes().is_empty());
}

#[test]
fn a_manager_takes_control_commands() {
    let world = World::new();
    let manager = up(&world, TWO_OF_ONE);
    let tid = manager.stdout().trim().to_owned();
    assert_eq!(
        world.raddle(["task", "ping", &tid]).ok().text(),
        format!("{tid} listening\n")
    );
    wait_until("the registry says what it has started", || {
        let entries = world.workers();
        let entry = entries
            .as_array()
            .unwrap()
            .iter()
            .find(|entry| entry["tid"] == tid.as_str())
            .cloned();
        entry.is_some_and(|entry| entry["type"] == "group" && entry["spawned_count"] == 2)
    });
    world.raddle(["task", "stop", &tid]).ok();
    manager.finish().ok();
    assert_eq!(world.processes(), []);
}

/// Returns the activity of all workers in the registry, managers included.
fn statuses(world: &World) -> Vec<String> {
    let entries = world.workers();
    entries
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["status"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_pause_of_a_manager_applies_to_later_processes() {
    let world = World::new();
    let manager = up(&world, TWO_OF_ONE);
    let tid = manager.stdout().trim().to_owned();
    let says = |word: &str, state: &str| {
        assert_eq!(
            world.raddle(["task", word, &tid]).ok().text(),
            format!("{tid} {state}\n")
        );
        wait_until("its title says so", || {
            world
                .processes()
                .iter()
                .any(|(_, line)| line.contains(&format!("raddle-{}:group:{state}", &tid[9..])))
        });
    };
    says("pause", "paused");
    wait_until("all of them are paused", || {
        statuses(&world) == ["paused"; 3]
    });
    let waits = world.submit(&["--queue", "mail", "--", "true"]);
    let killed = *pids(&world, "mail").first().unwrap();
    signal(killed, libc::SIGKILL);
    wait_until("another has taken its place", || {
        let now = pids(&world, "mail");
        now.len() == 2 && !now.contains(&killed)
    });
    world.raddle(["group", "scale", "mail", "3"]).ok();
    wait_until("those that have come are paused too", || {
        statuses(&world) == ["paused"; 4]
    });
    assert_eq!(world.task(&waits)["attempt"], 0, "no worker has claimed it");
    says("ping", "paused");
    let groups = world.raddle(["group", "list", "--json"]).ok().json();
    assert_eq!(groups[0]["managers"][0]["status"], "paused");
    let (hears, answers) = (format!("T{tid}.ctrl_in"), format!("T{tid}.ctrl_out"));
    world
        .raddle([
            "queue",
            "write",
            &hears,
            r#"{"command":"STATUS","request_id":"mine"}"#,
        ])
        .ok();
    wait_until("it says how it is", || {
        let said = world
            .raddle(["queue", "peek", &answers, "--all"])
            .ok()
            .text()
            .to_owned();
        said.lines()
            .any(|line| line.contains("\"mine\"") && line.contains("\"paused\""))
    });
    says("resume", "listening");
    world.raddle(["wait", &waits]).ok();
    wait_until("all of them go on", || statuses(&world) == ["active"; 4]);
    down(&world, manager);
}
