//! The one-liners that people type when something is stuck, as they type them. They see no
//! processes but their own.
//!
//! Each line of the emergency section that needs no terminal is run as it is written, and so is
//! each that `docs/how-to/operations.md` has instead.

use crate::world::{CommandOutput, World};

/// A worker with a task that runs; then the one-liners.
fn with_a_running_task(one_liners: &str) -> (World, CommandOutput) {
    let world = World::new();
    let script = format!(
        "raddle worker start --concurrency 2 > worker.tid
        raddle submit --name analyze -- sleep 600 > task.tid
        until raddle task list --status running --json | grep -q analyze; do sleep 0.05; done
        {one_liners}"
    );
    let ran = world.bash_in_namespaces(&script);
    (world, ran)
}

/// The output of `uniq -c`: counts and lines.
fn counts(world: &World, name: &str) -> Vec<(usize, String)> {
    let counted = world.read_trimmed(name);
    let count = |line: &str| {
        let (count, what) = line
            .trim_start()
            .split_once(' ')
            .unwrap_or((line.trim_start(), ""));
        (count.parse().unwrap(), what.to_owned())
    };
    counted.lines().map(count).collect()
}

#[test]
fn finds_tasks_with_ps_and_pgrep() {
    let (world, ran) = with_a_running_task(
        r#"ps aux | grep "raddle-.*:analyze"
        top -b -n 1 -p $(pgrep -f "raddle-" -d,) > top
        pgrep -f "raddle-" | wc -l > processes
        ps aux | grep raddle- | wc -l > lines
        ps aux | grep raddle- | awk -F'[-:]' '{print $3}' | sort | uniq -c > fields3
        ps aux | grep raddle- | awk -F'[-:]' '{print $4}' | sort | uniq -c > fields4
        ps -eo args | grep '^raddle-' | cut -d: -f2 | sort | uniq -c > names
        ps -eo args | grep '^raddle-' | cut -d: -f3 | sort | uniq -c > statuses"#,
    );
    let ran = ran.ok();
    let title = format!(
        "raddle-{}:analyze:running",
        &world.read_trimmed("task.tid")[9..]
    );
    assert!(ran.text().contains(&title), "{}", ran.text());
    let processes: usize = world.read_trimmed("processes").parse().unwrap();
    // `ps aux` shows the `grep` as well, if that has begun.
    let lines = processes..=processes + 1;
    assert!(
        lines.contains(&world.read_trimmed("lines").parse().unwrap()),
        "{} of {processes}",
        world.read_trimmed("lines")
    );
    // The first fifteen letters of a title, which is all there is room for.
    let shown = world.read_trimmed("top").matches(" raddle-").count();
    assert_eq!(shown, processes, "{}", world.read_trimmed("top"));
    // The time of day in a line of `ps aux` shifts the fields: every line is counted, but not by
    // its name.
    for fields in ["fields3", "fields4"] {
        let counted = counts(&world, fields);
        assert!(
            lines.contains(&counted.iter().map(|(count, _)| count).sum()),
            "{processes}: {counted:?}"
        );
    }
    let (names, statuses) = (counts(&world, "names"), counts(&world, "statuses"));
    for one in ["analyze", "worker"] {
        assert!(names.contains(&(1, one.to_owned())), "{names:?}");
    }
    for one in ["running", "busy"] {
        assert!(statuses.contains(&(1, one.to_owned())), "{statuses:?}");
    }
}

#[test]
fn finds_inspects_and_recovers_a_stuck_task() {
    let (world, ran) = with_a_running_task(
        r#"ps aux | grep "raddle-.*:running" | grep -E "[0-9]+:[0-9]{2}:[0-9]{2}" > hours
        for least in 0 3600; do
            ps -eo etimes,args | awk '$1 >= '$least | grep "raddle-.*:running" | grep -v grep > older.$least
        done
        tid=$(ps aux | grep "raddle-.*:running" | head -1 | cut -d- -f2 | cut -d: -f1)
        raddle tid $tid
        raddle queue peek T$(raddle tid $tid).reserved
        raddle task recover $(raddle tid $tid)"#,
    );
    let ran = ran.ok();
    let tid = world.read_trimmed("task.tid");
    let lines = ran.lines();
    assert_eq!(lines[0], tid);
    assert!(lines[1].contains(&tid), "{}", lines[1]);
    assert_eq!(lines[2], format!("{tid} requeued"));
    // `ps aux` counts minutes and seconds of processor time, and never hours.
    assert_eq!(world.read_trimmed("hours"), "");
    assert!(
        world
            .read_trimmed("older.0")
            .ends_with(&format!("raddle-{}:analyze:running", &tid[9..]))
    );
    assert_eq!(world.read_trimmed("older.3600"), "");
}

#[test]
fn shows_a_task_that_is_being_stopped_after_its_timeout() {
    let (world, ran) = with_a_running_task(
        r#"raddle submit --name deaf --timeout 200ms -- sh -c 'trap "" TERM; sleep 600' > deaf.tid
        for i in $(seq 500); do
            ps aux | grep "raddle-.*:timeout" > found
            grep -q ":deaf:" found && break
            sleep 0.02
        done
        raddle wait $(cat deaf.tid)
        raddle task list --status timeout
        ps aux | grep "raddle-.*:timeout" > left
        true"#,
    );
    let (tid, ran) = (world.read_trimmed("deaf.tid"), ran.ok());
    assert!(
        world
            .read_trimmed("found")
            .contains(&format!("raddle-{}:deaf:timeout", &tid[9..])),
        "{}",
        world.read_trimmed("found")
    );
    assert!(ran.text().contains(&tid), "{}", ran.text());
    assert!(
        !world.read_trimmed("left").contains(":deaf:"),
        "{}",
        world.read_trimmed("left")
    );
}

/// A failed task has no process any more: the kill command matches none, and hits
/// no other.
#[test]
fn a_failed_task_has_no_process() {
    let (world, ran) = with_a_running_task(
        r#"raddle submit --name broken -- false > broken.tid
        raddle wait $(cat broken.tid) > /dev/null
        pgrep -f "raddle-" -d, > before
        pkill -f "raddle-.*:failed"; echo $?
        pgrep -f "raddle-.*:failed" | xargs kill 2> usage
        pgrep -f "raddle-" -d, > after
        raddle task list --status failed --json | jq -r '.[].tid'
        pkill -f "raddle-.*:analyze:"; echo $?
        raddle wait $(cat task.tid)
        raddle worker list --json | jq length"#,
    );
    let (broken, analyze, ran) = (
        world.read_trimmed("broken.tid"),
        world.read_trimmed("task.tid"),
        ran.ok(),
    );
    let lines = ran.lines();
    assert_eq!(lines[..3], ["1", &broken, "0"], "{ran:?}");
    assert_eq!(world.read_trimmed("before"), world.read_trimmed("after"));
    // While one whose name is called so is gone, and its worker is not.
    assert!(
        lines[3].contains(&analyze) && lines[3].contains("killed"),
        "{ran:?}"
    );
    assert_eq!(lines[4], "1");
}

#[test]
fn finds_the_task_of_every_process() {
    let (world, ran) = with_a_running_task(
        r#"for tid in $(ps aux | grep raddle- | cut -d- -f2 | cut -d: -f1 | sort -u); do
            echo "Processing task $tid"
            full_tid=$(raddle tid $tid)
            raddle task status $full_tid
        done
        true"#,
    );
    let ran = ran.ok();
    for name in ["task.tid", "worker.tid"] {
        assert!(
            ran.text()
                .contains(&format!("task       {}", world.read_trimmed(name))),
            "{}",
            ran.text()
        );
    }
}

/// The worker of `raddle run` runs only one task alone, and is no task itself.
#[test]
fn shows_an_ephemeral_worker_as_a_task() {
    let (world, ran) = with_a_running_task(
        r#"raddle run --name here -- sleep 600 &
        raddle spawner run --warm-pool 1 --max-workers 2 > spawner.tid 2> spawner.log &
        until raddle worker list --json | jq -e 'map(.type) | index("inline") and index("one-shot")' > /dev/null; do sleep 0.05; done
        until pgrep -f '^raddle-.*:here:running' > /dev/null; do sleep 0.05; done
        for tid in $(ps -eo args | grep '^raddle-[0-9]' | cut -d- -f2 | cut -d: -f1 | sort -u); do
            full_tid=$(raddle tid $tid) && raddle task status $full_tid || echo "$tid leads nowhere"
        done
        raddle worker list --json > workers
        raddle task list --status running --json | jq -r '.[] | select(.name == "here").tid' > here.tid
        inline=$(jq -r '.[] | select(.type == "inline").tid' workers)
        raddle task status --json $inline > inline
        raddle task status --json $(cat worker.tid) > resident
        raddle task status ${inline:9} > shown
        raddle worker stop ${inline:9} 2> refused"#,
    );
    let ran = ran.code(2);
    assert!(!ran.text().contains("leads nowhere"), "{ran:?}");
    let workers: serde_json::Value = serde_json::from_str(&world.read_trimmed("workers")).unwrap();
    for worker in workers.as_array().unwrap() {
        assert!(
            ran.text()
                .contains(&format!("task       {}", worker["tid"].as_str().unwrap())),
            "{worker} {ran:?}"
        );
    }
    let json = |name| serde_json::from_str::<serde_json::Value>(&world.read_trimmed(name)).unwrap();
    let (inline, resident) = (json("inline"), json("resident"));
    let keys = |record: &serde_json::Value| {
        record
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(&inline), keys(&resident));
    for key in [
        "state",
        "attempt",
        "failures",
        "losses",
        "paused",
        "dead",
        "worker",
        "exit_code",
        "finished_at",
    ] {
        assert_eq!(inline[key], resident[key], "{key}");
    }
    assert_eq!(
        (&inline["name"], &inline["spec"]["target"]["service"]),
        (&"inline".into(), &"inline".into())
    );
    let runs = format!("runs       {}\n", world.read_trimmed("here.tid"));
    assert!(
        world.read_trimmed("shown").contains(&runs),
        "{}",
        world.read_trimmed("shown")
    );
    // A short id is as good as a whole one where it can be told what to do instead.
    assert!(
        world.read_trimmed("refused").contains("runs only one task"),
        "{}",
        world.read_trimmed("refused")
    );
}

#[test]
fn killing_all_processes_leaves_none_and_loses_no_task() {
    let (world, ran) = with_a_running_task(
        r#"raddle submit --queue later -- true > waits.tid
        pkill -f "raddle-"; echo $?
        for i in $(seq 100); do pgrep -f "raddle-" > left || break; sleep 0.1; done
        wc -l < left
        pgrep -x sleep | wc -l
        cat task.tid waits.tid | xargs -n 1 raddle task status --json | jq -r .state"#,
    );
    let ran = ran.ok();
    // Its runner heard it first, or its worker.
    assert!(["killed", "created"].contains(&ran.lines()[3]), "{ran:?}");
    assert_eq!(ran.lines()[..3], ["0", "0", "0"], "{ran:?}");
    assert_eq!(ran.lines()[4], "created");
    drop(world);
}

/// As docs/how-to/operations.md has it.
#[test]
fn killing_a_project_does_not_affect_other_projects() {
    let docs = include_str!("../../../../docs/how-to/operations.md");
    let (_, rest) = docs
        .split_once("for pid in $(pgrep -f '^raddle-[0-9]'); do")
        .expect("it is shown there");
    let kill = format!(
        "for pid in $(pgrep -f '^raddle-[0-9]'); do{}done",
        rest.split_once("done\n").unwrap().0
    );
    let world = World::new();
    let ran = world.bash_in_namespaces(&format!(
        r#"set -e
        for project in one other; do
            mkdir $project
            (cd $project && raddle worker start > worker.tid && raddle submit -- sleep 1000 > task.tid)
            until (cd $project && raddle task status --json $(cat task.tid) | grep -q '"running"'); do sleep 0.05; done
        done
        cd one
        {kill}
        for i in $(seq 200); do test $(pgrep -x sleep | wc -l) = 1 && break; sleep 0.05; done
        pgrep -x sleep | wc -l
        (cd ../other && raddle task status --json $(cat task.tid) | jq -r .state && raddle worker stop --all --kill > /dev/null)"#
    ));
    assert_eq!(ran.ok().lines(), ["1", "running"]);
}
