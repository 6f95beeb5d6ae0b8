//! Workers that are found in other ways than by their name on this machine.

use std::collections::BTreeSet;

use raddle::{WorkerPool, discovery::FileDiscovery, pool::worker::LocalWorker};

use crate::{CALLEE, is_alive, pool, routines, signal, until, within};

fn pids(pool: &WorkerPool) -> BTreeSet<u32> {
    pool.workers().iter().map(|worker| worker.pid).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_are_written_down_are_called() {
    within(60, async {
        let home = tempfile::tempdir().unwrap();
        let written = || FileDiscovery::new(home.path().join("workers")).unwrap();
        let files = || std::fs::read_dir(home.path().join("workers")).map_or(0, Iterator::count);
        // Nobody is there yet.
        let durable = WorkerPool::builder().discovery(written()).start().await.unwrap();
        assert!(routines::add(1, 2).on(&durable).await.unwrap_err().to_string().contains("no worker"));
        let at_a_port = |tags: &_| LocalWorker::new(tags).program(CALLEE).address_of("127.0.0.1:0");
        let owner = pool(2).worker(at_a_port).publisher(written()).start().await.unwrap();
        until("they are found", || pids(&durable) == pids(&owner)).await;
        assert_eq!(routines::add(1, 2).on(&durable).await, Ok(3));
        assert_eq!(routines::nested(2).on(&durable).await, Ok(2));
        // What was killed is written down no more when its pool has noticed, and another is.
        let killed = *pids(&owner).first().unwrap();
        signal(killed, libc::SIGKILL);
        let is_replaced = || !pids(&durable).contains(&killed) && pids(&durable).len() == 2;
        until("another is found", is_replaced).await;
        assert_eq!((routines::add(1, 2).on(&durable).await, files()), (Ok(3), 2));
        drop(owner);
        until("they are missed", || durable.workers().is_empty()).await;
        assert_eq!(files(), 0);
    })
    .await;
}

/// Nobody is left who could strike it out.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_gone_and_still_written_down_costs_no_call() {
    within(60, async {
        let home = tempfile::tempdir().unwrap();
        let list = home.path().join("workers.json");
        let at_a_port = |tags: &_| LocalWorker::new(tags).program(CALLEE).address_of("127.0.0.1:0");
        let [stays, goes] = [pool(1).worker(at_a_port), pool(1).worker(at_a_port)].map(|pool| pool.start());
        let (stays, goes) = (stays.await.unwrap(), goes.await.unwrap());
        let addresses = [&stays, &goes].map(|pool| format!(r#"{{"address": "{}"}}"#, pool.workers()[0].address));
        std::fs::write(&list, format!("[{}]", addresses.join(","))).unwrap();
        let durable = WorkerPool::builder().discovery(FileDiscovery::new(&list).unwrap()).start().await.unwrap();
        assert_eq!(durable.workers().len(), 2);
        let gone = goes.workers()[0].pid;
        goes.stop().await;
        assert!(!is_alive(gone));
        for n in 0..20 {
            assert_eq!(routines::add(n, 1).on(&durable).await, Ok(n + 1));
        }
        assert_eq!(durable.workers().len(), 2, "it may come back");
        std::fs::write(&list, format!("[{}]", addresses[0])).unwrap();
        until("it is struck out", || durable.workers().len() == 1).await;
    })
    .await;
}
