//! Links that flood a worker, and links that do not read.

use std::{
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use raddle_wire::v1::request::What;

use crate::{
    HonestCaller, Raw, TargetServer,
    raw::{call, ping, request},
    wait_until, within,
};

/// The number of flooding links: more than the worker has threads.
const LINKS: usize = 8;

/// Sends these bytes in a loop and reads the replies, until it is dropped.
struct Flood {
    is_over: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Flood {
    fn begin(address: &str, bytes: &[u8]) -> Self {
        let (is_over, sent) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let batch = bytes.repeat((64 * 1024 / bytes.len()).max(1));
        let mut threads = Vec::new();
        for _ in 0..LINKS {
            let mut writer = Raw::link(address).unwrap();
            let mut reader = writer.0.try_clone().unwrap();
            let (over, count, batch) = (Arc::clone(&is_over), Arc::clone(&sent), batch.clone());
            threads.push(thread::spawn(move || {
                while !over.load(Ordering::Relaxed) && writer.send(&batch).is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                let _ = writer.0.shutdown(std::net::Shutdown::Both);
            }));
            threads.push(thread::spawn(move || {
                let mut buffer = vec![0; 256 * 1024];
                while matches!(reader.read(&mut buffer), Ok(1..)) {}
            }));
        }
        Self {
            is_over,
            sent,
            threads,
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

async fn run_flood(bytes: Vec<u8>, counted: Option<&str>) {
    within(120, async {
        let target = TargetServer::plain().await;
        let honest = HonestCaller::begin(&target).await;
        let flood = Flood::begin(target.address(), &bytes);
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert!(
            flood.sent.load(Ordering::Relaxed) > LINKS as u64,
            "the worker reads the flood"
        );
        honest.assert_served().await;
        tokio::task::spawn_blocking(|| drop(flood)).await.unwrap();
        if let Some(reason) = counted {
            target.wait_until_refused(&[reason], 1000).await;
        }
        println!("{} MiB", target.memory("VmRSS"));
        assert!(
            target.memory("VmRSS") < 300,
            "{} MiB",
            target.memory("VmRSS")
        );
        target.assert_healthy_and_stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_callers_during_a_flood_of_pings() {
    run_flood(ping(), None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_callers_during_a_flood_of_unknown_calls() {
    run_flood(call(1, "no-such", &[]), Some("unknown_routine")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_callers_during_a_flood_of_credit() {
    run_flood(request(7, What::Credit(1), &[]), None).await;
}

/// Sends requests and reads no reply.
#[tokio::test(flavor = "multi_thread")]
async fn disconnects_a_peer_that_does_not_read() {
    within(150, async {
        let target = TargetServer::plain().await;
        let honest = HonestCaller::begin(&target).await;
        let before = target.memory("VmRSS");
        // Small replies, large replies, and streams.
        let unknown = call(1, &"x".repeat(128), &[]).repeat(500);
        let echo = call(
            1,
            "echo",
            &[&[0x91, 0xdb, 0, 3, 0, 0][..], &vec![b'x'; 3 << 16]].concat(),
        );
        let non_readers: Vec<_> = [ping().repeat(1000), unknown, echo]
            .into_iter()
            .map(|bytes| {
                let address = target.address().to_owned();
                thread::spawn(move || {
                    let mut raw = Raw::link(&address).unwrap();
                    let mut sent = 0;
                    // At some point the worker stops reading, then it disconnects.
                    while raw.send(&bytes).is_ok() {
                        sent += bytes.len();
                    }
                    sent
                })
            })
            .collect();
        let mut most = before;
        wait_until("all are disconnected", async || {
            most = most.max(target.memory("VmRSS"));
            tokio::time::sleep(Duration::from_millis(100)).await;
            non_readers.iter().all(thread::JoinHandle::is_finished)
        })
        .await;
        let sent: Vec<usize> = non_readers
            .into_iter()
            .map(|non_readers| non_readers.join().unwrap() >> 20)
            .collect();
        println!("{sent:?} MiB were sent, and the worker took {most} MiB ({before} before)");
        assert!(most < before + 150, "{most} MiB of {before}");
        target.wait_until_refused(&["unread"], 3).await;
        honest.assert_served().await;
        target.assert_healthy_and_stop().await;
    })
    .await;
}
