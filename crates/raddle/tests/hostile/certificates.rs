//! Callers and workers with invalid certificates.

use std::time::{Duration, SystemTime};

use raddle::{
    CallError, WorkerProxy,
    tls::{CredentialSource, issue::Validity},
};

use crate::{HonestCaller, Raw, TargetServer, routines, target::Trust, within};

async fn assert_refused(target: &TargetServer, own: CredentialSource, reasons: &[&str]) {
    let before = target.refused(reasons).await;
    let proxy = WorkerProxy::of_workers([target.worker()])
        .credentials(own.load().unwrap())
        .start()
        .await
        .unwrap();
    let outcome = routines::echo(crate::target::SECRET.into())
        .on(&proxy)
        .await;
    assert!(
        matches!(&outcome, Err(error @ (CallError::NoWorkers(_) | CallError::Lost { .. })) if !error.may_have_begun()),
        "{outcome:?}"
    );
    target.wait_until_refused(reasons, before + 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_invalid_certificates() {
    within(150, async {
        let (target, other_ca) = (TargetServer::secure(&[]).await, Trust::new());
        let honest = HonestCaller::begin(&target).await;
        let trust = target.trust();
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        let past = Validity {
            from: now - 2 * hour,
            until: now - hour,
        };
        let expired = trust
            .authority
            .issue(&["spiffe://test/honest".parse().unwrap()], past)
            .unwrap();
        assert_refused(&target, trust.source().mutual(false), &["no_certificate"]).await;
        assert_refused(
            &target,
            trust.with_identity(&other_ca.issue("spiffe://test/honest")),
            &["unknown_issuer"],
        )
        .await;
        assert_refused(&target, trust.with_identity(&expired), &["expired"]).await;
        // A CA certificate is not accepted from a peer, whatever is checked first.
        assert_refused(
            &target,
            trust.with_identity(&other_ca.own),
            &["unknown_issuer", "bad_certificate", "wrong_purpose"],
        )
        .await;
        honest.assert_served().await;
        target.assert_healthy_and_stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_plain_protocols_on_a_tls_port() {
    within(120, async {
        let target = TargetServer::secure(&[]).await;
        let honest = HonestCaller::begin(&target).await;
        // Links, gRPC and HTTP/1 without TLS.
        for bytes in [
            &b"raddle\0\x01"[..],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
        ] {
            let before = target.refused(&["not_tls"]).await;
            let mut raw = Raw::connect(target.address());
            raw.send(bytes).unwrap();
            let reply = tokio::task::spawn_blocking(|| raw.read_until_closed())
                .await
                .unwrap();
            assert!(
                reply.len() < 16 && !reply.starts_with(b"raddle"),
                "the reply is an alert at most: {reply:?}"
            );
            target.wait_until_refused(&["not_tls"], before + 1).await;
        }
        let lie = raddle::pool::WorkerMetadata {
            secure: false,
            ..target.worker()
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
        honest.assert_served().await;
        target.assert_healthy_and_stop().await;
    })
    .await;
}

/// A process with a certificate of the same CA serves in the place of a worker.
#[tokio::test(flavor = "multi_thread")]
async fn does_not_call_a_worker_of_another_name() {
    within(120, async {
        let target = TargetServer::named("spiffe://test/impostor", Trust::new(), &[]).await;
        let own = target.trust().caller("spiffe://test/honest");
        let proxy = WorkerProxy::of_workers([target.worker()])
            .credentials(own)
            .start()
            .await
            .unwrap();
        let outcome = routines::echo(crate::target::SECRET.into())
            .on(&proxy)
            .await;
        let Err(error) = outcome else {
            panic!("the call succeeded")
        };
        assert!(
            !error.may_have_begun() && error.to_string().contains("spiffe://test/impostor"),
            "{error}"
        );
        // The server receives an alert, and no call.
        target.wait_until_refused(&["bad_certificate"], 1).await;
        assert_eq!(target.metric("raddle_pool_calls_accepted_total").await, 0);
        target.assert_healthy_and_stop().await;
    })
    .await;
}
