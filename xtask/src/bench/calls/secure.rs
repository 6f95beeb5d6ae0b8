//! The cost of mutual TLS: the same calls with and without it, both over TCP.

use std::time::{Duration, Instant, SystemTime};

use raddle::{
    WorkerPool,
    pool::{PoolBuilder, worker::LocalWorker},
    tls::{
        CredentialSource, PemSource, WorkerCredentials,
        issue::{Authority, Validity},
    },
};

use crate::{Figures, add};

/// In turn, over open connections, so that both are measured under the same load and without
/// handshakes.
pub(crate) async fn compare(calls: usize, figures: &mut Figures) -> raddle::Result<()> {
    let plain = |tags: &_| LocalWorker::new(tags).address_of("127.0.0.1:0");
    let plain = WorkerPool::builder().size(1).worker(plain).start().await?;
    let secure = with_credentials(WorkerPool::builder().size(1))?
        .start()
        .await?;
    assert!(
        secure.workers()[0].secure && !plain.workers()[0].secure,
        "one is protected and the other is not"
    );
    let (mut in_plain, mut with_credentials) = (Duration::ZERO, Duration::ZERO);
    let each = (calls / 20).max(1);
    // The first round is a warm-up.
    for round in 0..21 {
        for (pool, sum) in [(&plain, &mut in_plain), (&secure, &mut with_credentials)] {
            let began = Instant::now();
            for _ in 0..each {
                assert_eq!(add(1, 2).on(pool).await?, 3);
            }
            if round > 0 {
                *sum += began.elapsed();
            }
        }
    }
    let rate = |sum: Duration| (20 * each) as f64 / sum.as_secs_f64();
    figures.insert("calls over TCP, one after the other, /s", rate(in_plain));
    figures.insert(
        "calls over mutual TLS, one after the other, /s",
        rate(with_credentials),
    );
    plain.stop().await;
    secure.stop().await;
    Ok(())
}

/// Adds credentials of a new CA.
fn with_credentials(pool: PoolBuilder) -> raddle::Result<PoolBuilder> {
    let day = Validity::days(SystemTime::now(), 1);
    let (authority, _) = Authority::new("bench", day)?;
    let credentials = authority.issue(&["127.0.0.1".parse()?], day)?;
    let source = CredentialSource::new(PemSource::bytes(authority.certificate()));
    let source = source.identity(
        PemSource::bytes(&credentials.certificate),
        PemSource::bytes(&credentials.key),
    );
    let credentials: WorkerCredentials = source.load()?;
    let worker = credentials.clone();
    Ok(pool
        .worker(move |tags: &_| LocalWorker::new(tags).credentials(worker.clone()))
        .credentials(credentials))
}
