//! Certificates as they are issued, at both ends of a socket.

use std::{
    io,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use raddle_tls::{
    Action, AllowRules, CredentialSource, HandshakeError, HandshakeErrorKind, Identity, PemSource,
    WorkerCredentials,
    issue::{Authority, Validity, write_pair},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{issue, world_with_ca};
use crate::world::World;

const PROTOCOLS: &[&[u8]] = &[b"raddle/1", b"h2"];
const DEADLINE: Duration = Duration::from_secs(90);

type Files = (PathBuf, PathBuf);

/// Credentials of issued files.
fn credentials(world: &World, (certificate, key): &Files) -> WorkerCredentials {
    WorkerCredentials::from_files(world.path().join("certs/ca-cert.pem"), certificate, key).unwrap()
}

/// The result on each side: the caller's identity at the worker, and the reply to the caller.
struct Met {
    worker: io::Result<Option<Identity>>,
    caller: io::Result<()>,
}

/// A connection over loopback, one word each way.
fn meet(worker: &WorkerCredentials, caller: &WorkerCredentials) -> Met {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    within(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(worker.server_config(PROTOCOLS).unwrap());
        let connector = TlsConnector::from(caller.client_config(PROTOCOLS));
        let worker = async {
            let (stream, _) = listener.accept().await?;
            let mut stream = acceptor.accept(stream).await?;
            let mut word = [0; 4];
            stream.read_exact(&mut word).await?;
            stream.write_all(&word).await?;
            stream.shutdown().await?;
            Ok(Identity::from_peer_chain(stream.get_ref().1.peer_certificates()).unwrap())
        };
        let caller = async {
            let name = WorkerCredentials::server_name("127.0.0.1").unwrap();
            let mut stream = connector
                .connect(name, TcpStream::connect(address).await?)
                .await?;
            stream.write_all(b"ping").await?;
            let mut word = [0; 4];
            stream.read_exact(&mut word).await?;
            assert_eq!(&word, b"ping");
            Ok(())
        };
        let (worker, caller) = tokio::join!(worker, caller);
        Met { worker, caller }
    })
}

fn within<T>(runtime: &Runtime, deed: impl Future<Output = T>) -> T {
    runtime.block_on(async { timeout(DEADLINE, deed).await.expect("it takes no time") })
}

impl Met {
    /// Why the worker has refused, if it is what the caller has heard as well.
    #[track_caller]
    fn refused_by_worker(&self) -> HandshakeErrorKind {
        let Some(HandshakeError::Ours(reason)) =
            self.worker.as_ref().err().and_then(HandshakeError::from_io)
        else {
            panic!("{:?}", self.worker)
        };
        assert_eq!(
            self.caller.as_ref().err().and_then(HandshakeError::from_io),
            Some(HandshakeError::Theirs(reason.clone()))
        );
        reason
    }

    /// Why the caller has.
    #[track_caller]
    fn refused_by_caller(&self) -> HandshakeErrorKind {
        assert!(self.worker.is_err());
        match self.caller.as_ref().err().and_then(HandshakeError::from_io) {
            Some(HandshakeError::Ours(reason)) => reason,
            _ => panic!("{:?}", self.caller),
        }
    }
}

#[test]
fn issued_certificates_work_for_workers_and_callers() {
    let world = world_with_ca();
    let worker = credentials(&world, &issue(&world, &["127.0.0.1", "worker.internal"]));
    let caller = credentials(&world, &issue(&world, &["spiffe://prod/web"]));
    let met = meet(&worker, &caller);
    met.caller.unwrap();
    let identity = met.worker.unwrap();
    assert_eq!(identity.as_ref().unwrap().to_string(), "spiffe://prod/web");
    let rules: AllowRules = "spiffe://prod/* = math.*".parse().unwrap();
    assert!(rules.permits(identity.as_ref(), Action::Call("math.add")));
    assert!(!rules.permits(identity.as_ref(), Action::Stop));
}

#[test]
fn refuses_callers_without_a_certificate() {
    let world = world_with_ca();
    let worker = credentials(&world, &issue(&world, &["127.0.0.1"]));
    let ca = PemSource::file(world.path().join("certs/ca-cert.pem"));
    let stranger = CredentialSource::new(ca).mutual(false).load().unwrap();
    assert_eq!(
        meet(&worker, &stranger).refused_by_worker(),
        HandshakeErrorKind::NoCertificate
    );
}

#[test]
fn refuses_certificates_of_another_ca() {
    let (world, other) = (world_with_ca(), world_with_ca());
    let worker = credentials(&world, &issue(&world, &["127.0.0.1"]));
    let foreign = credentials(&world, &issue(&other, &["spiffe://prod/web"]));
    assert_eq!(
        meet(&worker, &foreign).refused_by_worker(),
        HandshakeErrorKind::UnknownIssuer
    );
    let caller = credentials(&other, &issue(&other, &["spiffe://prod/caller"]));
    assert_eq!(
        meet(&worker, &caller).refused_by_caller(),
        HandshakeErrorKind::UnknownIssuer
    );
}

#[test]
fn refuses_expired_certificates() {
    let world = world_with_ca();
    let worker = credentials(&world, &issue(&world, &["127.0.0.1"]));
    // The CA began an hour ago, and this ended half an hour ago.
    let read = |name: &str| std::fs::read_to_string(world.path().join("certs").join(name)).unwrap();
    let ca = Authority::from_pem(&read("ca-cert.pem"), &read("ca-key.pem")).unwrap();
    let until = SystemTime::now() - Duration::from_secs(30 * 60);
    let old = |name: &str, stem: &str| {
        let validity = Validity {
            from: until - Duration::from_secs(3600),
            until,
        };
        let pair = ca.issue(&[name.parse().unwrap()], validity).unwrap();
        credentials(
            &world,
            &write_pair(world.path(), stem, &pair, false).unwrap(),
        )
    };
    assert_eq!(
        meet(&worker, &old("spiffe://prod/old", "caller")).refused_by_worker(),
        HandshakeErrorKind::Expired
    );
    let caller = credentials(&world, &issue(&world, &["spiffe://prod/web"]));
    assert_eq!(
        meet(&old("127.0.0.1", "worker"), &caller).refused_by_caller(),
        HandshakeErrorKind::Expired
    );
    let ran = world.raddle(["cert", "show", "caller-cert.pem"]).ok();
    assert!(
        ran.text().contains("(expired 30m ago)") || ran.text().contains("(expired 31m ago)"),
        "{}",
        ran.text()
    );
}

#[test]
fn refuses_a_worker_with_another_name() {
    let world = world_with_ca();
    let worker = credentials(&world, &issue(&world, &["worker.internal", "127.0.0.2"]));
    let files = issue(&world, &["spiffe://prod/web"]);
    let caller = credentials(&world, &files);
    let HandshakeErrorKind::WrongName(wrong) = meet(&worker, &caller).refused_by_caller() else {
        panic!("it is for another name")
    };
    assert_eq!(
        (wrong.expected.as_str(), wrong.shown.as_str()),
        ("127.0.0.1", "worker.internal")
    );
    let expecting = caller
        .source()
        .clone()
        .expecting(["worker.internal".parse().unwrap()])
        .load()
        .unwrap();
    meet(&worker, &expecting).caller.unwrap();
}

#[test]
fn refuses_self_signed_certificates() {
    let world = world_with_ca();
    let worker = credentials(&world, &issue(&world, &["127.0.0.1"]));
    let make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=web.internal";
    world
        .bash(&format!("{make} -addext basicConstraints=critical,CA:FALSE -keyout own-key.pem -out own-cert.pem"))
        .ok();
    let own = credentials(
        &world,
        &(
            world.path().join("own-cert.pem"),
            world.path().join("own-key.pem"),
        ),
    );
    assert_eq!(
        meet(&worker, &own).refused_by_worker(),
        HandshakeErrorKind::UnknownIssuer
    );
}

/// Others speak the same TLS.
#[test]
fn accepts_openssl_as_a_caller() {
    let world = world_with_ca();
    let worker = credentials(&world, &issue(&world, &["127.0.0.1"]));
    issue(&world, &["spiffe://prod/web"]);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let listener = within(&runtime, TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(worker.server_config(PROTOCOLS).unwrap());
    let serving = runtime.spawn(async move {
        let (stream, _) = listener.accept().await?;
        let mut stream = acceptor.accept(stream).await?;
        stream.write_all(b"welcome\n").await?;
        stream.shutdown().await?;
        let protocol = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
        Ok::<_, io::Error>((
            Identity::from_peer_chain(stream.get_ref().1.peer_certificates()).unwrap(),
            protocol,
        ))
    });
    let ran = world.bash(&format!(
        "openssl s_client -connect 127.0.0.1:{port} -alpn h2 -quiet -verify_return_error -verify_ip 127.0.0.1 \
         -CAfile certs/ca-cert.pem -cert certs/prod-web-cert.pem -key certs/prod-web-key.pem </dev/null"
    ));
    assert_eq!(ran.ok().text(), "welcome\n");
    let (identity, protocol) = within(&runtime, serving).unwrap().unwrap();
    assert_eq!(
        (identity.unwrap().to_string().as_str(), protocol.as_deref()),
        ("spiffe://prod/web", Some(&b"h2"[..]))
    );
}
