//! `raddle pool ping`: round trips.

use super::Pools;

#[test]
fn pings_every_worker_of_a_pool() {
    let mut pools = Pools::new();
    let workers = [pools.worker("render", &[]), pools.worker("render", &[])];
    pools.worker("mail", &[]);
    let ran = pools
        .world
        .raddle([
            "pool",
            "ping",
            "render",
            "--count",
            "3",
            "--interval",
            "0.01",
        ])
        .ok();
    let lines = ran.lines();
    assert_eq!(lines.len(), 8, "{}", ran.text());
    for worker in &workers {
        for number in 1..=3 {
            let begins = format!("{}: seq={number} time=", worker.uid);
            assert!(
                lines
                    .iter()
                    .any(|line| line.starts_with(&begins) && line.ends_with(" ms")),
                "{}",
                ran.text()
            );
        }
    }
    assert_eq!(lines[6], "render: 6 asked, 6 answered");
    let trips = lines[7]
        .strip_prefix("round trip min/median/max ")
        .and_then(|rest| rest.strip_suffix(" ms"))
        .unwrap();
    let trips: Vec<f64> = trips.split('/').map(|trip| trip.parse().unwrap()).collect();
    assert!(
        trips.len() == 3 && trips[0] > 0.0 && trips.is_sorted(),
        "{trips:?}"
    );
}

#[test]
fn takes_a_uid_or_an_address_of_a_worker() {
    let mut pools = Pools::new();
    let worker = pools.worker("render", &[]);
    pools.worker("render", &[]);
    let uid = worker.uid.to_string();
    let ping = |target: &str| {
        pools.world.raddle([
            "pool",
            "ping",
            target,
            "--count",
            "2",
            "--interval",
            "0",
            "--json",
        ])
    };
    let told = ping(&uid).ok().json();
    assert_eq!(
        (&told["asked"], &told["answered"], &told["target"]),
        (&2.into(), &2.into(), &uid.as_str().into())
    );
    let told = ping(&worker.address).ok().json();
    assert_eq!(
        (&told["answered"], &told["pings"][1]["address"]),
        (&2.into(), &worker.address.as_str().into())
    );
    let seconds =
        ["min_seconds", "median_seconds", "max_seconds"].map(|name| told[name].as_f64().unwrap());
    assert!(seconds[0] > 0.0 && seconds.is_sorted(), "{told}");
    assert_eq!(told["pings"].as_array().unwrap().len(), 2);
    assert!(
        told["pings"][0]["error"].is_null() && told["pings"][0]["seconds"].as_f64().unwrap() > 0.0,
        "{told}"
    );
}

#[test]
fn ping_fails_if_a_worker_does_not_answer() {
    let mut pools = Pools::new();
    let well = pools.worker("render", &[]);
    let stuck = pools.worker("render", &[]);
    pools.signal(1, libc::SIGSTOP);
    let ran = pools
        .world
        .raddle(["pool", "ping", "render", "--count", "1"])
        .code(1);
    pools.signal(1, libc::SIGCONT);
    assert!(
        ran.text().contains(&format!(
            "{}: seq=1 no answer: no answer within 1s\n",
            stuck.uid
        )),
        "{}",
        ran.text()
    );
    assert!(
        ran.text().contains(&format!("{}: seq=1 time=", well.uid)),
        "{}",
        ran.text()
    );
    assert!(
        ran.text().contains("render: 2 asked, 1 answered\n"),
        "{}",
        ran.text()
    );
    let absent = "unix:/nonexistent/socket";
    let ran = pools
        .world
        .raddle(["pool", "ping", absent, "--count", "1"])
        .code(1);
    assert!(
        ran.lines()[0].starts_with(
            "unix:/nonexistent/socket: seq=1 no answer: no worker listens at this address"
        ),
        "{}",
        ran.text()
    );
    assert_eq!(
        ran.lines()[1..],
        ["unix:/nonexistent/socket: 1 asked, 0 answered"]
    );
    let told = pools
        .world
        .raddle(["pool", "ping", absent, "--count", "1", "--json"])
        .code(1)
        .json();
    assert!(
        told["median_seconds"].is_null() && told["pings"][0]["seconds"].is_null(),
        "{told}"
    );
}
