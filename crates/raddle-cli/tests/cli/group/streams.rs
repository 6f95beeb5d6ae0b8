//! Sources that programs without Raddle write to, by `XADD`.

use super::*;

const FILE: &str = r#"
[process.mail]
replicas = 2
[[process.mail.worker]]
slug = "mail"
sources = ["stream:orders", "orders"]
command = ["sh", "-c", "echo \"mail $(cat)\" >> done"]

[process.stock]
[[process.stock.worker]]
slug = "stock"
sources = ["stream:orders"]
command = ["sh", "-c", "echo \"stock $(cat)\" >> done"]
"#;

fn redis(world: &World, command: &str) -> String {
    world
        .bash(&format!("redis-cli -s redis.sock {command}"))
        .ok()
        .text()
        .trim()
        .to_owned()
}

#[test]
fn each_stream_entry_is_one_event() {
    let (world, server) = on_redis();
    // Entries from before Raddle, some of them read by a consumer that is gone.
    redis(&world, "XADD orders '*' order 1 item loom");
    redis(&world, "XADD orders '*' order 2 item comb");
    redis(&world, "XGROUP CREATE orders raddle:cli 0");
    redis(
        &world,
        "XREADGROUP GROUP raddle:cli gone COUNT 1 STREAMS orders '>'",
    );
    let one = up(&world, FILE);
    redis(&world, r#"XADD orders '*' message "3""#);
    // A queue of the same name is another source.
    world.raddle(["queue", "write", "orders", "4"]).ok();
    let mut all: Vec<String> = [
        r#"{"item":"loom","order":"1"}"#,
        r#"{"item":"comb","order":"2"}"#,
        "3",
    ]
    .into_iter()
    .flat_map(|order| [format!("mail {order}"), format!("stock {order}")])
    .chain(["mail 4".into()])
    .collect();
    all.sort();
    wait_until("all are done", || lines(&world, "done").len() >= all.len());
    assert_eq!(lines(&world, "done"), all);
    assert_eq!(
        redis(&world, "XPENDING orders raddle:cli").lines().next(),
        Some("0")
    );

    // However many managers there are, and if one is killed.
    let other = world.start(["up", "--name", "second"]);
    wait_until("the second is up", || other.stderr().contains(" up\n"));
    let produce =
        world.start_bash("for i in $(seq 100 299); do echo XADD orders '*' message $i; done | redis-cli -s redis.sock");
    wait_until("some are there", || lines(&world, "done").len() > all.len());
    one.signal(libc::SIGKILL);
    one.finish();
    produce.finish().ok();
    wait_until("all are done", || {
        lines(&world, "done").len() >= all.len() + 400
    });
    let done = lines(&world, "done");
    assert_eq!(
        (done.len(), done.iter().collect::<BTreeSet<_>>().len()),
        (all.len() + 400, all.len() + 400)
    );
    assert_eq!(
        redis(&world, "XPENDING orders raddle:cli").lines().next(),
        Some("0")
    );

    // A stream that is deleted is there again with its next entry.
    redis(&world, "DEL orders");
    redis(&world, "XADD orders '*' message 300");
    wait_until("it is done", || {
        lines(&world, "done").len() == all.len() + 402
    });
    let consumers = redis(&world, "--json XINFO CONSUMERS orders raddle:cli");
    assert_eq!(
        consumers.matches("\"name\"").count(),
        1,
        "no consumer is left behind: {consumers}"
    );
    other.stop().ok();
    end(server);
    assert_eq!(world.processes(), []);
}

#[test]
fn refuses_streams_without_redis() {
    let world = World::new();
    world.file("raddle.toml", FILE);
    let refused = world
        .raddle(["up"])
        .code(2)
        .stderr_contains("raddle.toml:6: at 'process.mail.worker[0].sources[0]'");
    refused
        .stderr_contains("streams need Redis")
        .stderr_contains("use redis://HOST:PORT, or the name of a queue");
    world.file("raddle.toml", FILE.replace("stream:orders", "stream:"));
    world
        .raddle(["up"])
        .code(2)
        .stderr_contains("it names no stream: write its key, as in 'stream:orders'");
    assert_eq!(world.processes(), []);
}
