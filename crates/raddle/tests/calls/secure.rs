//! Calls over TLS, with valid and invalid credentials.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use futures_util::future::join_all;
use raddle::{
    CallError, WorkerPool, WorkerProxy,
    pool::{
        CallTarget, WorkerMetadata,
        connection::ControlConnection,
        worker::{LocalWorker, StopMode},
    },
    tls::{
        CredentialSource, PeerName, PemSource, WorkerCredentials,
        issue::{Authority, IssuedCertificate, Validity},
    },
};

use raddle_wire::v1;

use crate::{CALLEE, routines, wait_until, within};

/// The CA of all certificates unless stated otherwise.
struct Trust(Authority);

impl Trust {
    fn new() -> Self {
        Self(
            Authority::new("test", Validity::days(SystemTime::now(), 1))
                .unwrap()
                .0,
        )
    }

    fn issue(&self, name: &str) -> IssuedCertificate {
        self.0
            .issue(
                &[name.parse().unwrap()],
                Validity::days(SystemTime::now(), 1),
            )
            .unwrap()
    }

    fn source(&self, own: &IssuedCertificate) -> CredentialSource {
        CredentialSource::new(PemSource::bytes(self.0.certificate())).identity(
            PemSource::bytes(&own.certificate),
            PemSource::bytes(&own.key),
        )
    }

    /// Credentials of a caller with this name, which expects the name of the test workers.
    fn caller(&self, name: &str) -> WorkerCredentials {
        let expected: PeerName = "spiffe://test/worker".parse().unwrap();
        self.source(&self.issue(name))
            .expecting([expected])
            .load()
            .unwrap()
    }

    /// A pool whose workers have a SPIFFE id as their name, and options from `with`.
    async fn pool(
        &self,
        with: impl Fn(LocalWorker) -> LocalWorker + Send + Sync + 'static,
    ) -> WorkerPool {
        let own = self.caller("spiffe://test/worker");
        let worker = own.clone();
        let factory = move |tags: &_| {
            with(
                LocalWorker::new(tags)
                    .program(CALLEE)
                    .credentials(worker.clone()),
            )
        };
        WorkerPool::builder()
            .size(1)
            .worker(factory)
            .credentials(own)
            .start()
            .await
            .unwrap()
    }
}

async fn called_by(
    credentials: &WorkerCredentials,
    worker: &WorkerMetadata,
) -> Result<u64, CallError> {
    let proxy = WorkerProxy::of_workers([worker.clone()])
        .credentials(credentials.clone())
        .start()
        .await
        .unwrap();
    routines::add(1, 2).on(&proxy).await
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_streams_and_nested_calls_use_tls() {
    within(120, async {
        let pool = Trust::new().pool(|worker| worker).await;
        let worker = &pool.workers()[0];
        assert!(
            worker.secure && worker.address.starts_with("127.0.0.1:"),
            "{worker:?}"
        );
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        assert_eq!(routines::nested(3).on(&pool).await, Ok(3));
        let many = join_all((0..500).map(|n| routines::add(n, 1).on(&pool))).await;
        assert!(
            many.into_iter()
                .zip(1..)
                .all(|(sum, expected)| sum == Ok(expected))
        );
        for size in [0, 1, 100 << 10, 20 << 20] {
            assert_eq!(
                routines::fill(size).on(&pool).await.map(|text| text.len()),
                Ok(size)
            );
        }
        let large = "x".repeat(20 << 20);
        let error = routines::find(large.clone()).on(&pool).await.unwrap_err();
        assert_eq!(
            error,
            CallError::Failed(routines::FindError::Missing { missing: large })
        );
        let mut items = routines::count(10_000).on(&pool);
        for n in 0..10_000 {
            assert_eq!(items.next().await, Some(Ok(n)));
        }
        assert_eq!(items.next().await, None);
        pool.stop_with(StopMode::Drain).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_and_plain_endpoints_do_not_mix() {
    within(120, async {
        let trust = Trust::new();
        let (secure, plain) = (
            trust.pool(|worker| worker).await,
            crate::start_pool(1).await,
        );
        for (worker, credentials) in [
            (&secure, None),
            (&plain, Some(trust.caller("spiffe://test/web"))),
        ] {
            let proxy = WorkerProxy::of_workers(worker.workers());
            let proxy = match credentials {
                Some(credentials) => proxy.credentials(credentials),
                None => proxy,
            };
            let proxy = proxy.start().await.unwrap();
            let outcome = routines::add(1, 2).on(&proxy).await;
            assert!(
                matches!(outcome, Err(CallError::NoWorkers(_))),
                "{outcome:?}"
            );
        }
        // Metadata that claims a plain endpoint does not help either.
        let lie = WorkerMetadata {
            secure: false,
            ..secure.workers()[0].clone()
        };
        let proxy = WorkerProxy::of_workers([lie]).start().await.unwrap();
        let outcome = routines::add(1, 2).on(&proxy).await;
        assert!(
            matches!(
                outcome,
                Err(CallError::NoWorkers(_) | CallError::Lost { .. })
            ),
            "{outcome:?}"
        );
        assert_eq!(routines::add(1, 2).on(&secure).await, Ok(3));
    })
    .await;
}

/// A discovery publishes a Unix socket as a TLS endpoint.
#[tokio::test(flavor = "multi_thread")]
async fn does_not_call_a_unix_socket_that_is_published_as_secure() {
    within(120, async {
        let (trust, directory) = (Trust::new(), tempfile::tempdir().unwrap());
        let path = directory.path().join("worker.sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let connected = tokio::spawn(async move { listener.accept().await.map(drop) });
        let (pool, own) = (
            trust.pool(|worker| worker).await,
            trust.caller("spiffe://test/web"),
        );
        let lie = WorkerMetadata {
            address: format!("unix:{}", path.display()),
            ..pool.workers()[0].clone()
        };
        let outcome = called_by(&own, &lie).await;
        assert!(
            matches!(outcome, Err(CallError::NoWorkers(_))),
            "{outcome:?}"
        );
        let error = request_info(&lie, &own).await.unwrap_err().to_string();
        assert!(
            !connected.is_finished(),
            "the socket was connected to: {error}"
        );
        connected.abort();
        // A worker of a pool with credentials may serve on a Unix socket without TLS.
        let socket = format!("unix:{}", directory.path().join("own.sock").display());
        let own = trust
            .pool(move |worker| worker.address_of(socket.clone()))
            .await;
        assert!(!own.workers()[0].secure);
        assert_eq!(routines::add(1, 2).on(&own).await, Ok(3));
        own.stop_with(StopMode::Drain).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_counts_and_explains_invalid_certificates() {
    within(120, async {
        let (trust, foreign_ca) = (Trust::new(), Trust::new());
        let pool = trust.pool(|worker| worker).await;
        let worker = pool.workers()[0].clone();
        let foreign = foreign_ca.issue("spiffe://test/web");
        let (now, day) = (SystemTime::now(), Duration::from_secs(24 * 60 * 60));
        let name = "spiffe://test/web".parse().unwrap();
        let expired = trust
            .0
            .issue(
                &[name],
                Validity {
                    from: now - day / 24,
                    until: now - day / 48,
                },
            )
            .unwrap();
        let expected: PeerName = "spiffe://test/worker".parse().unwrap();
        let cases = [
            (
                "wrong CA",
                trust.source(&foreign).expecting([expected.clone()]),
                "unknown_issuer",
            ),
            (
                "expired",
                trust.source(&expired).expecting([expected.clone()]),
                "expired",
            ),
            (
                "no certificate",
                CredentialSource::new(PemSource::bytes(trust.0.certificate()))
                    .mutual(false)
                    .expecting([expected.clone()]),
                "no_certificate",
            ),
        ];
        for (case, source, reason) in cases {
            let outcome = called_by(&source.load().unwrap(), &worker).await;
            assert!(
                matches!(
                    outcome,
                    Err(CallError::NoWorkers(_) | CallError::Lost { .. })
                ),
                "{case}: {outcome:?}"
            );
            let own = trust.caller("spiffe://test/ops");
            wait_until_counted(&worker, &own, reason).await;
        }
        // The reverse: a worker with a certificate of another CA or name.
        let others = [
            (
                "wrong CA",
                foreign_ca.caller("spiffe://test/worker"),
                trust.caller("spiffe://test/web"),
            ),
            (
                "wrong name",
                trust.caller("spiffe://test/other"),
                trust.caller("spiffe://test/web"),
            ),
        ];
        for (case, serves, calls) in others {
            let other = LocalWorker::new(&Default::default())
                .program(CALLEE)
                .credentials(serves);
            let fake = WorkerPool::builder().size(1).credentials(calls).quorum(1);
            let settings = std::sync::Mutex::new(Some(other));
            let fake = fake.worker(move |_: &_| settings.lock().unwrap().take().expect("once"));
            let error = fake.start().await.unwrap_err().to_string();
            assert!(
                error.contains("the TLS handshake failed"),
                "{case}: {error}"
            );
        }
        assert_eq!(
            routines::add(1, 2).on(&pool).await,
            Ok(3),
            "valid callers are served"
        );
    })
    .await;
}

async fn request_info(
    worker: &WorkerMetadata,
    own: &WorkerCredentials,
) -> Result<v1::InfoReply, raddle::pool::RpcError> {
    ControlConnection::with_credentials(&worker.address, Some(own))?
        .info()
        .await
}

async fn wait_until_counted(worker: &WorkerMetadata, own: &WorkerCredentials, reason: &str) {
    let began = Instant::now();
    loop {
        let refused = request_info(worker, own).await.unwrap().refused;
        if refused.get(reason).is_some_and(|count| *count > 0) {
            return;
        }
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{reason}: {refused:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_limit_calls_and_stops() {
    within(120, async {
        let trust = Trust::new();
        let pool = trust
            .pool(|worker| {
                worker.allow(
                    "spiffe://test/worker = *\nspiffe://test/web = add\nspiffe://test/ops = @stop, @info"
                        .parse()
                        .unwrap(),
                )
            })
            .await;
        let worker = pool.workers()[0].clone();
        let web = trust.caller("spiffe://test/web");
        let proxy = WorkerProxy::of_workers([worker.clone()]).credentials(web.clone()).start().await.unwrap();
        assert_eq!(routines::add(1, 2).on(&proxy).await, Ok(3));
        let denied = routines::fill(3).on(&proxy).await.unwrap_err();
        assert!(matches!(&denied, CallError::Denied(_)), "{denied:?}");
        assert_eq!(denied.to_string(), "spiffe://test/web may not call 'fill'");
        assert!(!denied.may_have_begun());
        let stopped =
            ControlConnection::with_credentials(&worker.address, Some(&web)).unwrap().stop(StopMode::Cancel).await;
        assert!(stopped.unwrap_err().to_string().contains("may not stop this worker"));
        assert!(request_info(&worker, &web).await.is_err());
        let ops = trust.caller("spiffe://test/ops");
        assert_eq!(called_by(&ops, &worker).await.unwrap_err().to_string(), "spiffe://test/ops may not call 'add'");
        assert_eq!(request_info(&worker, &ops).await.unwrap().refused["not_allowed"], 4);
        ControlConnection::with_credentials(&worker.address, Some(&ops)).unwrap().stop(StopMode::Cancel).await.unwrap();
        wait_until("the worker has ended", async || !crate::is_alive(worker.pid)).await;
    })
    .await;
}

/// Within a pool, callers have the worker's certificate or none.
#[tokio::test(flavor = "multi_thread")]
async fn one_way_tls_and_rules_allow_calls_within_a_pool() {
    within(60, async {
        let trust = Trust::new();
        let name: PeerName = "spiffe://test/worker".parse().unwrap();
        let source = trust
            .source(&trust.issue("spiffe://test/worker"))
            .expecting([name]);
        let one_way = source.clone().mutual(false).load().unwrap();
        for (own, rules) in [
            (one_way.clone(), None),
            (one_way.clone(), Some("spiffe://test/other = add")),
            (source.load().unwrap(), Some("spiffe://test/other = add")),
        ] {
            let worker = own.clone();
            let factory = move |tags: &_| {
                let worker = LocalWorker::new(tags)
                    .program(CALLEE)
                    .credentials(worker.clone());
                match rules {
                    Some(rules) => worker.allow(rules.parse().unwrap()),
                    None => worker,
                }
            };
            let pool = WorkerPool::builder()
                .size(2)
                .worker(factory)
                .credentials(own.clone())
                .start()
                .await
                .unwrap();
            assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3), "{rules:?}");
            assert_eq!(routines::nested(4).on(&pool).await, Ok(4), "{rules:?}");
            // Other callers with the same certificate, or without one, are subject to the rules.
            let other = called_by(&own, &pool.workers()[0]).await;
            assert_eq!(
                matches!(other, Err(CallError::Denied(_))),
                rules.is_some(),
                "{other:?}"
            );
            pool.stop().await;
        }
    })
    .await;
}

/// Nested calls use the identity of the worker, so a caller needs a right to choose their route.
#[tokio::test(flavor = "multi_thread")]
async fn nested_calls_need_the_route_right() {
    within(120, async {
        let trust = Trust::new();
        let rules = "spiffe://test/worker = *, @route\nspiffe://test/web = nested";
        let pool = trust.pool(|worker| worker.allow(rules.parse().unwrap())).await;
        assert_eq!(routines::nested(2).on(&pool).await, Ok(2));
        let web = trust.caller("spiffe://test/web");
        let proxy = WorkerProxy::of_workers(pool.workers()).credentials(web).start().await.unwrap();
        assert_eq!(routines::nested(0).on(&proxy).await, Ok(0));
        let outcome = routines::nested(1).on(&proxy).await;
        assert!(
            matches!(&outcome, Err(CallError::Failed(error)) if error.contains("no pool to call in")),
            "{outcome:?}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_callers_during_a_thousand_silent_connections_and_garbage() {
    within(120, async {
        let pool = Trust::new().pool(|worker| worker).await;
        let address = pool.workers()[0].address.clone();
        let silent: Vec<TcpStream> = (0..1000)
            .filter_map(|_| TcpStream::connect(&address).ok())
            .collect();
        assert!(silent.len() > 900, "{}", silent.len());
        for nonsense in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"raddle\0\x01garbage",
            b"\x16\x03\x01\xff\xff\xff",
            &[0; 4096],
        ] {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.write_all(nonsense).unwrap();
            // An unfinished handshake is cut off after the common timeout.
            stream
                .set_read_timeout(Some(Duration::from_secs(30)))
                .unwrap();
            let mut answer = Vec::new();
            // The worker sends an alert at most, and closes.
            let end = stream
                .read_to_end(&mut answer)
                .map_err(|error| error.kind());
            assert!(
                matches!(end, Ok(_) | Err(std::io::ErrorKind::ConnectionReset)),
                "{nonsense:?}: {end:?}"
            );
            assert!(answer.len() < 64, "{answer:?}");
        }
        let began = Instant::now();
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{:?}",
            began.elapsed()
        );
        drop(silent);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_certificates_without_interrupting_calls() {
    within(120, async {
        let (trust, directory) = (Trust::new(), tempfile::tempdir().unwrap());
        let path = |name: &str| directory.path().join(name);
        let put = |own: &IssuedCertificate| {
            for (name, text) in [
                ("ca", trust.0.certificate()),
                ("cert", &own.certificate),
                ("key", &own.key),
            ] {
                let temporary = path("new");
                std::fs::write(&temporary, text).unwrap();
                std::fs::rename(temporary, path(name)).unwrap();
            }
        };
        put(&trust.issue("spiffe://test/first"));
        let source = CredentialSource::new(PemSource::file(path("ca")))
            .identity(PemSource::file(path("cert")), PemSource::file(path("key")));
        let own = source.load().unwrap();
        let factory = move |tags: &_| {
            LocalWorker::new(tags)
                .program(CALLEE)
                .credentials(own.clone())
        };
        let named = |name: &str| {
            let expected: PeerName = name.parse().unwrap();
            trust
                .source(&trust.issue("spiffe://test/web"))
                .expecting([expected])
                .load()
                .unwrap()
        };
        let first = named("spiffe://test/first");
        let pool = WorkerPool::builder()
            .size(1)
            .worker(factory)
            .credentials(first.clone())
            .start()
            .await
            .unwrap();
        let worker = pool.workers()[0].clone();
        let running = tokio::spawn(routines::rest(4000).on(&pool));
        assert_eq!(called_by(&first, &worker).await, Ok(3));
        put(&trust.issue("spiffe://test/second"));
        let second = named("spiffe://test/second");
        let began = Instant::now();
        while called_by(&second, &worker).await != Ok(3) {
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "the new certificate is not served"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(
            running.await.unwrap(),
            Ok(worker.pid),
            "the running call continues"
        );
        assert_eq!(
            routines::add(1, 2).on(&pool).await,
            Ok(3),
            "the open connection stays valid"
        );
    })
    .await;
}

/// As documented: the certificate names the address that other hosts use.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_trusts_its_own_workers_under_any_certificate_name() {
    within(120, async {
        let trust = Trust::new();
        let own = trust.source(&trust.issue("10.0.0.7")).load().unwrap();
        let worker = own.clone();
        let factory = move |tags: &_| {
            LocalWorker::new(tags)
                .program(CALLEE)
                .address_of("0.0.0.0:0")
                .credentials(worker.clone())
        };
        let pool = WorkerPool::builder()
            .size(1)
            .worker(factory)
            .credentials(own)
            .start()
            .await
            .unwrap();
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        assert_eq!(routines::nested(2).on(&pool).await, Ok(2));
        // Other callers check the name.
        let other = trust.source(&trust.issue("10.0.0.8")).load().unwrap();
        let here = WorkerMetadata {
            address: pool.workers()[0].address.replace("0.0.0.0", "127.0.0.1"),
            ..pool.workers()[0].clone()
        };
        let outcome = called_by(&other, &here).await;
        assert!(
            matches!(outcome, Err(CallError::NoWorkers(_))),
            "{outcome:?}"
        );
        pool.stop_with(StopMode::Drain).await;
    })
    .await;
}

/// A caller's certificate is not accepted from a worker, whatever a discovery publishes.
#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_caller_certificate_as_a_worker() {
    within(120, async {
        let (trust, day) = (Trust::new(), Validity::days(SystemTime::now(), 1));
        let names = ["127.0.0.1".parse().unwrap(), "spiffe://test/web".parse().unwrap()];
        let own = trust.source(&trust.0.issue_for_caller(&names, day).unwrap()).load().unwrap();
        let honest = trust.pool(|worker| worker).await;
        assert_eq!(called_by(&trust.caller("spiffe://test/other"), &honest.workers()[0]).await, Ok(3));
        // The certificate is valid for calls,
        let named: PeerName = "spiffe://test/worker".parse().unwrap();
        let calls = trust.source(&trust.0.issue_for_caller(&names, day).unwrap()).expecting([named]).load().unwrap();
        assert_eq!(called_by(&calls, &honest.workers()[0]).await, Ok(3));
        // and not for serving.
        let serves = LocalWorker::new(&Default::default()).program(CALLEE).credentials(own);
        raddle::pool::worker::Worker::start(&serves, None).await.unwrap();
        let fake = raddle::pool::worker::Worker::metadata(&serves).unwrap();
        let caller = trust.source(&trust.issue("spiffe://test/other")).load().unwrap();
        let outcome = called_by(&caller, &fake).await;
        assert!(
            matches!(&outcome, Err(CallError::NoWorkers(none)) if none.to_string().contains("trust")),
            "{outcome:?}"
        );
        assert_eq!(serves.process().unwrap().call_counts().await.taken, 0, "it has received no call");
        raddle::pool::worker::Worker::stop(&serves, StopMode::Cancel).await.unwrap();
    })
    .await;
}

/// The workers refuse stop requests without a right; the pool that started them does not need one.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_drains_its_workers_regardless_of_their_rules() {
    within(120, async {
        let trust = Trust::new();
        let name: PeerName = "spiffe://test/worker".parse().unwrap();
        let one_way = trust
            .source(&trust.issue("spiffe://test/worker"))
            .mutual(false)
            .expecting([name])
            .load()
            .unwrap();
        let worker = one_way.clone();
        let factory = move |tags: &_| {
            LocalWorker::new(tags)
                .program(CALLEE)
                .credentials(worker.clone())
        };
        let one_way = WorkerPool::builder()
            .size(1)
            .worker(factory)
            .credentials(one_way)
            .start()
            .await
            .unwrap();
        let ruled = trust
            .pool(|worker| worker.allow("spiffe://test/worker = *".parse().unwrap()))
            .await;
        for pool in [one_way, ruled] {
            let pid = pool.workers()[0].pid;
            let running = tokio::spawn(routines::rest(2000).on(&pool));
            wait_until("the call is running", async || {
                pool.proxy().context().workers()[0].in_flight() == 1
            })
            .await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            pool.stop_with(StopMode::DrainFor(Duration::from_secs(30)))
                .await;
            assert_eq!(
                running.await.unwrap(),
                Ok(pid),
                "the stop has waited for the call"
            );
            assert!(!crate::is_alive(pid));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_public_port_needs_tls_or_insecure() {
    within(120, async {
        let open = |tags: &_| {
            LocalWorker::new(tags)
                .program(CALLEE)
                .address_of("0.0.0.0:0")
        };
        let error = WorkerPool::builder()
            .size(1)
            .worker(open)
            .start()
            .await
            .unwrap_err()
            .to_string();
        let help = ["give credentials for TLS", "or say that it may be insecure"];
        assert!(help.iter().all(|part| error.contains(part)), "{error}");
        let insecure = move |tags: &_| open(tags).insecure();
        let pool = WorkerPool::builder()
            .size(1)
            .worker(insecure)
            .start()
            .await
            .unwrap();
        assert!(!pool.workers()[0].secure);
        let trust = Arc::new(Trust::new());
        let pool = trust.pool(|worker| worker.address_of("0.0.0.0:0")).await;
        assert!(pool.workers()[0].secure);
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
    })
    .await;
}

/// The error of a pool with these credentials whose worker has those.
async fn refused_at_start(
    pool: Option<&WorkerCredentials>,
    worker: Option<&WorkerCredentials>,
) -> String {
    let own = worker.cloned();
    let factory = move |tags: &_| {
        let worker = LocalWorker::new(tags)
            .program(CALLEE)
            .address_of("127.0.0.1:0");
        match &own {
            Some(own) => worker.credentials(own.clone()),
            None => worker,
        }
    };
    let builder = WorkerPool::builder().size(2).worker(factory);
    let builder = match pool {
        Some(pool) => builder.credentials(pool.clone()),
        None => builder,
    };
    let error = builder.start().await.unwrap_err().to_string();
    assert_eq!(
        crate::children(),
        Vec::<u32>::new(),
        "no child process is left"
    );
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_does_not_start_if_tls_cannot_work_with_its_workers() {
    within(120, async {
        let (trust, other) = (Trust::new(), Trust::new());
        let of_host = |trust: &Trust, name: &str| trust.source(&trust.issue(name)).load().unwrap();
        let good = of_host(&trust, "127.0.0.1");
        for (pool, worker, expected) in [
            // A name that is no address of the worker, and a CA that the pool does not trust.
            (
                Some(of_host(&trust, "elsewhere.test")),
                Some(of_host(&trust, "elsewhere.test")),
                "TLS between the pool and its worker",
            ),
            (
                Some(good.clone()),
                Some(of_host(&other, "127.0.0.1")),
                "TLS between the pool and its worker",
            ),
            (None, Some(good.clone()), "the pool has no credentials"),
            (Some(good.clone()), None, "the worker serves without TLS"),
        ] {
            let error = refused_at_start(pool.as_ref(), worker.as_ref()).await;
            assert!(
                error.starts_with("2 of 2 workers could not be started: ")
                    && error.contains(expected),
                "{error}"
            );
        }
    })
    .await;
}
