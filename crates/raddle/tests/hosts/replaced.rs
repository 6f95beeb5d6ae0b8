//! Every worker of every host is replaced, one host after the other, while calls are made.

use std::collections::BTreeSet;

use raddle_testnet::Lan;

use crate::{Load, Machine, Settings, load::failed_after, now, pause, until};

#[test]
fn all_workers_are_replaced_under_load_and_no_call_fails() {
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
    load.settle(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let (began, mut new) = (now(), BTreeSet::new());
    for machine in &mut machines {
        machine.leave();
        new.extend(serve(machine));
        // As who watches over it would have it: the next when this one is called.
        let since = now();
        until("who is new is called", 30, || {
            load.ran(since, machine.name()) > 0
        });
    }
    pause(500);
    let calls = load.stop();
    let failed = failed_after(&calls, began);
    assert!(
        failed.is_empty(),
        "{} of {}: {failed:#?}",
        failed.len(),
        calls.len()
    );
    // A few hundred a second on the slowest of machines.
    assert!(calls.len() > 100, "{}", calls.len());
    let ran: BTreeSet<u32> = calls.iter().filter_map(|call| call.process).collect();
    assert_eq!(ran, &old | &new, "each of them was called");
}
