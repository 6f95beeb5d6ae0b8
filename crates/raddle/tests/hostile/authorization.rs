//! Authenticated callers without the rights for their calls.

use raddle::{
    Call, CallError, WorkerProxy,
    core::routine::EncodedArgs,
    pool::{connection::ControlConnection, worker::StopMode},
};

use crate::{HonestCaller, TargetServer, routines, target::SECRET, within};

#[tokio::test(flavor = "multi_thread")]
async fn denies_and_logs_forbidden_calls() {
    within(120, async {
        let rules = [
            "--allow",
            "spiffe://test/honest = add",
            "--allow",
            "spiffe://test/ops = @info",
        ];
        let target = TargetServer::secure(&rules).await;
        let honest = HonestCaller::begin(&target).await;
        let own = target.trust().caller("spiffe://test/other");
        let proxy = WorkerProxy::of_workers([target.worker()])
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
        let control = || ControlConnection::with_credentials(target.address(), Some(&own)).unwrap();
        assert!(control().stop(StopMode::Cancel).await.is_err());
        assert!(control().info().await.is_err());
        target.wait_until_refused(&["not_allowed"], 4).await;
        assert!(
            target
                .log()
                .contains("spiffe://test/other may not call 'echo'"),
            "{}",
            target.log()
        );
        let ops = target.trust().caller("spiffe://test/ops");
        let info = ControlConnection::with_credentials(target.address(), Some(&ops))
            .unwrap()
            .info()
            .await
            .unwrap();
        assert_eq!(info.refused["not_allowed"], 4);
        honest.assert_served().await;
        target.assert_healthy_and_stop().await;
    })
    .await;
}
