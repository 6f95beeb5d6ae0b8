//! `raddle pool stop`.

use super::{
    Pools,
    fake::{Fake, StopReaction},
};
use crate::world::wait_until;

#[test]
fn stops_all_workers_of_one_pool() {
    let mut pools = Pools::new();
    let workers = [pools.worker("render", &[]), pools.worker("render", &[])];
    let other = pools.worker("mail", &[]);
    let ran = pools.world.raddle(["pool", "stop", "render"]).ok();
    let mut lines =
        workers.map(|worker| format!("{} stopped, 0 calls ended, 0 cancelled", worker.uid));
    lines.sort();
    assert_eq!(ran.lines(), lines);
    // It has waited for that.
    let left = pools
        .world
        .raddle(["pool", "workers", "--json"])
        .ok()
        .json();
    assert_eq!(
        (left.as_array().unwrap().len(), &left[0]["uid"]),
        (1, &other.uid.to_string().into())
    );
    wait_until("both have ended", || {
        !pools.process(0).is_alive() && !pools.process(1).is_alive()
    });
    assert!(pools.process(2).is_alive());
}

#[test]
fn stops_one_worker_by_its_uid() {
    let mut pools = Pools::new();
    let uid = pools.worker("render", &[]).uid.to_string();
    pools.worker("render", &[]);
    let told = pools
        .world
        .raddle(["pool", "stop", &uid, "--timeout", "-1", "--json"])
        .ok()
        .json();
    assert_eq!(told.as_array().unwrap().len(), 1);
    assert_eq!(
        (&told[0]["uid"], &told[0]["status"]),
        (&uid.as_str().into(), &"stopped".into())
    );
    assert_eq!(
        (&told[0]["ended"], &told[0]["cancelled"]),
        (&0.into(), &0.into())
    );
    wait_until("it has ended", || !pools.process(0).is_alive());
    assert!(pools.process(1).is_alive());
}

#[test]
fn waits_for_calls_and_reports_their_outcome() {
    let pools = Pools::new();
    let fake = Fake::start(&pools);
    for (timeout, sent) in [
        (None, 0.0),
        (Some("0"), 0.0),
        (Some("1.5"), 1.5),
        (Some("2m"), 120.0),
        (Some("-1"), -1.0),
    ] {
        pools.publish("strange", &fake.metadata);
        fake.leaves(&pools, "strange");
        let flag = timeout
            .into_iter()
            .flat_map(|timeout| ["--timeout", timeout]);
        let ran = pools
            .world
            .raddle(["pool", "stop", "strange"].into_iter().chain(flag))
            .ok();
        assert_eq!(
            ran.text(),
            format!(
                "{} stopped, 2 calls ended, 1 cancelled\n",
                fake.metadata.uid
            )
        );
        assert_eq!(fake.stops(), [sent], "{timeout:?}");
    }
    pools.publish("strange", &fake.metadata);
    let told = pools
        .world
        .raddle(["pool", "stop", "strange", "--json"])
        .ok()
        .json();
    assert_eq!(
        (&told[0]["ended"], &told[0]["cancelled"]),
        (&2.into(), &1.into())
    );
}

#[test]
fn names_a_worker_that_does_not_exit_and_how_to_kill_it() {
    let mut pools = Pools::new();
    let fake = Fake::start(&pools);
    pools.publish("strange", &fake.metadata);
    let ran = pools
        .world
        .raddle(["pool", "stop", "strange"])
        .code(124)
        .stderr_contains("has not exited yet");
    assert_eq!(
        ran.text(),
        format!(
            "{} stopping, 2 calls ended, 1 cancelled\n",
            fake.metadata.uid
        )
    );
    let stuck = pools.worker("render", &[]);
    let well = pools.worker("render", &[]);
    pools.signal(0, libc::SIGSTOP);
    let ran = pools.world.raddle(["pool", "stop", "render"]).code(124);
    pools.signal(0, libc::SIGCONT);
    let ran = ran.stderr_contains(&format!(
        "worker {} does not answer: kill it with 'kill -9 {}'",
        stuck.uid, stuck.pid
    ));
    assert!(
        ran.text().contains(&format!("{} no answer\n", stuck.uid)),
        "{}",
        ran.text()
    );
    assert!(
        ran.text()
            .contains(&format!("{} stopped, 0 calls", well.uid)),
        "{}",
        ran.text()
    );
}

#[test]
fn a_worker_that_is_killed_meanwhile_counts_as_stopped() {
    let pools = Pools::new();
    let fake = Fake::start(&pools);
    fake.leaves(&pools, "strange");
    let stop = || {
        pools.publish("strange", &fake.metadata);
        pools.world.raddle(["pool", "stop", "strange"])
    };
    fake.takes_it(StopReaction::Broken);
    let ran = stop()
        .ok()
        .stderr_contains("exited before it reported the outcome of its calls");
    assert_eq!(
        (ran.text(), fake.stops().len()),
        (format!("{} stopped\n", fake.metadata.uid).as_str(), 1)
    );
    // Before it was told, too.
    fake.refuse("the way broke");
    stop().ok().stderr_contains("exited before it reported");
    assert!(fake.stops().is_empty());
}

#[test]
fn reports_a_worker_that_refuses_to_stop() {
    let pools = Pools::new();
    let fake = Fake::start(&pools);
    pools.publish("strange", &fake.metadata);
    let stop = || {
        pools
            .world
            .raddle(["pool", "stop", "strange", "--timeout", "0.1", "--json"])
    };
    fake.takes_it(StopReaction::Endless);
    let ran = stop()
        .code(124)
        .stderr_contains("does not answer")
        .stderr_contains("kill -9");
    assert_eq!(
        (&ran.json()[0]["status"], &ran.json()[0]["ended"]),
        (&"no answer".into(), &().into())
    );
    fake.takes_it(StopReaction::Broken);
    assert_eq!(
        stop().code(1).stderr_contains("cannot stop worker").json()[0]["error"],
        "the way broke"
    );
}
