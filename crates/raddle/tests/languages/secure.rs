//! Python workers and callers with credentials.

use std::{fs, time::SystemTime};

use raddle::{
    CallError, WorkerPool, WorkerProxy,
    discovery::FileDiscovery,
    pool::worker::LocalWorker,
    tls::{
        WorkerCredentials,
        issue::{Authority, Validity},
    },
};

use crate::{find, python::Python, within};

/// A CA that writes its certificates to files.
struct Trust<'a> {
    python: &'a Python,
    authority: Authority,
}

impl<'a> Trust<'a> {
    fn new(python: &'a Python, name: &str) -> Self {
        let (authority, _) = Authority::new(name, Validity::days(SystemTime::now(), 1)).unwrap();
        fs::write(python.file(&format!("{name}.ca")), authority.certificate()).unwrap();
        Self { python, authority }
    }

    /// The files of a peer with this name: the CA, a certificate and its key.
    fn files(&self, ca: &str, name: &str) -> [String; 3] {
        let issued = self
            .authority
            .issue(
                &[name.parse().unwrap()],
                Validity::days(SystemTime::now(), 1),
            )
            .unwrap();
        let file = |ending: &str| {
            self.python
                .file(&format!("{ca}.{}", ending.replace('/', "-")))
        };
        let (certificate, key) = (file(&format!("{name}.pem")), file(&format!("{name}.key")));
        fs::write(&certificate, &issued.certificate).unwrap();
        fs::write(&key, &*issued.key).unwrap();
        [file("ca"), certificate, key].map(|path| path.to_str().unwrap().to_owned())
    }
}

fn credentials([ca, certificate, key]: &[String; 3]) -> WorkerCredentials {
    WorkerCredentials::from_files(ca, certificate, key).unwrap()
}

/// The same as options of a Python program.
fn options([ca, certificate, key]: &[String; 3]) -> [&str; 6] {
    ["--ca", ca, "--cert", certificate, "--key", key]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_worker_authenticates_callers() {
    within(120, async {
        let python = Python::new().await;
        let (trust, other_ca) = (Trust::new(&python, "ours"), Trust::new(&python, "theirs"));
        let _worker = python
            .worker(&options(&trust.files("ours", "127.0.0.1")))
            .await;
        let own = credentials(&trust.files("ours", "spiffe://test/web"));
        let discovery = || FileDiscovery::new(python.workers()).unwrap();
        let pool = WorkerPool::builder()
            .discovery(discovery())
            .credentials(own)
            .start()
            .await
            .unwrap();
        assert!(pool.workers()[0].secure);
        assert_eq!(find("it".into()).on(&pool).await, Ok(1));
        // A caller of another CA is refused, and one without credentials does not connect.
        let other = credentials(&other_ca.files("theirs", "spiffe://test/web"));
        let other = WorkerProxy::of_discovery(discovery())
            .credentials(other)
            .start()
            .await
            .unwrap();
        let without_credentials = WorkerProxy::of_discovery(discovery())
            .start()
            .await
            .unwrap();
        for proxy in [other, without_credentials] {
            let outcome = find("it".into()).on(&proxy).await;
            assert!(
                matches!(outcome, Err(CallError::NoWorkers(_))),
                "{outcome:?}"
            );
        }
        assert_eq!(find("it".into()).on(&pool).await, Ok(1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_caller_authenticates() {
    within(120, async {
        let python = Python::new().await;
        let (trust, other_ca) = (Trust::new(&python, "ours"), Trust::new(&python, "theirs"));
        let own = credentials(&trust.files("ours", "127.0.0.1"));
        let worker = own.clone();
        let callee = env!("CARGO_BIN_EXE_raddle-test-callee");
        let factory = move |tags: &_| {
            LocalWorker::new(tags)
                .program(callee)
                .credentials(worker.clone())
        };
        let pool = WorkerPool::builder()
            .size(1)
            .worker(factory)
            .credentials(own)
            .start()
            .await
            .unwrap();
        let address = pool.workers()[0].address.clone();
        let files = trust.files("ours", "spiffe://test/web");
        let call = [address.as_str(), "add", "1", "2"];
        let output = python.call(&[&call[..], &options(&files)].concat()).await;
        assert_eq!(
            (
                String::from_utf8_lossy(&output.stdout).as_ref(),
                output.status.code()
            ),
            ("3\n", Some(0))
        );
        let theirs = other_ca.files("theirs", "spiffe://test/web");
        // The caller trusts the worker and is not trusted.
        let theirs = [files[0].clone(), theirs[1].clone(), theirs[2].clone()];
        for options in [&options(&theirs)[..], &[]] {
            let output = python.call(&[&call[..], options].concat()).await;
            assert_eq!((output.stdout, output.status.code()), (Vec::new(), Some(2)));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_worker_refuses_public_addresses_without_tls() {
    within(120, async {
        let python = Python::new().await;
        for options in [
            &["--bind", "0.0.0.0:0"][..],
            &["--bind", "[::]:0"],
            &["--cert", "some.pem"],
        ] {
            let output = python.run_worker_refused(options).await;
            assert_eq!(output.status.code(), Some(2), "{options:?}");
        }
        assert!(!python.workers().exists());
    })
    .await;
}
