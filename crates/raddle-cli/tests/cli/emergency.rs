//! The one-liners that people type when something is stuck, as they type them. They see no processes but their own.

use crate::world::World;

/// A worker with a task that runs; then the one-liners.
fn with_a_running_task(one_liners: &str) -> (World, crate::world::Ran) {
    let world = World::new();
    let script = format!(
        "raddle worker start --concurrency 2 > worker.tid
        raddle submit --name analyze -- sleep 600 > task.tid
        until raddle task list --status running --json | grep -q analyze; do sleep 0.05; done
        {one_liners}"
    );
    let ran = world.bash_apart(&script);
    (world, ran)
}

fn read(world: &World, name: &str) -> String {
    std::fs::read_to_string(world.path().join(name)).unwrap().trim().to_owned()
}

#[test]
fn tasks_are_found_with_ps_and_pgrep() {
    let (world, ran) = with_a_running_task(
        r#"ps aux | grep "raddle-.*:analyze"
        echo --
        top -b -n 1 -p $(pgrep -f "raddle-" -d,) > top.out
        ps aux | grep raddle- | wc -l
        ps aux | grep raddle- | awk -F'[-:]' '{print $3}' | sort | uniq -c > names
        ps aux | grep raddle- | awk -F'[-:]' '{print $4}' | sort | uniq -c > statuses"#,
    );
    let ran = ran.ok();
    let (found, count) = ran.text().split_once("--\n").unwrap();
    let title = format!("raddle-{}:analyze:running", &read(&world, "task.tid")[9..]);
    assert!(found.contains(&title), "{found}");
    assert!(count.trim().parse::<u32>().unwrap() >= 2, "{count}");
    assert!(read(&world, "top.out").contains("raddle-"));
}

#[test]
fn a_stuck_task_is_found_looked_at_and_recovered() {
    let (world, ran) = with_a_running_task(
        r#"tid=$(ps aux | grep "raddle-.*:analyze:running" | head -1 | cut -d- -f2 | cut -d: -f1)
        raddle tid $tid
        raddle queue peek T$(raddle tid $tid).reserved
        raddle task recover $(raddle tid $tid)"#,
    );
    let ran = ran.ok();
    let tid = read(&world, "task.tid");
    let lines = ran.lines();
    assert_eq!(lines[0], tid);
    assert!(lines[1].contains(&tid), "{}", lines[1]);
    assert_eq!(lines[2], format!("{tid} requeued"));
}

#[test]
fn every_process_leads_to_its_task() {
    let (world, ran) = with_a_running_task(
        r#"for tid in $(ps aux | grep raddle- | cut -d- -f2 | cut -d: -f1 | sort -u); do
            echo "Processing task $tid"
            full_tid=$(raddle tid $tid) || continue
            raddle task status $full_tid
        done"#,
    );
    let ran = ran.ok();
    for name in ["task.tid", "worker.tid"] {
        assert!(ran.text().contains(&format!("task       {}", read(&world, name))), "{}", ran.text());
    }
}

#[test]
fn killing_everything_leaves_nothing_and_loses_nothing() {
    let (world, ran) = with_a_running_task(
        r#"pkill -f "raddle-.*:failed"
        pgrep -f "raddle-.*:failed" | xargs -r kill
        ps aux | grep "raddle-.*:timeout" > /dev/null
        pkill -f "raddle-"
        for i in $(seq 100); do pgrep -f "raddle-" > left || break; sleep 0.1; done
        wc -l < left
        pgrep -x sleep | wc -l
        cat task.tid | xargs raddle task status --json | jq -r .state"#,
    );
    let ran = ran.ok();
    assert_eq!(ran.lines()[0], "0", "{ran:?}");
    let state = *ran.lines().last().unwrap();
    assert!(state == "killed" || state == "created", "{state}");
    drop(world);
}
