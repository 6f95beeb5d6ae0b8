//! The effect of keys of a file on real processes and tasks.

use super::*;

#[test]
fn replaces_exited_processes_by_the_restart_policy() {
    let world = World::new();
    let file = |slug: &str, restart: &str| {
        format!(
            "[process.{slug}]\nrestart = '{restart}'\n[[process.{slug}.worker]]\nslug = '{slug}'\n"
        )
    };
    let manager = up(
        &world,
        &[
            file("never", "never"),
            file("failed", "on-failure"),
            file("done", "on-failure"),
        ]
        .concat(),
    );
    let [never, failed, done] =
        ["never", "failed", "done"].map(|slug| *pids(&world, slug).first().unwrap());
    signal(never, libc::SIGKILL);
    signal(failed, libc::SIGKILL);
    // It ends as after a stop, and only this setting stops it.
    signal(done, libc::SIGTERM);
    wait_until("one is replaced", || {
        let now = pids(&world, "failed");
        now.len() == 1 && !now.contains(&failed)
    });
    wait_until("two are not", || {
        manager.stderr().matches("and is not replaced").count() == 2
    });
    wait_until("no process serves them", || {
        pids(&world, "never").is_empty() && pids(&world, "done").is_empty()
    });
    let said = down(&world, manager);
    assert_eq!(said.matches("another takes its place").count(), 1, "{said}");
    assert!(said.contains("started 4 processes and exited"), "{said}");
}

#[test]
fn task_settings_of_the_file_apply_to_tasks() {
    let world = World::new();
    let directory = world.path().join("shop");
    fs::create_dir(&directory).unwrap();
    let file = format!(
        "[process.a]\ncaps = ['loom']\n[[process.a.worker]]\nslug = 'a'\nsources = ['in']\ncwd = '{}'\n\
         env = {{ SHADE = 'blue' }}\nlimits = {{ max_fds = 77 }}\n\
         command = ['sh', '-c', 'echo \"$SHADE $(ulimit -n) $(cat)\" > told']\n",
        directory.display()
    );
    let manager = up(&world, &file);
    world.raddle(["queue", "write", "in", "wool"]).ok();
    wait_until("it has told", || {
        lines(&world, "shop/told") == ["blue 77 wool"]
    });
    let tid = world.submit(&["--queue", "a", "--requires", "loom", "--", "true"]);
    world.raddle(["wait", &tid]).ok();
    down(&world, manager);
}

#[test]
fn a_trigger_has_times_a_policy_and_a_lifetime() {
    let world = World::new();
    let file = "[process.clock]\n[[process.clock.worker]]\nslug = 'tick'\ncommand = ['sh', '-c', 'echo $RADDLE_DUE >> ticks']\n\
                trigger = { cron = '* * * * * *', timezone = 'Europe/Berlin', missed = 'skip', lifetime = '1s' }\n";
    let manager = up(&world, file);
    wait_until("it has ticked", || lines(&world, "ticks").len() >= 2);
    assert!(
        lines(&world, "ticks")
            .iter()
            .all(|due| due.len() == "2026-12-01T02:00:00Z".len()),
        "on whole seconds"
    );
    // A task that is not claimed in time never runs: the only slot is taken.
    let other = world.submit(&["--queue", "tick", "--", "sleep", "5"]);
    wait_until("some have expired", || {
        let ended = world
            .raddle(["task", "list", "--status", "cancelled", "--json"])
            .ok()
            .json();
        ended
            .as_array()
            .unwrap()
            .iter()
            .any(|task| task["report"]["exit"]["kind"] == "expired")
    });
    world.raddle(["wait", &other]).ok();
    down(&world, manager);
    let trigger = || world.raddle(["schedule", "list", "--json"]).ok().json()[0].clone();
    let before = trigger();
    assert_eq!(
        (
            &before["schedule"]["missed"],
            &before["schedule"]["lifetime"]
        ),
        (&"skip".into(), &1.into())
    );
    let next: jiff::Timestamp = before["next"].as_str().unwrap().parse().unwrap();
    wait_until("three are due", || {
        jiff::Timestamp::now() > next + Duration::from_secs(3)
    });
    let manager = up(&world, file);
    wait_until("they are left out", || {
        trigger()["missed"].as_u64() > before["missed"].as_u64()
    });
    let fired = |trigger: &Value| {
        trigger["last"]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap()
    };
    wait_until("it goes on", || {
        fired(&trigger()) > next + Duration::from_secs(1)
    });
    down(&world, manager);
}
