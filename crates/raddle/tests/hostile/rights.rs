//! Callers that have proven who they are, and ask for what is not theirs to have.

use raddle::{
    Call, CallError, WorkerProxy,
    core::routine::EncodedArgs,
    pool::{connection::ControlConnection, worker::StopMode},
};

use crate::{Honest, Site, routines, site::SECRET, within};

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_does_not_and_the_log_says_who_it_was() {
    within(120, async {
        let rules = [
            "--allow",
            "spiffe://test/honest = add",
            "--allow",
            "spiffe://test/ops = @info",
        ];
        let site = Site::secure(&rules).await;
        let honest = Honest::begin(&site).await;
        let own = site.trust().caller("spiffe://test/guest");
        let proxy = WorkerProxy::of_workers([site.worker()])
            .credentials(own.clone())
            .start()
            .await
            .unwrap();
        let denied = routines::echo(SECRET.into()).on(&proxy).await.unwrap_err();
        assert!(matches!(&denied, CallError::Denied(_)), "{denied:?}");
        assert!(!denied.may_have_begun() && !denied.to_string().contains(SECRET));
        let hostile = "no\u{1b}[2J\nsuch 'routine'".repeat(1000);
        let call: Call<u64> = Call::new(hostile.leak(), EncodedArgs::new(1).argument("a", &SECRET));
        assert!(matches!(call.on(&proxy).await, Err(CallError::Denied(_))));
        let control = || ControlConnection::with_credentials(site.address(), Some(&own)).unwrap();
        assert!(control().stop(StopMode::None).await.is_err());
        assert!(control().info().await.is_err());
        site.tells(&["not_allowed"], 4).await;
        assert!(
            site.log()
                .contains("spiffe://test/guest may not call 'echo'"),
            "{}",
            site.log()
        );
        let ops = site.trust().caller("spiffe://test/ops");
        let info = ControlConnection::with_credentials(site.address(), Some(&ops))
            .unwrap()
            .info()
            .await
            .unwrap();
        assert_eq!(info.refused["not_allowed"], 4);
        honest.was_served().await;
        site.ends().await;
    })
    .await;
}
