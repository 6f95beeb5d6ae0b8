//! An accepted or finished task is on the disk before the command says so.

use crate::world::World;

/// How often `raddle` with these arguments syncs the database's log to the disk.
fn syncs(world: &World, args: &str) -> usize {
    let raddle = env!("CARGO_BIN_EXE_raddle");
    let ran = world.bash(&format!(
        "strace -f -y -qq -e trace=fsync,fdatasync -e signal=none -o trace {raddle} {args}"
    ));
    assert_eq!(ran.code, 0, "{ran:?}");
    let trace = world.read("trace");
    trace.lines().filter(|line| line.contains("-wal>")).count()
}

/// One per group at least, however many came before.
#[test]
fn syncs_every_group_of_submits() {
    let world = World::new();
    world.raddle(["submit", "--", "true"]).ok();
    assert!(syncs(&world, "submit --array 1-5000 -- true") >= 5);
}

/// Claims and starts are not synced, and must not keep what follows from being so.
#[test]
fn syncs_every_result() {
    let world = World::new();
    world.raddle(["run", "--", "true"]).ok();
    // The task and its result.
    assert!(syncs(&world, "run -- true") >= 2);
    for _ in 0..3 {
        world.raddle(["submit", "--", "sleep", "0.3"]).ok();
    }
    // One after the other, so that no two results can share a sync.
    assert!(
        syncs(
            &world,
            "worker start --no-detach --concurrency 1 --idle-exit 0"
        ) >= 3
    );
}

/// A claim costs no sync: a power cut may make a task run again, and that is all.
#[test]
fn does_not_sync_claims() {
    let world = World::new();
    world.raddle(["run", "--", "true"]).ok();
    world.raddle(["submit", "--", "true"]).ok();
    // The result, and nothing for the claim, the worker's entry or its end.
    assert_eq!(
        syncs(
            &world,
            "worker start --no-detach --concurrency 1 --idle-exit 0"
        ),
        1
    );
}
