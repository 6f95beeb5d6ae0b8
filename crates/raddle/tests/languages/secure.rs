//! Workers and callers in Python that prove who they are, as those of Raddle do.

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

/// A CA, and what it has issued, as files.
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

    /// The files of somebody with this name: of the CA, a certificate and its key.
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

/// The same for a program in Python.
fn options([ca, certificate, key]: &[String; 3]) -> [&str; 6] {
    ["--ca", ca, "--cert", certificate, "--key", key]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_worker_serves_those_who_prove_who_they_are() {
    within(120, async {
        let python = Python::new().await;
        let (trust, stranger) = (Trust::new(&python, "ours"), Trust::new(&python, "theirs"));
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
        // One of another CA is not let in, and one without credentials does not even try.
        let other = credentials(&stranger.files("theirs", "spiffe://test/web"));
        let other = WorkerProxy::of_discovery(discovery())
            .credentials(other)
            .start()
            .await
            .unwrap();
        let nobody = WorkerProxy::of_discovery(discovery())
            .start()
            .await
            .unwrap();
        for proxy in [other, nobody] {
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
async fn a_python_caller_proves_who_it_is() {
    within(120, async {
        let python = Python::new().await;
        let (trust, stranger) = (Trust::new(&python, "ours"), Trust::new(&python, "theirs"));
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
        let theirs = stranger.files("theirs", "spiffe://test/web");
        // It trusts the worker, and is not trusted.
        let theirs = [files[0].clone(), theirs[1].clone(), theirs[2].clone()];
        for options in [&options(&theirs)[..], &[]] {
            let output = python.call(&[&call[..], options].concat()).await;
            assert_eq!((output.stdout, output.status.code()), (Vec::new(), Some(2)));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_worker_is_not_open_to_everybody_unless_that_is_said() {
    within(120, async {
        let python = Python::new().await;
        for options in [
            &["--bind", "0.0.0.0:0"][..],
            &["--bind", "[::]:0"],
            &["--cert", "some.pem"],
        ] {
            let output = python.refuses(options).await;
            assert_eq!(output.status.code(), Some(2), "{options:?}");
        }
        assert!(!python.workers().exists());
    })
    .await;
}
