//! A rolling restart: the workers of each host are replaced in turn, under load.

use std::collections::BTreeSet;

use raddle_testnet::Lan;

use crate::{Load, Machine, Settings, load::failed_calls_after, now, pause, wait_until};

#[test]
fn a_rolling_restart_fails_no_call() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let mut machines = [(); 3].map(|()| Machine::new(&lan));
    let caller = Machine::new(&lan);
    let serve = |machine: &mut Machine| {
        let workers = machine.serve(&["--workers", "2", "--discovery", "lan"]);
        workers
            .into_iter()
            .map(|worker| worker.pid)
            .collect::<BTreeSet<u32>>()
    };
    let old: BTreeSet<u32> = machines.iter_mut().flat_map(serve).collect();
    let settings = Settings {
        lan: Some("default".into()),
        callers: 24,
        rest: 0,
        linger: 15,
        ..Settings::default()
    };
    let load = Load::start(&caller, &settings);
    let names: Vec<_> = machines
        .iter()
        .map(|machine| machine.name().to_owned())
        .collect();
    load.wait_until_only(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let (began, mut new) = (now(), BTreeSet::new());
    for machine in &mut machines {
        machine.stop_first();
        new.extend(serve(machine));
        // As in a deployment: continue when the new workers are called.
        let since = now();
        wait_until("the new workers are called", 30, || {
            load.count_ran(since, machine.name()) > 0
        });
    }
    pause(500);
    let calls = load.stop();
    let failed = failed_calls_after(&calls, began);
    assert!(
        failed.is_empty(),
        "{} of {}: {failed:#?}",
        failed.len(),
        calls.len()
    );
    // A few hundred per second even on slow machines.
    assert!(calls.len() > 100, "{}", calls.len());
    let count_ran: BTreeSet<u32> = calls.iter().filter_map(|call| call.process).collect();
    assert_eq!(count_ran, &old | &new, "each worker was called");
}
