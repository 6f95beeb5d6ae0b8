//! Words, stops and deaths that cross each other.

use raddle_testnet::is_root;

use crate::world::{World, wait_until};

fn signal(pid: i32, signal: i32) {
    crate::world::kill(pid, signal);
}

/// A worker, and the pid of the runner that has its task.
fn busy_worker(world: &World, script: &str) -> (i32, i32, String) {
    let worker = world
        .raddle(["worker", "start", "--json", "--concurrency", "1"])
        .ok()
        .json();
    let tid = world.submit(&["--name", "busy", "--", "sh", "-c", script]);
    world.wait_for_state(&tid, "running");
    let title = format!("raddle-{}:busy:running", &tid[9..]);
    let runner = world
        .processes()
        .into_iter()
        .find(|(_, cmdline)| cmdline.starts_with(&title));
    (
        worker["pid"].as_i64().unwrap() as i32,
        runner.expect("its runner wears its title").0,
        tid,
    )
}

/// It cannot see that its worker is gone; the kernel wakes it.
#[test]
fn a_stopped_runner_exits_with_its_worker() {
    let world = World::new();
    let (worker, runner, _) = busy_worker(&world, "sleep 600 & sleep 600");
    signal(runner, libc::SIGSTOP);
    signal(worker, libc::SIGKILL);
    wait_until("all of it is gone", || world.processes().is_empty());
}

/// Writes down which processes of earlier attempts are there.
const LEFT: &str =
    "for pid in $(cat pids); do ps -o stat=,args= -p $pid | grep -v ^Z; done > left$RADDLE_ATTEMPT";

fn note_sleepers(world: &World) {
    let processes = world.processes();
    let sleepers = processes
        .iter()
        .filter(|(_, line)| line.starts_with("sleep 60"));
    world.file(
        "pids",
        sleepers
            .map(|(pid, _)| format!("{pid}\n"))
            .collect::<String>(),
    );
}

/// Neither has the time to see that the other is gone.
fn kill_at_once(worker: i32, runner: i32) {
    for (pid, word) in [
        (worker, libc::SIGSTOP),
        (runner, libc::SIGSTOP),
        (runner, libc::SIGKILL),
        (worker, libc::SIGKILL),
    ] {
        signal(pid, word);
    }
}

/// No process is left to end the children of the command, until another worker reclaims the task
/// over.
#[test]
fn kills_orphans_before_the_next_attempt_when_worker_and_runner_are_killed() {
    let world = World::new();
    let script =
        format!("{LEFT}; test $RADDLE_ATTEMPT != 1 || {{ setsid sleep 601 & sleep 600; }}");
    let (worker, runner, tid) = busy_worker(&world, &script);
    let left = || {
        world
            .processes()
            .iter()
            .any(|(_, line)| line.starts_with("sleep 601"))
    };
    wait_until("it has started something", left);
    note_sleepers(&world);
    kill_at_once(worker, runner);
    wait_until("they are gone", || {
        world
            .processes()
            .iter()
            .all(|(_, line)| !line.starts_with("raddle-"))
    });
    assert!(left(), "no worker has ended it yet");
    world.worker(&[]);
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    assert!(!left());
    assert_eq!(world.read("left2"), "", "it was gone before");
    assert_eq!(world.task(&tid)["losses"], 1);
}

/// Also where no attempt comes after it.
#[test]
fn kills_orphans_of_a_reclaimed_task() {
    let world = World::new();
    let (worker, runner, _) = busy_worker(&world, "setsid sleep 601 & sleep 600");
    let left = || {
        world
            .processes()
            .iter()
            .any(|(_, line)| line.starts_with("sleep 601"))
    };
    wait_until("it has started something", left);
    kill_at_once(worker, runner);
    wait_until("it is taken back", || {
        !world.raddle(["requeue-orphans"]).ok().text().is_empty()
    });
    assert!(!left());
}

/// The worker that has reclaimed it may have had no time to search.
#[test]
fn kills_orphans_of_a_task_that_another_process_reclaimed() {
    let world = World::new();
    let left = || {
        world
            .processes()
            .iter()
            .any(|(_, line)| line.starts_with("sleep 601"))
    };
    for ends in [
        &["requeue-orphans"][..],
        &["worker", "start", "--queues", "other"],
    ] {
        let (worker, runner, tid) = busy_worker(&world, "setsid sleep 601 & sleep 600");
        wait_until("it has started something", left);
        kill_at_once(worker, runner);
        wait_until("it is taken back", || {
            world.raddle(["run", "--", "true"]).ok();
            world.task(&tid)["state"] == "created"
        });
        world.raddle(["task", "kill", &tid]).ok();
        assert!(left(), "a run does not look for it");
        world.raddle(ends).ok();
        wait_until("it is gone", || !left());
    }
}

/// They have the same tasks, and know nothing of each other.
#[test]
fn a_copy_of_a_project_does_not_kill_processes_of_the_original() {
    let world = World::new();
    let (.., tid) = busy_worker(&world, "sleep 600 & sleep 600");
    let copy = "cp -r .raddle copy && raddle --queue-url sqlite:$PWD/copy/raddle.db";
    let ran = world
        .bash(&format!(
            "{copy} requeue-orphans && {copy} worker start --no-detach --queues none --idle-exit 0"
        ))
        .ok();
    assert!(
        ran.text().contains(&tid),
        "to the copy its worker is gone: {ran:?}"
    );
    let sleepers = world
        .processes()
        .iter()
        .filter(|(_, line)| line.starts_with("sleep 600"))
        .count();
    assert_eq!(
        (sleepers, &world.task(&tid)["state"]),
        (2, &"running".into())
    );
}

/// A child of the attempt may be the first to search for orphans of the attempt.
#[test]
fn an_orphan_can_look_for_orphans() {
    let world = World::new();
    let raddle = env!("CARGO_BIN_EXE_raddle");
    let look = format!(
        "until grep -qs requeued out; do sleep 0.1; {raddle} requeue-orphans > out; done; echo > looked"
    );
    let (worker, runner, _) = busy_worker(
        &world,
        &format!("setsid sleep 601 & setsid sh -c '{look}' & sleep 600"),
    );
    let left = || {
        world
            .processes()
            .iter()
            .any(|(_, line)| line.starts_with("sleep 601"))
    };
    wait_until("it has started something", left);
    kill_at_once(worker, runner);
    wait_until("it has looked", || world.path().join("looked").exists());
    assert!(!left());
}

/// Neither can see that the lease runs out.
#[test]
fn the_new_owner_kills_the_task_of_a_stopped_worker_and_runner() {
    let world = World::new();
    let script = format!("{LEFT}; test $RADDLE_ATTEMPT != 1 || sleep 600");
    let (worker, runner, tid) = busy_worker(&world, &script);
    wait_until("it sleeps", || {
        world
            .processes()
            .iter()
            .any(|(_, line)| line.starts_with("sleep 600"))
    });
    note_sleepers(&world);
    for pid in [worker, runner] {
        signal(pid, libc::SIGSTOP);
    }
    world.worker(&[]);
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    assert_eq!(world.read("left2"), "", "it was ended before");
    for pid in [worker, runner] {
        signal(pid, libc::SIGCONT);
    }
    wait_until("both are there again", || {
        world
            .workers()
            .as_array()
            .is_some_and(|workers| workers.len() == 2)
    });
    let task = world.task(&tid);
    assert_eq!(
        (&task["state"], &task["attempt"], &task["losses"]),
        (&"completed".into(), &2.into(), &1.into())
    );
}

/// A stopped attempt ends, also when its worker exits in a hurry.
#[test]
fn a_stopped_task_is_not_requeued_by_its_stopping_worker() {
    let world = World::new();
    let (.., tid) = busy_worker(
        &world,
        "trap '' TERM; echo > trapped; while :; do sleep 0.1; done",
    );
    wait_until("it ignores SIGTERM", || {
        world.path().join("trapped").exists()
    });
    world.raddle(["task", "stop", "--timeout", "0.3", &tid]);
    world.raddle(["worker", "stop", "--all", "--kill"]).ok();
    let state = world.task(&tid)["state"].as_str().unwrap().to_owned();
    assert!(
        ["cancelled", "killed"].contains(&state.as_str()),
        "it is {state}"
    );
}

/// A runner that received `SIGSTOP` does not protect its children.
#[test]
fn kills_a_task_of_a_stopped_runner() {
    let world = World::new();
    let (_, runner, tid) = busy_worker(&world, "sleep 600");
    signal(runner, libc::SIGSTOP);
    world.raddle(["task", "kill", &tid]).ok();
    world.wait_for_state(&tid, "killed");
}

/// A word that comes when one attempt is over and the next has not begun is for the task.
#[test]
fn keeps_a_stop_between_two_attempts() {
    let world = World::new();
    world.worker(&["--concurrency", "1"]);
    for _ in 0..10 {
        let tid = world.submit(&["--retry", "1000", "--retry-base", "0.001", "--", "false"]);
        wait_until("it has been tried", || {
            world.task(&tid)["attempt"].as_u64() > Some(1)
        });
        world.raddle(["task", "stop", &tid]);
        world.wait_for_state(&tid, "cancelled");
    }
}

/// Asking twice is asking whether it was heard.
#[test]
fn a_second_stop_command_does_not_cancel_tasks() {
    let world = World::new();
    let (.., tid) = busy_worker(&world, "sleep 1.5");
    for _ in 0..3 {
        world.raddle(["worker", "stop", "--all", "--timeout", "0.1"]);
    }
    world.wait_for_state(&tid, "completed");
    assert_eq!(world.task(&tid)["attempt"], 1);
}

/// A worker may have been started by a shell that has other children, and was replaced by it.
#[test]
fn a_killed_runner_affects_only_its_task() {
    let world = World::new();
    let script = "sleep 601 & exec raddle worker start --no-detach --concurrency 1";
    let worker = world.start_bash(script);
    wait_until("it is there", || world.workers()[0]["tid"].is_string());
    let tid = world.submit(&["--name", "busy", "--", "sh", "-c", "sleep 602 & sleep 602"]);
    world.wait_for_state(&tid, "running");
    let find = |part: &str| {
        world
            .processes()
            .into_iter()
            .filter(|(_, line)| line.contains(part))
            .collect::<Vec<_>>()
    };
    signal(find(":busy:running")[0].0, libc::SIGKILL);
    world.wait_for_state(&tid, "killed");
    wait_until("its children are gone", || find("sleep 602").is_empty());
    let innocent = find("sleep 601");
    assert_eq!(innocent.len(), 1, "it has nothing to do with tasks");
    signal(innocent[0].0, libc::SIGKILL);
    worker.stop().ok();
}

/// It goes through three processes and a file, and none of them may hold it: they have 64 MiB for
/// everything.
#[test]
fn keeps_a_gibibyte_of_output() {
    let world = World::new();
    let script = "ulimit -d 65536; raddle run -- head -c 1073741824 /dev/zero | wc -c";
    assert_eq!(world.bash(script).ok().text(), "1073741824\n");
    let tid = world.raddle(["task", "list", "--json"]).ok().json()[0]["tid"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        world.task(&tid)["report"]["stdout_bytes"],
        1_073_741_824_u64
    );
    // And it can still be read from what was kept.
    assert_eq!(
        world
            .bash(&format!("raddle logs {tid} | wc -c"))
            .ok()
            .text(),
        "1073741824\n"
    );
}

/// The log of a background worker is on the disk that is full.
#[test]
fn a_worker_continues_when_its_log_cannot_be_written() {
    let world = World::new();
    std::fs::create_dir(world.path().join("small")).unwrap();
    let script = r#"
        set -eu
        mount -t tmpfs -o size=2m none small; cd small
        raddle worker start --concurrency 1 >../worker
        tid=$(raddle submit -- sh -c 'while ! [ -e ../go ]; do sleep 0.01; done; head -c 60000 /dev/zero')
        until raddle task status --json "$tid" | grep -q '"running"'; do sleep 0.02; done
        dd if=/dev/zero of=filler bs=1k 2>/dev/null || true
        dd if=/dev/zero of=crumb bs=1 2>/dev/null || true
        touch ../go
        # Time for the result, and the line that says so, to find no room a few times.
        sleep 1
        rm filler crumb
        raddle wait --timeout 20 "$tid" | cut -d' ' -f2
        raddle run -- echo and goes on
        raddle worker stop --all | cut -d' ' -f2"#;
    assert_eq!(
        world.bash_in_namespaces(script).ok().text(),
        "completed\nand goes on\ncompleted\n"
    );
}

/// The process that started it and read its output is gone.
#[test]
fn a_worker_with_a_full_stderr_pipe_continues_after_a_lost_lease() {
    let world = World::new();
    let script = r#"
        set -eu
        raddle worker start --no-detach --concurrency 1 2> >(exec true) >worker &
        worker=$!
        listed() { raddle worker list --json | grep -c '"tid"' || true; }
        until [ "$(listed)" = 1 ]; do sleep 0.02; done
        kill -STOP $worker
        until [ "$(listed)" = 0 ]; do sleep 0.1; done
        kill -CONT $worker
        tid=$(raddle submit -- true)
        raddle wait --timeout 20 "$tid" | cut -d' ' -f2
        kill $worker
        timeout 20 tail --pid=$worker -f /dev/null && echo left"#;
    assert_eq!(world.bash(script).ok().text(), "completed\nleft\n");
}

fn counts(world: &World) -> impl Fn(&str) -> u64 + use<> {
    let tasks = world.raddle(["status", "--json"]).ok().json()["tasks"].clone();
    move |state| tasks[state].as_u64().unwrap_or(0)
}

/// From the first descriptor that is missing to where the database cannot be opened.
#[test]
fn refuses_a_low_limit_of_descriptors() {
    let world = World::new();
    // `status` needs a database, and how many descriptors `run` needs to create one depends on what
    // it inherits.
    world.raddle(["run", "--", "true"]).ok();
    for command in [
        "run -- true",
        "status",
        "worker start --no-detach --idle-exit 0",
    ] {
        for limit in 4..=11 {
            let ran = world.bash(&format!("ulimit -n {limit}; exec raddle {command}"));
            let (said, is_short) = (&ran.stderr, ran.code == 125);
            assert!(
                !said.contains("panicked") && !said.contains("backtrace"),
                "{command} with {limit}: {said}"
            );
            assert!(ran.code == 0 || is_short, "{command} with {limit}: {ran:?}");
            assert_eq!(
                is_short,
                said.contains("Too many open files"),
                "{command} with {limit}: {said}"
            );
            assert_eq!(
                is_short,
                said.contains("ulimit -n"),
                "{command} with {limit}: {said}"
            );
        }
    }
}

/// A worker that the system gives no descriptors has done nothing for its tasks, and nothing to
/// them.
#[test]
fn a_worker_without_descriptors_releases_tasks() {
    let world = World::new();
    let mut starved = 0;
    // From too few to open the database to enough to run.
    for limit in 14..=22 {
        world
            .bash("raddle submit --array 1-4 -- true >/dev/null")
            .ok();
        let script = format!(
            "ulimit -n {limit}; exec raddle worker start --no-detach --idle-exit 0 --concurrency 2"
        );
        let ran = world.bash(&script);
        let count = counts(&world);
        assert_eq!(
            count("failed") + count("killed"),
            0,
            "with {limit}: {ran:?}"
        );
        if ran.code != 0 {
            assert!(
                ran.stderr.contains("Too many open files"),
                "with {limit}: {ran:?}"
            );
            starved += usize::from(ran.code == 125 && ran.stderr.contains("releasing a task"));
        }
    }
    assert!(
        starved > 0,
        "some were claimed by a worker that could not run them"
    );
    world.worker(&[]);
    wait_until("all of them have run", || {
        counts(&world)("completed") == 9 * 4
    });
}

/// Threads count as processes, and a worker has some.
#[test]
fn a_worker_without_processes_releases_tasks() {
    if !is_root("become a user who has no processes") {
        return;
    }
    let world = World::new();
    let script = r#"
        set -eu
        cp "$(command -v raddle)" raddle; chmod a+rx raddle .
        mkdir open; chown 4711 open; cd open
        as() { setpriv --reuid=4711 --regid=4711 --clear-groups "$@"; }
        for limit in 2 3 4 5; do
            as ../raddle submit --array 1-4 -- true >/dev/null
            code=0
            (ulimit -u $limit; as ../raddle worker start --no-detach --idle-exit 0 2>../words >/dev/null) || code=$?
            as ../raddle status --json | jq -c "[$code, .tasks.failed, .tasks.killed]"
            grep -q 'ulimit -u' ../words || cat ../words
        done
        as ../raddle worker start >/dev/null
        until as ../raddle status --json | jq -e '.tasks.completed == 16' >/dev/null; do sleep 0.1; done
        as ../raddle worker stop --all | cut -d' ' -f2"#;
    assert_eq!(
        world.bash(script).ok().text(),
        format!("{}completed\n", "[125,0,0]\n".repeat(4))
    );
}

/// Nothing is begun, so nothing may be begun behind the back of the one who was told so.
#[test]
fn a_run_without_descriptors_reports_it_and_leaves_no_process() {
    let world = World::new();
    world.raddle(["run", "--", "true"]).ok();
    let mut refused = 0;
    for limit in 11..=18 {
        let ran = world.bash(&format!(
            "ulimit -n {limit}; raddle run -- touch ran-{limit}"
        ));
        let has_run = world.path().join(format!("ran-{limit}")).exists();
        // A command may start more processes than can be followed.
        assert!(has_run || ran.code != 0, "with {limit}: {ran:?}");
        if ran.code != 0 {
            refused += usize::from(!has_run);
            let ran = ran.code(125).stderr_contains("Too many open files");
            assert!(!ran.stderr.contains("unable to open"), "{ran:?}");
        }
        let count = counts(&world);
        assert_eq!(
            count("created") + count("running") + count("spawning"),
            0,
            "with {limit}"
        );
    }
    assert!(refused > 0, "some of these are too few");
}

/// The directory for output belongs to another user, or is no directory.
#[test]
fn a_task_ends_although_its_output_cannot_be_stored() {
    let world = World::new();
    std::fs::create_dir(world.path().join(".raddle")).unwrap();
    world.file(".raddle/raddle.db-out", "");
    let worker = world.worker(&["--concurrency", "1"]);
    let tid = world.submit(&[
        "--",
        "sh",
        "-c",
        "echo begin; sleep 0.2; head -c 100000 /dev/zero",
    ]);
    world.wait_for_state(&tid, "completed");
    let events = world
        .raddle([
            "queue",
            "peek",
            "raddle.tasks.log",
            "--json",
            "--limit",
            "100",
        ])
        .ok();
    assert!(events.text().contains("output_lost"), "{}", events.text());
    world
        .raddle(["logs", &tid])
        .ok()
        .stderr_contains("standard output could not be kept");
    world
        .raddle(["run", "--", "head", "-c", "100000", "/dev/zero"])
        .ok()
        .stderr_contains("could not be kept");
    world.raddle(["worker", "stop", &worker]).ok();
    world
        .raddle(["run", "--", "head", "-c", "100000", "/dev/zero"])
        .ok()
        .stderr_contains("could not be kept");
}

/// A task whose completion the broker refuses goes back, instead of waiting in a worker that has
/// nothing to do.
#[test]
fn requeues_a_task_whose_completion_is_refused() {
    let world = World::new();
    let script = r#"
        set -eu
        raddle run -- true
        db() { sqlite3 -cmd '.timeout 20000' .raddle/raddle.db "$1"; }
        for table in 'INSERT ON finished' 'DELETE ON active'; do
            raddle worker start --concurrency 1 >worker
            tid=$(raddle submit -- sh -c 'echo ran >>ran; while ! [ -e go ]; do sleep 0.01; done')
            until raddle task status --json "$tid" | grep -q '"running"'; do sleep 0.02; done
            db "CREATE TRIGGER no BEFORE $table BEGIN SELECT RAISE(ABORT, 'not today'); END"
            touch go
            until grep -q 'not today' .raddle/worker-"$(cat worker)".log; do sleep 0.02; done
            # Either the worker has released it, or the worker is gone and another may reclaim it.
            db "DROP TRIGGER no"
            raddle worker start --concurrency 1 >another
            raddle wait --timeout 20 "$tid" | cut -d' ' -f2
            raddle worker stop --all >/dev/null
            rm go
        done"#;
    assert_eq!(world.bash(script).ok().text(), "completed\ncompleted\n");
}

/// It is only a file, and a user may delete it.
#[test]
fn repairs_a_truncated_notifier_file() {
    let world = World::new();
    let worker = world
        .raddle(["worker", "start", "--json", "--concurrency", "2"])
        .ok()
        .json();
    let tid = world.submit(&["--", "sh", "-c", "while ! [ -e go ]; do sleep 0.01; done"]);
    world.wait_for_state(&tid, "running");
    world.bash("truncate -s 0 .raddle/raddle.db-state").ok();
    assert_eq!(
        world
            .raddle(["run", "--", "echo", "still here"])
            .ok()
            .text(),
        "still here\n"
    );
    world.file("go", "");
    world.wait_for_state(&tid, "completed");
    assert_eq!(world.task(&tid)["attempt"], 1);
    let listed = world.workers();
    assert_eq!(
        (&listed[0]["tid"], &listed[0]["pid"]),
        (&worker["tid"], &worker["pid"])
    );
    world
        .raddle(["worker", "stop", worker["tid"].as_str().unwrap()])
        .ok();
}

/// A limit on the size of files is no reason to vanish.
#[test]
fn a_file_size_limit_does_not_end_a_worker() {
    let world = World::new();
    let script = r#"
        set -eu
        (ulimit -f 2000; exec raddle worker start --no-detach --concurrency 1 >worker 2>words) &
        worker=$!
        tid=$(raddle submit -- sh -c 'ulimit -f; head -c 5000000 /dev/zero')
        raddle wait --timeout 30 "$tid" | cut -d' ' -f2
        raddle queue peek raddle.tasks.log --json --limit 100 | grep -o output_lost
        raddle run -- echo next
        kill $worker; wait $worker && echo left
        grep -c 'ulimit -f' words >/dev/null && echo told"#;
    assert_eq!(
        world.bash(script).ok().text(),
        "completed\noutput_lost\nnext\nleft\ntold\n"
    );
}

/// A process that waits for a lock of the shell must not wait for the worker.
#[test]
fn a_background_worker_inherits_no_descriptors() {
    let world = World::new();
    let script =
        "exec 9>lock; flock 9; raddle worker start >/dev/null; exec 9>&-; flock -n lock echo free";
    assert_eq!(world.bash(script).ok().text(), "free\n");
}
