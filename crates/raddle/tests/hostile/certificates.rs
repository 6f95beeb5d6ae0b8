//! Callers that cannot prove who they are, and workers that cannot.

use std::time::{Duration, SystemTime};

use raddle::{
    CallError, WorkerProxy,
    tls::{CredentialSource, issue::Validity},
};

use crate::{Honest, Raw, Site, routines, site::Trust, within};

async fn refused(site: &Site, own: CredentialSource, reasons: &[&str]) {
    let before = site.refused(reasons).await;
    let proxy = WorkerProxy::of_workers([site.worker()])
        .credentials(own.load().unwrap())
        .start()
        .await
        .unwrap();
    let outcome = routines::echo(crate::site::SECRET.into()).on(&proxy).await;
    assert!(
        matches!(&outcome, Err(error @ (CallError::NoWorkers(_) | CallError::Lost { .. })) if !error.may_have_begun()),
        "{outcome:?}"
    );
    site.tells(reasons, before + 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_prove_who_it_is_is_refused() {
    within(150, async {
        let (site, stranger) = (Site::secure(&[]).await, Trust::new());
        let honest = Honest::begin(&site).await;
        let trust = site.trust();
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        let over = Validity {
            from: now - 2 * hour,
            until: now - hour,
        };
        let expired = trust
            .authority
            .issue(&["spiffe://test/honest".parse().unwrap()], over)
            .unwrap();
        refused(&site, trust.recipe().mutual(false), &["no_certificate"]).await;
        refused(
            &site,
            trust.shows(&stranger.issue("spiffe://test/honest")),
            &["unknown_issuer"],
        )
        .await;
        refused(&site, trust.shows(&expired), &["expired"]).await;
        // A CA that speaks for itself is nobody, whatever is wrong with it first.
        refused(
            &site,
            trust.shows(&stranger.own),
            &["unknown_issuer", "bad_certificate", "wrong_purpose"],
        )
        .await;
        honest.was_served().await;
        site.ends().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_talked_out_of_tls() {
    within(120, async {
        let site = Site::secure(&[]).await;
        let honest = Honest::begin(&site).await;
        // Links and gRPC in plain, and what is older than all of it.
        for words in [
            &b"raddle\0\x01"[..],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
        ] {
            let before = site.refused(&["not_tls"]).await;
            let mut raw = Raw::connect(site.address());
            raw.send(words).unwrap();
            let said = tokio::task::spawn_blocking(|| raw.hangs_up())
                .await
                .unwrap();
            assert!(
                said.len() < 16 && !said.starts_with(b"raddle"),
                "an alert at most: {said:?}"
            );
            site.tells(&["not_tls"], before + 1).await;
        }
        let lie = raddle::pool::WorkerMetadata {
            secure: false,
            ..site.worker()
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
        honest.was_served().await;
        site.ends().await;
    })
    .await;
}

/// Somebody has a certificate of the same CA, and serves in the place of a worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_another_name_is_not_called() {
    within(120, async {
        let site = Site::named("spiffe://test/impostor", Trust::new(), &[]).await;
        let own = site.trust().caller("spiffe://test/honest");
        let proxy = WorkerProxy::of_workers([site.worker()])
            .credentials(own)
            .start()
            .await
            .unwrap();
        let outcome = routines::echo(crate::site::SECRET.into()).on(&proxy).await;
        let Err(error) = outcome else {
            panic!("it has answered")
        };
        assert!(
            !error.may_have_begun() && error.to_string().contains("spiffe://test/impostor"),
            "{error}"
        );
        // It hears that nobody wants it, and has heard nothing else.
        site.tells(&["bad_certificate"], 1).await;
        assert_eq!(site.number("raddle_pool_calls_taken_total").await, 0);
        site.ends().await;
    })
    .await;
}
