//! `raddle pool list` and `workers`, and `raddle task tree`: what there is.

use std::fs;

use raddle_discovery::{WorkerMetadata, WorkerUid};

use super::{Pools, fake::Fake};
use crate::{
    shape::{shape, snapshot},
    world::{World, wait_until},
};

#[test]
fn listing_pools_needs_no_project_and_creates_no_files() {
    let world = World::new();
    assert_eq!(
        world.raddle(["pool", "list"]).ok().lines(),
        ["POOL  WORKERS  TAGS"]
    );
    assert_eq!(world.raddle(["pool", "list", "--json"]).ok().text(), "[]\n");
    assert_eq!(
        world.raddle(["pool", "workers", "--json"]).ok().text(),
        "[]\n"
    );
    // Which broker there is, and whether there is any, is of no concern here.
    for url in ["mem://", "redis://127.0.0.1:1", "nonsense"] {
        assert_eq!(
            world
                .raddle(["--queue-url", url, "pool", "list", "--json"])
                .ok()
                .text(),
            "[]\n"
        );
    }
    assert_eq!(fs::read_dir(world.path()).unwrap().count(), 0);
}

#[test]
fn lists_pools_with_the_tags_of_their_workers() {
    let mut pools = Pools::new();
    pools.worker("render", &["gpu", "big"]);
    pools.worker("render", &["gpu"]);
    pools.worker("mail", &[]);
    let list = pools.world.raddle(["pool", "list"]).ok();
    assert_eq!(
        list.lines(),
        [
            "POOL    WORKERS  TAGS",
            "mail    1",
            "render  2        big,gpu"
        ]
    );
    snapshot!(
        "json_pool_list",
        shape(
            &pools.world,
            &pools.world.raddle(["pool", "list", "--json"]).ok().json()
        )
    );
    assert!(!pools.world.path().join(".raddle").exists());
}

#[test]
fn shows_the_calls_of_workers() {
    let mut pools = Pools::new();
    let first = pools.worker("render", &["gpu"]);
    let second = pools.worker("render", &[]);
    pools.worker("mail", &[]);
    let asked = pools
        .world
        .raddle(["pool", "workers", "render", "--json"])
        .ok()
        .json();
    snapshot!("json_pool_workers", shape(&pools.world, &asked));
    let order = |worker: &WorkerMetadata| worker.uid;
    let mut both = [first, second];
    both.sort_by_key(order);
    for (asked, worker) in asked.as_array().unwrap().iter().zip(&both) {
        assert_eq!(asked["uid"], worker.uid.to_string());
        assert_eq!(asked["pid"], worker.pid);
        assert_eq!(asked["address"], worker.address);
    }
    let all = pools.world.raddle(["pool", "workers"]).ok();
    let heading = [
        "POOL", "UID", "PID", "STATUS", "IN", "FLIGHT", "TAKEN", "UPTIME", "TAGS", "ADDRESS",
    ];
    assert_eq!(
        all.lines()[0].split_whitespace().collect::<Vec<_>>(),
        heading
    );
    assert_eq!(all.lines().len(), 4, "{}", all.text());
    let [uid, pid] = [both[0].uid.to_string(), both[0].pid.to_string()];
    let row = all
        .lines()
        .into_iter()
        .find(|line| line.contains(&uid))
        .unwrap()
        .to_owned();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[..6], ["render", &uid, &pid, "listening", "0", "0"]);
    assert_eq!(cells.last(), Some(&both[0].address.as_str()));
    // In `ps` it goes by its title.
    let title = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let title = String::from_utf8_lossy(&title).into_owned();
    assert!(
        title.starts_with("raddle-") && title.contains(":render:listening"),
        "{title}"
    );
}

#[test]
fn lists_workers_that_do_not_answer() {
    let mut pools = Pools::new();
    let worker = pools.worker("render", &[]);
    pools.signal(0, libc::SIGSTOP);
    let shown = pools.world.raddle(["pool", "workers"]).ok();
    assert!(
        shown.lines()[1].contains("no answer  -          -      -"),
        "{}",
        shown.text()
    );
    shown.stderr_contains(&format!(
        "worker {} does not answer: no answer within 1s",
        worker.uid
    ));
    let asked = pools
        .world
        .raddle(["pool", "workers", "--json", "--quiet"])
        .ok()
        .json();
    assert_eq!(
        (&asked[0]["in_flight"], &asked[0]["error"]),
        (&().into(), &"no answer within 1s".into())
    );
    pools.signal(0, libc::SIGCONT);
    pools.signal(0, libc::SIGKILL);
    wait_until("it is gone", || {
        pools.world.raddle(["pool", "list", "--json"]).ok().text() == "[]\n"
    });
}

#[test]
fn escapes_control_characters_in_worker_metadata() {
    let pools = Pools::new();
    let fake = Fake::start(&pools);
    pools.publish("strange", &fake.metadata);
    let shown = pools.world.raddle(["pool", "workers"]).ok();
    assert!(
        shown.lines()[1].contains(" stopping  3          9      2m "),
        "{}",
        shown.text()
    );
    let asked = pools.world.raddle(["pool", "workers", "--json"]).ok();
    let numbers = [&asked.json()[0]["in_flight"], &asked.json()[0]["taken"]]
        .map(|number| number.as_u64().unwrap());
    assert_eq!(numbers, [3, 9]);
    assert_eq!(asked.json()[0]["stopping"], true);
    fake.refuse("no\x1b[2Jt today");
    let refused = pools
        .world
        .raddle(["pool", "workers"])
        .ok()
        .stderr_contains("[2Jt today");
    let listed = pools.world.raddle(["pool", "list"]).ok();
    let asked = pools
        .world
        .raddle(["pool", "workers", "--json", "--quiet"])
        .ok();
    // A tree needs a broker.
    pools.world.raddle(["run", "--", "true"]).ok();
    let tree = pools.world.raddle(["task", "tree"]).ok();
    let ping = pools
        .world
        .raddle(["pool", "ping", "strange", "--count", "1"])
        .code(1);
    for ran in [shown, refused, listed, asked, tree, ping] {
        assert!(
            !ran.text().contains('\x1b') && !ran.stderr.contains('\x1b'),
            "{ran:?}"
        );
    }
}

#[test]
fn refuses_a_worker_with_another_uid() {
    let pools = Pools::new();
    let fake = Fake::start(&pools);
    pools.publish(
        "strange",
        &WorkerMetadata {
            uid: WorkerUid::new(),
            ..fake.metadata.clone()
        },
    );
    let asked = pools
        .world
        .raddle(["pool", "workers", "--json"])
        .ok()
        .json();
    assert_eq!(asked[0]["error"], "another worker answers at its address");
    pools
        .world
        .raddle(["pool", "stop", "strange"])
        .code(1)
        .stderr_contains("another worker answers at its address");
    assert!(fake.stops().is_empty());
}

#[test]
fn ignores_directories_that_are_no_pools() {
    let mut pools = Pools::new();
    let worker = pools.worker("render", &[]);
    let entry = pools
        .directory()
        .join(format!("render.{}.json", worker.uid));
    let text = fs::read(entry).unwrap();
    let mut held = Vec::new();
    for (strange, text) in [
        ("\x1b[2Jname", &text[..]),
        ("two words", &text),
        ("torn", &text[..text.len() / 2]),
    ] {
        let path = pools
            .directory()
            .join(format!("{strange}.{}.json", WorkerUid::new()));
        fs::write(&path, text).unwrap();
        let file = fs::File::open(path).unwrap();
        file.lock().unwrap();
        held.push(file);
    }
    let listed = pools.world.raddle(["pool", "list", "--json"]).ok().json();
    assert_eq!(
        listed,
        serde_json::json!([{ "name": "render", "workers": 1, "tags": [] }])
    );
    let asked = pools
        .world
        .raddle(["pool", "workers", "--json"])
        .ok()
        .json();
    assert_eq!(asked.as_array().unwrap().len(), 1);
    assert_eq!(asked[0]["uid"], worker.uid.to_string());
}

#[test]
fn an_unknown_pool_is_an_error_that_lists_the_known_ones() {
    let mut pools = Pools::new();
    let uid = WorkerUid::new().to_string();
    for args in [
        &["workers", "nobody"][..],
        &["ping", "nobody"],
        &["stop", "nobody"],
        &["ping", &uid],
        &["stop", &uid],
    ] {
        let ran = pools.world.raddle(["pool"].iter().chain(args)).code(2);
        assert_eq!(ran.text(), "");
        ran.stderr_contains(&format!("'{}': this user runs no pool", args[1]));
    }
    pools.worker("render", &[]);
    pools.worker("mail", &[]);
    for args in [
        &["workers", "no\x1bbody"][..],
        &["ping", "nobody"],
        &["stop", "nobody"],
        &["ping", &uid],
        &["stop", &uid],
    ] {
        let ran = pools
            .world
            .raddle(["pool"].iter().chain(args))
            .code(2)
            .stderr_contains("there is mail, render");
        assert!(
            !ran.stderr.contains('\x1b') && ran.text().is_empty(),
            "{ran:?}"
        );
    }
    pools
        .world
        .raddle(["pool", "stop", "127.0.0.1:1"])
        .code(1)
        .stderr_contains("no worker listens at this address");
}

#[test]
fn the_tree_shows_pools_after_tasks() {
    let mut pools = Pools::new();
    let tid = pools.world.submit(&["--name", "later", "--", "true"]);
    let worker = pools.worker("render", &[]);
    let fake = Fake::start(&pools);
    pools.publish("strange", &fake.metadata);
    let tree = pools.world.raddle(["task", "tree"]).ok();
    let lines = [
        "pool render".to_owned(),
        format!(
            "└─ {} pid {} (listening, 0 calls in flight)",
            worker.uid, worker.pid
        ),
        "pool strange".to_owned(),
        format!(
            "└─ {} pid {} (stopping, 3 calls in flight)",
            fake.metadata.uid, fake.metadata.pid
        ),
    ];
    // How old it is stands behind it.
    let task = format!("{tid} later (created) ");
    assert!(tree.lines()[0].starts_with(&task), "{}", tree.text());
    assert_eq!(tree.lines()[1..], lines);
    let tree = pools.world.raddle(["task", "tree", "--json"]).ok().json();
    assert_eq!(
        (&tree[0]["tid"], &tree[1]["pool"]),
        (&tid.as_str().into(), &"render".into())
    );
    assert_eq!(tree[1]["children"][0]["uid"], worker.uid.to_string());
    assert_eq!(tree[2]["children"][0]["in_flight"], 3);
    // The view of one task has no pools.
    let alone = pools.world.raddle(["task", "tree", &tid]).ok();
    assert!(
        alone.lines().len() == 1 && alone.lines()[0].starts_with(&task),
        "{}",
        alone.text()
    );
}
