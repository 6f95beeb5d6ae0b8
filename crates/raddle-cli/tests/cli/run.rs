//! `raddle run`.

use std::time::{Duration, Instant};

use raddle_testnet::is_root;

use crate::{
    shape::{shape, snapshot},
    world::{World, wait_until},
};

#[test]
fn passes_on_output_and_exit_code() {
    let world = World::new();
    let ran = world
        .raddle(["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"])
        .code(7);
    assert_eq!((ran.text(), ran.stderr.as_str()), ("out\n", "err\n"));
    let ran = world
        .raddle(["run", "echo", "--name", "no flag of ours"])
        .ok();
    assert_eq!(
        (ran.text(), ran.stderr.as_str()),
        ("--name no flag of ours\n", "")
    );
    world
        .raddle(["run", "--", "sh", "-c", "kill -SEGV $$"])
        .code(139)
        .stderr_contains("signal 11");
}

#[test]
fn a_task_runs_in_the_directory_of_its_submitter_and_sees_its_id() {
    let world = World::new();
    let here = world.path().canonicalize().unwrap();
    let worker = world.worker(&[]);
    let script = "pwd; echo $RADDLE_TID $RADDLE_ATTEMPT $A";
    let ran = world
        .raddle([
            "run",
            "--no-inline",
            "--env",
            "A=b=c",
            "--",
            "sh",
            "-c",
            script,
        ])
        .ok();
    let lines = ran.lines();
    assert_eq!(lines[0], here.to_str().unwrap());
    let words: Vec<&str> = lines[1].split(' ').collect();
    assert_eq!((words[0].len(), words[1], words[2]), (19, "1", "b=c"));
    assert_eq!(
        world.task(words[0])["worker"],
        worker.as_str(),
        "the live worker has run it"
    );
    let ran = world
        .raddle(["run", "--no-inline", "--cwd", "/", "--", "pwd"])
        .ok();
    assert_eq!(ran.text(), "/\n");
}

#[test]
fn a_command_sees_the_environment_of_its_caller_whether_a_worker_is_alive_or_not() {
    let world = World::new();
    world.file(
        "show",
        "printenv | sort | grep -v '^\\(RADDLE_TID\\|RADDLE_WORKER\\|RADDLE_FENCING_TOKEN\\|TRACEPARENT\\|_\\)='; pwd",
    );
    let run = |flags: &str| {
        let ran = world
            .bash(&format!(
                "export CALLER=me; raddle run {flags} --env SPEC=it -- sh show"
            ))
            .ok();
        ran.text().to_owned()
    };
    let alone = run("");
    assert!(
        alone.contains("CALLER=me\n") && alone.contains("SPEC=it\n"),
        "{alone}"
    );
    world
        .bash("CALLER=another ONLY=worker raddle worker start")
        .ok();
    assert_eq!(run(""), alone);
    // A worker runs what is left to it, in its own environment.
    for flags in ["--no-inline", "--queue default"] {
        let shown = run(flags);
        assert!(
            shown.contains("ONLY=worker\n") && shown.contains("CALLER=another\n"),
            "{flags}: {shown}"
        );
        assert!(shown.contains("SPEC=it\n"), "{flags}: {shown}");
    }
    let tid = world
        .bash("CALLER=me raddle submit -- sh show")
        .ok()
        .text()
        .trim()
        .to_owned();
    let shown = world
        .raddle(["result", "--wait", &tid])
        .ok()
        .text()
        .to_owned();
    assert!(shown.contains("CALLER=another\n"), "{shown}");
}

#[test]
fn run_leaves_tasks_with_requirements_to_workers() {
    let world = World::new();
    let run = world.start([
        "run",
        "--requires",
        "gpu",
        "--",
        "sh",
        "-c",
        "echo $RADDLE_TID",
    ]);
    wait_until("it says what is missing", || {
        run.stderr().contains(" waits: ")
    });
    let worker = world.worker(&["--caps", "gpu"]);
    let tid = run.finish().ok().text().trim().to_owned();
    assert_eq!(world.task(&tid)["worker"], worker.as_str());
    world
        .raddle(["run", "--queue-url", "mem://", "--no-inline", "--", "true"])
        .code(2)
        .stderr_contains("mem://");
}

/// A file that is opened in place of a closed standard descriptor would be used as it: a database
/// as the terminal.
#[test]
fn closed_standard_descriptors_are_not_reused() {
    let world = World::new();
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let command = "cat; echo hello; echo $RADDLE_TID > tid; ls /nowhere";
        let ran = world
            .bash(&format!(
                "raddle run -- sh -c '{command}' {closed}; echo $?"
            ))
            .ok();
        assert_eq!(ran.lines().last(), Some(&"2"), "{closed}");
        let tid = world.read("tid");
        assert_eq!(
            world.raddle(["result", tid.trim()]).text(),
            "hello\n",
            "{closed}"
        );
    }
    let checked = world
        .bash("sqlite3 .raddle/raddle.db 'PRAGMA integrity_check; SELECT count(*) FROM tasks'")
        .ok();
    assert_eq!(checked.text(), "ok\n4\n");
}

#[test]
fn a_task_runs_in_a_directory_that_only_its_submitter_can_enter() {
    let allowed = |status: &str| {
        let line = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed_list:"));
        line.expect("the kernel says where a process may run")
            .to_owned()
    };
    let own = allowed(&std::fs::read_to_string("/proc/self/status").unwrap());
    let ran = World::new()
        .raddle(["run", "--", "cat", "/proc/self/status"])
        .ok();
    assert_eq!(
        allowed(ran.text()),
        own,
        "though its runner began where its parent was not"
    );
}

#[test]
fn prints_output_as_it_is_written() {
    let world = World::new();
    let started = world.start(["run", "--", "sh", "-c", "echo first; sleep 600"]);
    wait_until("the first line is shown", || started.stdout() == "first\n");
    started.signal(libc::SIGINT);
    started
        .finish()
        .code(130)
        .stderr_contains("stopping task")
        .stderr_contains("stopped on request");
}

/// The result does not depend on the user.
#[test]
fn prints_stderr_as_it_is_written() {
    let world = World::new();
    let shown = |flags: &[&str]| {
        let started = world.start(
            [
                &["run"],
                flags,
                &["--", "sh", "-c", "echo first >&2; sleep 600"],
            ]
            .concat(),
        );
        wait_until("the first line is shown", || started.stderr() == "first\n");
        started.signal(libc::SIGINT);
        assert_eq!(
            started
                .finish()
                .code(130)
                .stderr_contains("stopped on request")
                .text(),
            ""
        );
    };
    shown(&[]);
    world.worker(&[]);
    shown(&["--no-inline"]);
}

#[test]
fn a_second_interrupt_kills_a_task_that_ignores_the_first() {
    let world = World::new();
    let started = world.start([
        "run",
        "--",
        "sh",
        "-c",
        "trap '' TERM; echo deaf; while :; do sleep 1; done",
    ]);
    wait_until("it does not listen", || started.stdout() == "deaf\n");
    started.signal(libc::SIGTERM);
    wait_until("it was asked to stop", || {
        started.stderr().contains("stopping task")
    });
    started.signal(libc::SIGINT);
    started.finish().code(137).stderr_contains("killing task");
}

#[test]
fn an_interrupt_stops_a_task_that_a_worker_runs() {
    let world = World::new();
    world.worker(&[]);
    let started = world.start([
        "run",
        "--no-inline",
        "--name",
        "far",
        "--",
        "sh",
        "-c",
        "echo begun; sleep 600",
    ]);
    wait_until("it runs", || started.stdout() == "begun\n");
    started.signal(libc::SIGINT);
    started.finish().code(130);
    let tasks = world
        .raddle(["task", "list", "--json", "--name", "far"])
        .ok()
        .json();
    assert_eq!(tasks[0]["state"], "cancelled");
}

/// The mask is inherited across exec.
#[test]
fn unblocks_signals_that_the_parent_has_blocked() {
    let world = World::new();
    let start = |args: &str| world.start_bash(&format!("exec env --block-signal raddle {args}"));
    let run = start("run -- sh -c 'echo begun; sleep 600'");
    wait_until("it runs", || run.stdout() == "begun\n");
    run.stop().code(130).stderr_contains("stopped on request");
    let worker = start("worker start --no-detach");
    worker.tid();
    worker.stop().ok();
}

/// Otherwise the task would go on at its worker, or be run again by the next one.
#[test]
fn ctrl_backslash_ends_the_task() {
    let world = World::new();
    let quit = |name: &str, flags: &[&str]| {
        let command = ["--name", name, "--", "sh", "-c", "echo begun; sleep 600"];
        let started = world.start_group([&["run"], flags, &command].concat());
        wait_until("it runs", || started.stdout() == "begun\n");
        assert_eq!(
            crate::world::kill(-(started.pid() as i32), libc::SIGQUIT),
            0,
            "it leads a group"
        );
        started
            .finish()
            .code(130)
            .stderr_contains("stopped on request");
        let tasks = world
            .raddle(["task", "list", "--json", "--name", name])
            .ok()
            .json();
        assert_eq!(tasks[0]["state"], "cancelled");
    };
    quit("inline", &[]);
    world.worker(&[]);
    quit("far", &["--no-inline"]);
}

/// Ctrl-C at a terminal reaches the program and all who are in its group. The task is asked to
/// stop, and not interrupted itself.
fn ctrl_c_stops_and_the_second_kills(world: &World, flags: &[&str]) {
    let start = |name: &str, deaf: &str| {
        let script =
            format!("trap 'echo interrupted' INT; {deaf}; echo begun; while :; do sleep 0.1; done");
        let started = world.start_group(
            [
                &["run"],
                flags,
                &["--name", name, "--", "sh", "-c", &script],
            ]
            .concat(),
        );
        wait_until("it runs", || started.stdout() == "begun\n");
        started.ctrl_c();
        wait_until("it was asked to stop", || {
            started.stderr().contains("stopping task")
        });
        started
    };
    let state = |name| {
        world
            .raddle(["task", "list", "--json", "--name", name])
            .ok()
            .json()[0]["state"]
            .clone()
    };
    let ran = start("once", ":")
        .finish()
        .code(130)
        .stderr_contains("stopped on request");
    assert_eq!((ran.text(), state("once")), ("begun\n", "cancelled".into()));
    let started = start("twice", "trap '' TERM");
    started.ctrl_c();
    let ran = started.finish().code(137).stderr_contains("killing task");
    assert_eq!((ran.text(), state("twice")), ("begun\n", "killed".into()));
}

#[test]
fn ctrl_c_stops_a_task_and_the_second_kills_it() {
    ctrl_c_stops_and_the_second_kills(&World::new(), &[]);
}

#[test]
fn ctrl_c_stops_a_task_that_a_worker_runs_and_the_second_kills_it() {
    let world = World::new();
    let worker = world.worker(&[]);
    ctrl_c_stops_and_the_second_kills(&world, &["--no-inline"]);
    let tasks = world
        .raddle(["task", "list", "--json", "--name", "twice"])
        .ok()
        .json();
    assert_eq!(tasks[0]["worker"], worker.as_str());
}

#[test]
fn an_interrupted_task_with_on_stop_requeue_stays_queued() {
    let world = World::new();
    let started = world.start([
        "run",
        "--on-stop",
        "requeue",
        "--",
        "sh",
        "-c",
        "echo begun; sleep 600",
    ]);
    wait_until("it runs", || started.stdout() == "begun\n");
    started.signal(libc::SIGINT);
    let ran = started.finish().code(130).stderr_contains("to its queue");
    assert_eq!(ran.text(), "begun\n");
    let tasks = world.raddle(["task", "list", "--json"]).ok().json();
    assert_eq!(
        (&tasks[0]["state"], &tasks[0]["attempt"]),
        (&"created".into(), &1.into())
    );

    world.worker(&[]);
    let flags = ["--no-inline", "--on-stop", "requeue", "--name", "far"];
    let started = world.start(
        [
            &["run"],
            &flags[..],
            &["--", "sh", "-c", "echo begun; sleep 600"],
        ]
        .concat(),
    );
    wait_until("it runs", || started.stdout() == "begun\n");
    started.signal(libc::SIGINT);
    started
        .finish()
        .code(130)
        .stderr_contains("back in its queue");
}

#[test]
fn a_timeout_has_its_own_exit_code() {
    let world = World::new();
    let begun = Instant::now();
    world
        .raddle(["run", "--timeout", "300ms", "--", "sleep", "600"])
        .code(124)
        .stderr_contains("timeout of 300ms");
    let deaf = "trap '' TERM; while :; do sleep 0.1; done";
    world
        .raddle(["run", "--timeout", "300ms", "--", "sh", "-c", deaf])
        .code(124);
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn limits_end_a_task_that_exceeds_them() {
    let world = World::new();
    // Twenty sleepers do no harm if the limit does not hold.
    let many = "for i in $(seq 20); do sleep 600 & done; wait";
    world
        .raddle(["run", "--max-procs", "10", "--", "sh", "-c", many])
        .code(137)
        .stderr_contains("max_procs");
    let large = "head -c 300M /dev/zero | tail | sleep 600";
    world
        .raddle(["run", "--memory", "50", "--", "sh", "-c", large])
        .code(137)
        .stderr_contains("memory");
    let ran = world
        .raddle(["run", "--max-fds", "64", "--", "sh", "-c", "ulimit -n"])
        .ok();
    assert_eq!(ran.text(), "64\n");
}

#[test]
fn retries_failures() {
    let world = World::new();
    let script = "echo $RADDLE_ATTEMPT; test $RADDLE_ATTEMPT = 3";
    let ran = world
        .raddle([
            "run",
            "--retry",
            "5",
            "--retry-base",
            "20ms",
            "--",
            "sh",
            "-c",
            script,
        ])
        .ok();
    assert_eq!(ran.text(), "1\n2\n3\n");
    let ran = world
        .raddle([
            "run",
            "--retry",
            "1",
            "--backoff",
            "constant",
            "--retry-base",
            "0",
            "--",
            "false",
        ])
        .code(1);
    assert_eq!(ran.stderr, "");
}

#[test]
fn piped_standard_input_reaches_the_task_with_and_without_a_worker() {
    let world = World::new();
    world.file("input", "from a file\n");
    let passes_on = |run: &str| {
        let ran = world
            .bash(&format!(
                "echo hi | {run} -- cat; {run} -- cat < input; {run} -- cat"
            ))
            .ok();
        assert_eq!((ran.text(), ran.stderr.as_str()), ("hi\nfrom a file\n", ""));
        for flags in [&[][..], &["--stdin"]] {
            let args = [
                &run.split(' ').skip(1).collect::<Vec<_>>()[..],
                flags,
                &["--", "wc", "-c"],
            ]
            .concat();
            let ran = world.raddle_with_input(&args, &[b'x'; 100_000]).ok();
            assert_eq!(ran.text().trim(), "100000");
        }
    };
    passes_on("raddle run");
    world.worker(&[]);
    passes_on("raddle run");
    passes_on("raddle run --no-inline");
}

#[test]
fn refuses_standard_input_that_cannot_be_passed_on() {
    let world = World::new();
    let large = vec![b'x'; 16 * 1024 * 1024 + 1];
    for args in [&["run", "--stdin", "--", "cat"][..], &["run", "--", "cat"]] {
        world
            .raddle_with_input(args, b"\xff")
            .code(2)
            .stderr_contains("not UTF-8");
        world
            .raddle_with_input(args, &large)
            .code(2)
            .stderr_contains("16 MiB");
    }
    assert!(
        !world.path().join(".raddle").exists(),
        "nothing was submitted"
    );
}

#[test]
fn run_notes_that_it_waits_for_the_end_of_its_input() {
    let world = World::new();
    let script = "(until test -e go; do sleep 0.05; done; echo hi) | raddle run -- cat";
    let started = world.start_bash(script);
    wait_until("it says so", || {
        started
            .stderr()
            .contains("waiting for the end of standard input")
    });
    world.file("go", "");
    assert_eq!(started.finish().ok().text(), "hi\n");
}

#[test]
fn passes_on_binary_output() {
    let world = World::new();
    let ran = world.raddle(["run", "--", "printf", r"a\377\000b"]).ok();
    assert_eq!(ran.stdout, b"a\xff\0b");
    let record = world
        .raddle(["run", "--json", "--", "printf", r"a\377b"])
        .ok()
        .json();
    assert_eq!(record["stdout"], "a\u{fffd}b");
    assert_eq!(record["report"]["stdout_bytes"], 3);
}

#[test]
fn passes_on_large_output() {
    let world = World::new();
    let ran = world
        .raddle(["run", "--", "sh", "-c", "seq 1 1000000"])
        .ok();
    assert_eq!(ran.stdout.len(), 6_888_896);
    assert!(ran.text().ends_with("\n999999\n1000000\n"));
}

#[test]
fn the_json_record_has_a_stable_shape() {
    let world = World::new();
    let args = [
        "run",
        "--json",
        "--name",
        "n",
        "--timeout",
        "1m",
        "--meta",
        "k=v",
        "--",
        "sh",
        "-c",
        "echo o; exit 3",
    ];
    let ran = world.raddle(args).code(3);
    snapshot!("json_run", shape(&world, &ran.json()));
    assert_eq!(ran.stderr, "");
}

#[test]
fn no_wait_prints_only_the_id() {
    let world = World::new();
    let tid = world
        .raddle(["run", "--no-wait", "--", "true"])
        .ok()
        .text()
        .trim()
        .to_owned();
    assert_eq!(world.task(&tid)["state"], "created");
}

#[test]
fn a_closed_pipe_is_not_an_error_and_ends_the_task() {
    let world = World::new();
    let script =
        "set -o pipefail; raddle run --name chatter -- yes | head -1; echo ${PIPESTATUS[0]}";
    let ran = world.bash(script).ok();
    assert_eq!((ran.text(), ran.stderr.as_str()), ("y\n0\n", ""));
    let tasks = world
        .raddle(["task", "list", "--json", "--name", "chatter"])
        .ok()
        .json();
    assert_eq!(tasks[0]["state"], "cancelled");
    for command in [
        "task list",
        "status --json",
        "queue list",
        "--help",
        "completions bash",
        "doctor",
    ] {
        let ran = world
            .bash(&format!(
                "raddle {command} | head -0; echo ${{PIPESTATUS[0]}}"
            ))
            .ok();
        assert_eq!((ran.text(), ran.stderr.as_str()), ("0\n", ""), "{command}");
    }
}

#[test]
fn a_run_continues_with_another_worker_when_the_first_is_killed() {
    let world = World::new();
    let worker = world
        .raddle(["worker", "start", "--json", "--concurrency", "1"])
        .ok()
        .json();
    // The first task keeps the only slot; the second waits behind it.
    let script = "echo begun >> begun; test $RADDLE_ATTEMPT != 1 || sleep 600";
    let first = world.start(["run", "--no-inline", "--", "sh", "-c", script]);
    wait_until("the first runs", || world.path().join("begun").exists());
    let second = world.start(["run", "--no-inline", "--", "echo", "second"]);
    crate::world::kill(worker["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
    world.worker(&[]);
    assert_eq!(second.finish().ok().text(), "second\n");
    first.finish().ok();
    assert_eq!(world.read("begun"), "begun\nbegun\n");
}

#[test]
fn tasks_submitted_by_a_task_are_its_children() {
    let world = World::new();
    let ran = world
        .raddle([
            "run", "--name", "parent", "--", "raddle", "run", "--", "true",
        ])
        .ok();
    assert_eq!(ran.stderr, "");
    let tasks = world.raddle(["task", "list", "--json"]).ok().json();
    assert_eq!(tasks[0]["parent"], tasks[1]["tid"]);
}

/// It would wait for the slot that it has itself.
#[test]
fn a_run_inside_a_task_needs_no_slot() {
    let world = World::new();
    world.worker(&["--concurrency", "1"]);
    let ran = world
        .raddle([
            "run",
            "--no-inline",
            "--timeout",
            "30",
            "--",
            "raddle",
            "run",
            "--",
            "sh",
            "-c",
            "echo $RADDLE_TID",
        ])
        .ok();
    let inner = ran.text().trim().to_owned();
    let outer = world.task(&inner)["parent"].as_str().unwrap().to_owned();
    assert_eq!(world.task(&outer)["state"], "completed");
}

/// Whether a process is stopped.
fn stands_still(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().starts_with(" T")
}

/// A task that begins once, and ends when a file appears.
const ONCE: &str = "echo begun >> begun; until test -e go; do sleep 0.05; done; echo ended";

/// However long that is: longer than a lease.
#[test]
fn a_suspended_run_resumes_its_task() {
    let world = World::new();
    let started = world.start(["run", "--name", "slow", "--", "sh", "-c", ONCE]);
    wait_until("it runs", || world.path().join("begun").exists());
    started.signal(libc::SIGTSTP);
    wait_until("it is stopped", || stands_still(started.pid()));
    std::thread::sleep(Duration::from_millis(6500));
    let tasks = world
        .raddle(["task", "list", "--json", "--name", "slow"])
        .ok()
        .json();
    assert_eq!(
        (&tasks[0]["state"], &tasks[0]["paused"]),
        (&"running".into(), &true.into())
    );
    // A worker that comes meanwhile leaves it alone.
    world.worker(&[]);
    world.raddle(["run", "--", "true"]).ok();
    started.signal(libc::SIGCONT);
    wait_until("it goes on", || {
        world
            .raddle(["task", "list", "--json", "--name", "slow"])
            .ok()
            .json()[0]["paused"]
            == false
    });
    world.file("go", "");
    let ran = started.finish().ok();
    assert_eq!((ran.text(), ran.stderr.as_str()), ("ended\n", ""));
    assert_eq!(world.read("begun"), "begun\n");
}

/// The user who stopped it does not want it to run.
#[test]
fn killing_a_suspended_run_leaves_its_task_paused() {
    let world = World::new();
    let started = world.start(["run", "--name", "slow", "--", "sh", "-c", ONCE]);
    wait_until("it runs", || world.path().join("begun").exists());
    started.signal(libc::SIGTSTP);
    wait_until("it is stopped", || stands_still(started.pid()));
    started.signal(libc::SIGKILL);
    started.finish().code(137);
    world.worker(&[]);
    let task = || {
        world
            .raddle(["task", "list", "--json", "--name", "slow"])
            .ok()
            .json()[0]
            .clone()
    };
    wait_until("it is taken back", || task()["state"] == "created");
    assert_eq!(task()["paused"], true);
    world.file("go", "");
    let tid = task()["tid"].as_str().unwrap().to_owned();
    world.raddle(["task", "resume", &tid]).ok();
    world.raddle(["wait", &tid]).ok();
    assert_eq!(world.read("begun"), "begun\nbegun\n");
}

/// It would read its own output and write it again, without end.
#[test]
fn refuses_a_task_that_waits_for_itself() {
    let world = World::new();
    let inner = "raddle run --unique-key k -- true; echo $?; raddle logs -f $RADDLE_TID; echo $?; raddle wait $RADDLE_TID; echo $?;
                 raddle result --wait $RADDLE_TID; echo $?; raddle logs $RADDLE_TID >/dev/null 2>&1; echo $?";
    let outer = world
        .raddle([
            "run",
            "--unique-key",
            "k",
            "--timeout",
            "30",
            "--",
            "sh",
            "-c",
            inner,
        ])
        .ok();
    assert_eq!(outer.lines(), ["2", "2", "2", "2", "0"]);
    assert_eq!(
        outer.stderr.matches("would wait for itself").count(),
        4,
        "{}",
        outer.stderr
    );
    // Nor does a task that it submits and waits for.
    let inner = "raddle run -- raddle run --unique-key k -- true";
    let outer = world
        .raddle([
            "run",
            "--unique-key",
            "k",
            "--timeout",
            "30",
            "--",
            "sh",
            "-c",
            inner,
        ])
        .code(2);
    assert_eq!(
        outer.stderr.matches("would wait for itself").count(),
        1,
        "{}",
        outer.stderr
    );
}

/// A program that is allowed to becomes another user, whose processes are not ours to kill.
#[test]
fn names_a_setuid_process_that_it_cannot_kill() {
    if !is_root("make a program by which others become root") {
        return;
    }
    let world = World::new();
    let script = "set -e; cp $(command -v raddle) r; cp $(command -v setpriv) become; chmod 4755 become; chmod 755 r; chmod 777 .
                  exec setpriv --reuid 65534 --regid 65534 --clear-groups ./r run --timeout 200ms -- \\
                      ./become --reuid 0 --clear-groups sh -c 'echo $$; trap \"\" TERM; while :; do sleep 0.2; done'";
    let started = world.start_bash(script);
    wait_until("it says who cannot be killed", || {
        started.stderr().contains("cannot kill process")
    });
    let pid: i32 = started.stdout().trim().parse().unwrap();
    assert!(
        started.stderr().contains(&pid.to_string()),
        "{}",
        started.stderr()
    );
    crate::world::kill(pid, libc::SIGKILL);
    started.finish().code(124);
}

/// A task that has begun must not begin again because its output could not be stored.
#[test]
fn stops_a_task_whose_output_cannot_be_written() {
    let world = World::new();
    let run = |flags: &str| {
        let command = "sh -c 'echo begun >>side; echo hi; sleep 30; echo ended >>side' >/dev/full";
        world
            .bash(&format!("raddle run {flags} -- {command}"))
            .code(125)
            .stderr_contains("cannot write the output");
    };
    run("");
    // The same with a worker that runs it.
    world.worker(&["--concurrency", "1"]);
    run("--no-inline");
    world.raddle(["worker", "stop", "--all"]).ok();
    // A task that has ended before the check stays ended.
    world
        .bash("raddle run -- echo hi >/dev/full")
        .code(125)
        .stderr_contains("cannot write the output");
    let tasks = world.raddle(["task", "list", "--json"]).ok().json();
    let states: Vec<_> = tasks
        .as_array()
        .unwrap()
        .iter()
        .map(|task| task["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["completed", "cancelled", "cancelled"]);
    world
        .raddle(["worker", "start", "--no-detach", "--idle-exit", "0"])
        .ok();
    assert_eq!(world.read("side"), "begun\nbegun\n");
}

/// A command that waits for the database can be interrupted, and has done nothing then.
#[test]
fn an_interrupt_while_the_database_is_locked_ends_the_run() {
    let world = World::new();
    // The first has to be completed by the second, which takes the lock to open it; the third only
    // to write.
    for round in 1..=3 {
        if round != 2 {
            world.raddle(["run", "--", "true"]).ok();
        }
        let script = "exec 9<.raddle/raddle.db-state; flock 9; echo >locked; sleep 30";
        let holder = world.start_bash(script);
        wait_until("it is locked", || world.path().join("locked").exists());
        let run = world.start(["run", "--", "touch", "ran"]);
        std::thread::sleep(std::time::Duration::from_millis(300));
        run.signal(libc::SIGINT);
        let began = std::time::Instant::now();
        run.finish().code(130).stderr_contains("interrupted");
        assert!(
            began.elapsed() < std::time::Duration::from_secs(5),
            "{:?}",
            began.elapsed()
        );
        for (pid, _) in world.processes() {
            crate::world::kill(pid, libc::SIGKILL);
        }
        holder.finish();
        std::fs::remove_file(world.path().join("locked")).unwrap();
    }
    assert_eq!(
        world.raddle(["status", "--json"]).ok().json()["tasks"]["created"],
        0
    );
    assert!(!world.path().join("ran").exists());
}
