//! Managers in the background, those that wait for another, what they show, and what is said while
//! nothing happens.

use super::*;
use crate::metrics::scrape;

/// How many processes there are of the group, under any manager.
fn live(world: &World) -> usize {
    world
        .processes()
        .iter()
        .filter(|(_, line)| line.starts_with("raddle-") && line.contains(":mail:"))
        .count()
}

fn is_up(manager: &RunningCommand) -> bool {
    manager.stderr().contains(" up\n")
}

fn waits(manager: &RunningCommand) -> bool {
    manager
        .stderr()
        .contains("this manager stands by, and replaces it when it exits")
}

#[test]
fn down_stops_a_manager_in_the_background() {
    let world = World::new();
    world.file("raddle.toml", TWO_OF_ONE);
    let tid = world.raddle(["up", "-d"]).ok().text().trim().to_owned();
    wait_until("its processes are there", || {
        pids(&world, "mail").len() == 2
    });
    assert!(
        world
            .path()
            .join(format!(".raddle/worker-{tid}.log"))
            .exists()
    );
    assert_eq!(
        world.raddle(["task", "ping", &tid]).ok().text(),
        format!("{tid} listening\n")
    );
    // A second one in the background would wait unseen.
    world.raddle(["up", "-d"]).code(2).stderr_contains(&format!(
        "manager {tid} with the name 'group' runs these groups"
    ));
    world
        .raddle(["down", "--name", "another"])
        .ok()
        .stderr_contains("no manager runs these groups");
    world.raddle(["down"]).ok();
    assert_eq!(world.task(&tid)["state"], "completed");
    wait_until("no process is left", || world.processes().is_empty());
    world
        .raddle(["down"])
        .ok()
        .stderr_contains("no manager runs these groups");
    world
        .raddle(["down", "-f", "none.toml"])
        .code(2)
        .stderr_contains("there is no such file");
}

#[test]
fn a_second_manager_of_a_file_stands_by_and_takes_over() {
    takes_over(&World::new());
}

#[test]
fn a_second_manager_of_a_file_stands_by_and_takes_over_on_redis() {
    let (world, server) = on_redis();
    takes_over(&world);
    end(server);
    assert_eq!(world.processes(), []);
}

fn takes_over(world: &World) {
    let one = up(world, TWO_OF_ONE);
    let (other, third) = (world.start(["up"]), world.start(["up"]));
    wait_until("both wait", || waits(&other) && waits(&third));
    wait_until("there are no more than two", || live(world) == 2);
    assert_eq!(
        world.list(&["group", "list"])[0]["managers"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    third.stop().ok();
    one.signal(libc::SIGKILL);
    one.finish();
    wait_until("the other has taken its place", || is_up(&other));
    wait_until("there are two again", || live(world) == 2);
    let tid = world.submit(&["--queue", "mail", "--", "true"]);
    world.raddle(["wait", &tid]).ok();
    // One of another name keeps as many again.
    let second = world.start(["up", "--name", "second"]);
    wait_until("it is up", || is_up(&second));
    wait_until("there are four", || live(world) == 4);
    second.stop().ok();
    other.stop().ok();
    // Those that are started at the same time agree on one.
    let all: Vec<RunningCommand> = (0..3).map(|_| world.start(["up"])).collect();
    wait_until("one is up, and the others wait", || {
        let up = all.iter().filter(|manager| is_up(manager)).count();
        (
            up,
            all.iter()
                .filter(|manager| !is_up(manager) && waits(manager))
                .count(),
        ) == (1, 2)
    });
    assert_eq!(live(world), 2);
    // Those that wait first: they would take its place.
    let (up, waiting): (Vec<RunningCommand>, Vec<RunningCommand>) =
        all.into_iter().partition(is_up);
    for manager in waiting.into_iter().chain(up) {
        manager.stop().ok();
    }
}

#[test]
fn a_manager_of_groups_shows_metrics() {
    let world = World::new();
    world.file("raddle.toml", TWO_OF_ONE);
    let manager = world.start(["--json", "up", "--metrics-addr", "127.0.0.1:0"]);
    wait_until("it is up", || is_up(&manager));
    let said: Value = serde_json::from_str(&manager.stdout()).unwrap();
    let url = said["metrics"].as_str().unwrap();
    let seen = scrape(url);
    assert_eq!(
        seen.get("raddle_group_processes_wanted{process=\"mail\"}"),
        Some(2.0)
    );
    assert_eq!(
        seen.get("raddle_group_processes{process=\"mail\",state=\"ready\"}"),
        Some(2.0)
    );
    assert_eq!(seen.get("raddle_group_launch_total"), Some(2.0));
    world.submit(&["--queue", "later", "--", "true"]);
    wait_until("waiting messages are shown", || {
        scrape(url).get("raddle_queue_ready{queue=\"later\"}") == Some(1.0)
    });
    down(&world, manager);
    world
        .raddle(["up", "--metrics-addr", "0.0.0.0:0"])
        .code(2)
        .stderr_contains("--metrics-public");
}

#[test]
fn explains_a_start_that_takes_long() {
    let world = World::new();
    let file = "[process.mail]\nstartup = ['sh', '-c', 'until test -e go; do sleep 0.05; done']\n\
                [[process.mail.worker]]\nslug = 'mail'\nexecution_timeout = '20s'\n\
                [process.late]\nafter = ['mail']\n[[process.late.worker]]\nslug = 'late'\n\
                [process.bad]\nstartup = ['false']\n[[process.bad.worker]]\nslug = 'bad'\n";
    world.file("raddle.toml", file);
    let manager = world.start(["up"]);
    for line in [
        "'mail' is not up: its startup command 'sh -c until test -e go; do sleep 0.05; done' has not ended yet",
        "'late' is not up: it starts after mail, which is not up yet",
        "'bad' is not up: its processes exit right after their start",
    ] {
        wait_until(line, || manager.stderr().contains(line));
    }
    world
        .raddle(["group", "scale", "bad", "2"])
        .ok()
        .stderr_contains("exit right after their start");
    world.file("go", "");
    wait_until("it is there", || pids(&world, "mail").len() == 1);
    let said = manager.stderr();
    assert_eq!(
        said.matches("'late' is not up: it starts after").count(),
        1,
        "each is said once: {said}"
    );
    // Running tasks may end.
    let task = world.submit(&[
        "--queue",
        "mail",
        "--",
        "sh",
        "-c",
        "until test -e over; do sleep 0.05; done",
    ]);
    world.wait_for_state(&task, "running");
    world
        .raddle(["group", "off", "mail"])
        .ok()
        .stderr_contains("1 process may finish running tasks");
    world.file("over", "");
    world.raddle(["wait", &task]).ok();
    manager.stop().ok();
    assert_eq!(world.processes(), []);
    world
        .raddle(["group", "on", "mail"])
        .ok()
        .stderr_contains("no manager runs 'mail'")
        .stderr_contains("'raddle up'");
}
