//! A host that is far away: all is late, and nothing is lost for that.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
};

use raddle_hosts::Lan;

use crate::{Load, Machine, Settings, load::failed, pause};

/// Passes on what comes to a port to an address, each way so much later.
const RELAY: &str = "
import asyncio, sys
port, host, to, delay = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
async def pass_on(reader, writer):
    loop, queue = asyncio.get_running_loop(), asyncio.Queue()
    async def later():
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0, due - loop.time()))
            if not data: break
            writer.write(data)
            await writer.drain()
        writer.close()
    sending = asyncio.ensure_future(later())
    while True:
        try: data = await reader.read(65536)
        except OSError: data = b''
        queue.put_nowait((loop.time() + delay, data))
        if not data: break
    await sending
async def meet(reader, writer):
    away, back = await asyncio.open_connection(host, to)
    await asyncio.gather(pass_on(reader, back), pass_on(away, writer), return_exceptions=True)
async def main():
    server = await asyncio.start_server(meet, '0.0.0.0', port)
    print('ready', flush=True)
    await server.serve_forever()
asyncio.run(main())
";

fn relay(machine: &Machine, port: u16, to: &str, delay: f64) -> Child {
    let (host, there) = to.rsplit_once(':').unwrap();
    let mut relay = machine.host.command("python3");
    relay.args(["-c", RELAY, &port.to_string(), host, there, &delay.to_string()]);
    let mut relay = relay.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(relay.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    relay
}

#[test]
fn calls_to_a_host_far_away_are_late_and_not_lost() {
    if !raddle_hosts::can_be_made() {
        return;
    }
    let lan = Lan::new();
    let [mut near, mut far, between, caller] = [(); 4].map(|()| Machine::new(&lan));
    let mut workers = near.serve(&["--workers", "1"]);
    let mut distant = far.serve(&["--workers", "1"]).remove(0);
    let mut relay = relay(&between, 7070, &distant.address, 0.15);
    distant.address = format!("{}:7070", between.host.ipv4());
    workers.push(distant);
    let load = Load::start(&caller, &Settings { workers: Some(workers), callers: 4, ..Settings::default() });
    load.settle(&[near.name(), far.name()]);
    pause(5_000);
    let calls = load.stop();
    assert!(failed(&calls).is_empty(), "{:#?}", failed(&calls));
    let from_far: Vec<_> = calls.iter().filter(|call| call.host.as_deref() == Some(far.name())).collect();
    assert!(from_far.len() > 20 && from_far.iter().all(|call| call.ended - call.began >= 299), "{from_far:#?}");
    drop(between);
    relay.wait().unwrap();
}
