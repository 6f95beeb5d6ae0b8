//! Links that have more to say than anybody wants to hear, and links that hear nothing.

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
    Honest, Raw, Site,
    raw::{call, ping, request},
    until, within,
};

/// Links that flood a worker at the same time: more than it has threads.
const LINKS: usize = 8;

/// Sends this over and over, and reads what is said to it, until it is dropped.
struct Flood {
    is_over: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Flood {
    fn begin(address: &str, words: &[u8]) -> Self {
        let (is_over, sent) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let batch = words.repeat((64 * 1024 / words.len()).max(1));
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
                let mut heard = vec![0; 256 * 1024];
                while matches!(reader.read(&mut heard), Ok(1..)) {}
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

async fn keeps_nobody_waiting(words: Vec<u8>, counted: Option<&str>) {
    within(120, async {
        let site = Site::plain().await;
        let honest = Honest::begin(&site).await;
        let flood = Flood::begin(site.address(), &words);
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert!(
            flood.sent.load(Ordering::Relaxed) > LINKS as u64,
            "the flood is heard"
        );
        honest.was_served().await;
        tokio::task::spawn_blocking(|| drop(flood)).await.unwrap();
        if let Some(reason) = counted {
            site.tells(&[reason], 1000).await;
        }
        println!("{} MiB", site.memory("VmRSS"));
        assert!(site.memory("VmRSS") < 300, "{} MiB", site.memory("VmRSS"));
        site.ends().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_questions_keeps_nobody_waiting() {
    keeps_nobody_waiting(ping(), None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_calls_that_nobody_knows_keeps_nobody_waiting() {
    keeps_nobody_waiting(call(1, "no-such", &[]), Some("unknown_routine")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_credit_for_nothing_keeps_nobody_waiting() {
    keeps_nobody_waiting(request(7, What::Credit(1), &[]), None).await;
}

/// Asks for more and more, and reads nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_is_not_heard_and_then_hung_up_on() {
    within(150, async {
        let site = Site::plain().await;
        let honest = Honest::begin(&site).await;
        let before = site.memory("VmRSS");
        // Answers that are small, answers that are not, and a stream of them.
        let unknown = call(1, &"x".repeat(128), &[]).repeat(500);
        let echo = call(
            1,
            "echo",
            &[&[0x91, 0xdb, 0, 3, 0, 0][..], &vec![b'x'; 3 << 16]].concat(),
        );
        let deaf: Vec<_> = [ping().repeat(1000), unknown, echo]
            .into_iter()
            .map(|words| {
                let address = site.address().to_owned();
                thread::spawn(move || {
                    let mut raw = Raw::link(&address).unwrap();
                    let mut sent = 0;
                    // It is not read any more at some point, and then it is hung up on.
                    while raw.send(&words).is_ok() {
                        sent += words.len();
                    }
                    sent
                })
            })
            .collect();
        let mut most = before;
        until("all are hung up on", async || {
            most = most.max(site.memory("VmRSS"));
            tokio::time::sleep(Duration::from_millis(100)).await;
            deaf.iter().all(thread::JoinHandle::is_finished)
        })
        .await;
        let sent: Vec<usize> = deaf
            .into_iter()
            .map(|deaf| deaf.join().unwrap() >> 20)
            .collect();
        println!("{sent:?} MiB were sent, and the worker took {most} MiB ({before} before)");
        assert!(most < before + 150, "{most} MiB of {before}");
        site.tells(&["unread"], 3).await;
        honest.was_served().await;
        site.ends().await;
    })
    .await;
}
