//! Tasks in a sandbox, from the command line to the result.

use crate::world::World;

#[test]
fn a_sandboxed_command_sees_nothing_of_the_host() {
    let world = World::new();
    let secret = world.file("secret", "the secret");
    let run = world.raddle([
        "run",
        "--isolation",
        "sandbox",
        "-e",
        "GIVEN=yes",
        "--",
        "sh",
        "-c",
        "pwd; id -u; echo $GIVEN; ls -d /root",
    ]);
    assert_eq!(run.code(2).text(), "/scratch\n1000\nyes\n");
    world.raddle(["run", "--isolation", "sandbox", "--", "cat", secret.to_str().unwrap()]).code(1);
    let refused = world.raddle(["run", "--isolation", "sandbox", "--cwd", "/tmp", "--", "true"]);
    assert!(refused.stderr.contains("leave out cwd"), "{}", refused.stderr);
}

#[test]
fn a_worker_takes_tasks_for_a_sandbox() {
    let world = World::new();
    let _worker = world.worker(&[]);
    let tid = world.submit(&["--isolation", "sandbox", "--", "sh", "-c", "cat /proc/self/status | grep Seccomp:"]);
    world.until_state(&tid, "completed");
    assert_eq!(world.raddle(["logs", &tid]).ok().text(), "Seccomp:\t2\n");
}

#[test]
fn the_doctor_says_whether_it_holds() {
    let world = World::new();
    let report = world.raddle(["doctor"]).ok().text().to_owned();
    assert!(report.contains("sandbox") && report.contains("all layers hold"), "{report}");
}
