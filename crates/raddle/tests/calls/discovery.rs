//! Workers found by file and DNS discovery.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use raddle::{
    CallError, WorkerPool,
    discovery::{DnsDiscovery, FileDiscovery},
    pool::worker::LocalWorker,
};

use tonic::transport::server::TcpIncoming;

use crate::{CALLEE, is_alive, pool, routines, signal, wait_until, within};

fn pids(pool: &WorkerPool) -> BTreeSet<u32> {
    pool.workers().iter().map(|worker| worker.pid).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_workers_from_a_file() {
    within(120, async {
        let directory = tempfile::tempdir().unwrap();
        let discovery = || FileDiscovery::new(directory.path().join("workers")).unwrap();
        let files =
            || std::fs::read_dir(directory.path().join("workers")).map_or(0, Iterator::count);
        // No worker is published yet.
        let durable = WorkerPool::builder()
            .discovery(discovery())
            .start()
            .await
            .unwrap();
        assert!(
            routines::add(1, 2)
                .on(&durable)
                .await
                .unwrap_err()
                .to_string()
                .contains("no worker")
        );
        let at_a_port = |tags: &_| {
            LocalWorker::new(tags)
                .program(CALLEE)
                .address_of("127.0.0.1:0")
        };
        let owner = pool(2)
            .worker(at_a_port)
            .publisher(discovery())
            .start()
            .await
            .unwrap();
        wait_until("the workers are found", async || {
            pids(&durable) == pids(&owner)
        })
        .await;
        assert_eq!(routines::add(1, 2).on(&durable).await, Ok(3));
        assert_eq!(routines::nested(2).on(&durable).await, Ok(2));
        // The pool removes the entry of a killed worker and publishes its replacement.
        let killed = *pids(&owner).first().unwrap();
        signal(killed, libc::SIGKILL);
        let is_replaced = async || !pids(&durable).contains(&killed) && pids(&durable).len() == 2;
        wait_until("the replacement is found", is_replaced).await;
        assert_eq!(
            (routines::add(1, 2).on(&durable).await, files()),
            (Ok(3), 2)
        );
        drop(owner);
        wait_until("the workers are dropped", async || {
            durable.workers().is_empty()
        })
        .await;
        assert_eq!(files(), 0);
    })
    .await;
}

/// The entry in the file does not change when a worker starts at an address where another server
/// was.
#[tokio::test(flavor = "multi_thread")]
async fn calls_an_address_again_once_a_worker_serves_there() {
    within(120, async {
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("workers.json");
        // A gRPC server without the worker service. It ends with its runtime, and its connections
        // with it.
        let other_server = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let incoming = {
            let _entered = other_server.enter();
            TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
        };
        let address = incoming.local_addr().unwrap().to_string();
        let (_, health) = tonic_health::server::health_reporter();
        other_server.spawn(
            tonic::transport::Server::builder()
                .add_service(health)
                .serve_with_incoming(incoming),
        );
        std::fs::write(&list, format!(r#"{{"address": "{address}"}}"#)).unwrap();
        let discovery = FileDiscovery::new(&list).unwrap();
        let durable = WorkerPool::builder()
            .discovery(discovery)
            .start()
            .await
            .unwrap();
        assert_eq!(durable.workers().len(), 1);
        let refused = routines::add(1, 2).on(&durable).await;
        assert!(
            matches!(refused, Err(CallError::NoWorkers(_))),
            "{refused:?}"
        );
        assert!(durable.workers().is_empty(), "the endpoint is given up");
        other_server.shutdown_background();
        let at = move |tags: &_| LocalWorker::new(tags).program(CALLEE).address_of(&address);
        let _owner = pool(1).worker(at).start().await.unwrap();
        while routines::add(1, 2).on(&durable).await != Ok(3) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// No process is left that could remove its entry.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_worker_in_the_file_fails_no_call() {
    within(120, async {
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("workers.json");
        let at_a_port = |tags: &_| {
            LocalWorker::new(tags)
                .program(CALLEE)
                .address_of("127.0.0.1:0")
        };
        let [stays, goes] =
            [pool(1).worker(at_a_port), pool(1).worker(at_a_port)].map(|pool| pool.start());
        let (stays, goes) = (stays.await.unwrap(), goes.await.unwrap());
        let addresses = [&stays, &goes]
            .map(|pool| format!(r#"{{"address": "{}"}}"#, pool.workers()[0].address));
        std::fs::write(&list, format!("[{}]", addresses.join(","))).unwrap();
        let durable = WorkerPool::builder()
            .discovery(FileDiscovery::new(&list).unwrap())
            .start()
            .await
            .unwrap();
        assert_eq!(durable.workers().len(), 2);
        let gone = goes.workers()[0].pid;
        goes.stop().await;
        assert!(!is_alive(gone));
        for n in 0..20 {
            assert_eq!(routines::add(n, 1).on(&durable).await, Ok(n + 1));
        }
        assert_eq!(
            durable.workers().len(),
            2,
            "the entry stays, because the worker may come back"
        );
        std::fs::write(&list, format!("[{}]", addresses[0])).unwrap();
        wait_until("the entry is removed", async || {
            durable.workers().len() == 1
        })
        .await;
    })
    .await;
}

/// A name server. Dropping it kills the process.
struct NameServer(Child);

impl NameServer {
    /// A server with these SRV records only.
    fn start(port: u16, directory: &Path, services: &[String]) -> Self {
        let of_worker = |address: &String| {
            let port = address.rsplit_once(':').unwrap().1;
            format!("srv-host=_raddle._tcp.w.test,host.test,{port}\n")
        };
        let services: String = services.iter().map(of_worker).collect();
        let user = if is_root() { "user=root\n" } else { "" };
        let common = "no-daemon\nno-resolv\nno-hosts\nbind-interfaces\nlisten-address=127.0.0.1\nlocal=/test/\n";
        let hosts = "host-record=host.test,127.0.0.1\n";
        let conf = directory.join("dnsmasq.conf");
        std::fs::write(
            &conf,
            format!("port={port}\n{common}{hosts}{user}{services}"),
        )
        .unwrap();
        let mut command = Command::new("dnsmasq");
        command
            .arg(format!("--conf-file={}", conf.display()))
            .arg("--pid-file");
        Self(
            command
                .spawn()
                .expect("dnsmasq is installed: `cargo xtask test` does it"),
        )
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_root() -> bool {
    // SAFETY: `geteuid` has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A port that is free for UDP and TCP.
fn free_port() -> u16 {
    let mut ports = std::iter::repeat_with(|| {
        UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port()
    });
    ports
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_workers_from_dns() {
    within(120, async {
        let (directory, port) = (tempfile::tempdir().unwrap(), free_port());
        let at_a_port = |tags: &_| {
            LocalWorker::new(tags)
                .program(CALLEE)
                .address_of("127.0.0.1:0")
        };
        let owner = pool(2).worker(at_a_port).start().await.unwrap();
        let addresses: Vec<_> = owner
            .workers()
            .into_iter()
            .map(|worker| worker.address)
            .collect();
        // The name server does not answer yet; the pool starts all the same.
        let name = DnsDiscovery::new("_raddle._tcp.w.test")
            .unwrap()
            .tags(["by-name"]);
        let name = name
            .name_servers([SocketAddr::from(([127, 0, 0, 1], port))])
            .poll_interval(Duration::from_millis(50));
        let durable = WorkerPool::builder()
            .discovery(name)
            .tags(["by-name"])
            .start()
            .await
            .unwrap();
        assert_eq!(durable.workers(), []);
        let server = NameServer::start(port, directory.path(), &addresses);
        wait_until("the workers are found", async || {
            durable.workers().len() == 2
        })
        .await;
        let called = [
            routines::pid().on(&durable).await.unwrap(),
            routines::pid().on(&durable).await.unwrap(),
        ];
        assert_eq!(BTreeSet::from(called), pids(&owner));
        drop(server);
        // Known workers are called while the name server is down.
        assert_eq!(routines::add(1, 2).on(&durable).await, Ok(3));
        let server = NameServer::start(port, directory.path(), &addresses[..1]);
        wait_until("one worker is dropped", async || {
            durable.workers().len() == 1
        })
        .await;
        assert_eq!(routines::add(1, 2).on(&durable).await, Ok(3));
        drop(server);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_does_not_start_if_its_workers_cannot_be_published() {
    within(120, async {
        let directory = tempfile::tempdir().unwrap();
        // Publishing needs a directory, and this is a file.
        let list = directory.path().join("workers.json");
        std::fs::write(&list, "[]").unwrap();
        let at_a_port = |tags: &_| {
            LocalWorker::new(tags)
                .program(CALLEE)
                .address_of("127.0.0.1:0")
        };
        let builder = || {
            pool(2)
                .worker(at_a_port)
                .publisher(FileDiscovery::new(&list).unwrap())
        };
        let error = builder().start().await.unwrap_err().to_string();
        let expected = "2 of 2 workers could not be started: cannot publish a worker (";
        assert!(
            error.starts_with(expected) && error.contains("workers.json"),
            "{error}"
        );
        assert_eq!(
            crate::children(),
            Vec::<u32>::new(),
            "no child process is left"
        );
        // A lazy pool starts all the same, because nothing waits for its workers.
        let lazy = builder().lazy().start().await.unwrap();
        assert_eq!(routines::add(1, 2).on(&lazy).await, Ok(3));
    })
    .await;
}
