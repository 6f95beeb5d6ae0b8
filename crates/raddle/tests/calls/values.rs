//! Results of calls, and the context that travels with them.

use std::time::Duration;

use raddle::CallError;

use crate::{
    routines::{self, FindError, Point, TENANT},
    start_pool, within,
};

#[tokio::test(flavor = "multi_thread")]
#[expect(
    clippy::async_yields_async,
    reason = "a call that is handed on is what is tested"
)]
async fn runs_a_call_in_another_process() {
    within(120, async {
        let pool = start_pool(1).await;
        pool.scope(async {
            assert_eq!(routines::add(1, 2).await, Ok(3));
            let pid = routines::pid().await.unwrap();
            assert_eq!(pid, pool.workers()[0].pid);
            assert_ne!(pid, std::process::id());
            let points = [("a".to_owned(), Point { x: 1.0, y: 2.0 })].into();
            assert_eq!(
                routines::flip(points).await,
                Ok(vec![Point { x: 2.0, y: 1.0 }])
            );
        })
        .await;
        // Outside of the scope the call names its pool.
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        assert_eq!(routines::add(1, 2).await, Err(CallError::NoPool));
        // A call keeps the scope in which it was created.
        let call = pool.scope(async { routines::add(2, 3) }).await;
        assert_eq!(tokio::spawn(call).await.unwrap(), Ok(5));
        assert_eq!(routines::add::local(1, 2).await, 3);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn returns_bytes_unchanged() {
    within(120, async {
        let pool = start_pool(1).await;
        for size in [0, 1, 300, 9 << 20] {
            let bytes: Vec<u8> = (0..size).map(|n: usize| n as u8).collect();
            assert_eq!(
                routines::echo_bytes(bytes.clone()).on(&pool).await,
                Ok(bytes)
            );
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn returns_errors_with_their_type() {
    within(120, async {
        let pool = start_pool(1).await;
        assert_eq!(routines::find("it".into()).on(&pool).await, Ok(1));
        let error = routines::find("that".into()).on(&pool).await.unwrap_err();
        assert_eq!(
            error,
            CallError::Failed(FindError::Missing {
                missing: "that".into()
            })
        );
        assert_eq!(error.to_string(), "that is missing");
        assert!(error.may_have_begun());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_panics_with_their_location_and_keeps_the_worker() {
    within(120, async {
        let pool = start_pool(1).await;
        for error in [
            routines::explode("fun".into()).on(&pool).await,
            routines::explode_plain("fun".into()).on(&pool).await,
        ] {
            let Err(CallError::Panicked {
                message,
                place,
                backtrace,
            }) = error
            else {
                panic!("{error:?}")
            };
            assert_eq!(message, "exploded for fun");
            assert!(place.contains("routines.rs:"), "{place}");
            assert!(backtrace.contains("explode"), "{backtrace}");
        }
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        assert_eq!(pool.workers().len(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn routines_call_routines_of_the_same_pool() {
    within(120, async {
        let pool = start_pool(2).await;
        assert_eq!(routines::nested(5).on(&pool).await, Ok(5));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn context_and_deadline_reach_nested_calls() {
    within(120, async {
        let pool = start_pool(1).await;
        assert_eq!(
            routines::surroundings().on(&pool).await,
            Ok((None, None, false))
        );
        let call = async {
            routines::surroundings_below()
                .timeout(Duration::from_secs(20))
                .await
        };
        let (tenant, trace, is_bounded) =
            pool.scope(TENANT.scope("acme".into(), call)).await.unwrap();
        assert_eq!(
            (tenant.as_deref(), trace, is_bounded),
            (Some("acme"), None, true)
        );
    })
    .await;
}

#[test]
fn propagates_the_traceparent_of_the_process() {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    // SAFETY: there is one thread, and no other code reads the environment.
    unsafe { std::env::set_var("TRACEPARENT", parent) };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(within(120, async {
        let pool = start_pool(1).await;
        let (_, trace, _) = routines::surroundings_below().on(&pool).await.unwrap();
        assert_eq!(trace.as_deref(), Some(parent));
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_ends_a_call_on_both_sides() {
    within(120, async {
        let pool = start_pool(1).await;
        let brief = Duration::from_millis(100);
        assert_eq!(
            routines::rest(60_000).timeout(brief).on(&pool).await,
            Err(CallError::TimedOut)
        );
        // A blocked thread cannot be stopped, but the caller need not wait for it.
        assert_eq!(
            routines::block(3).timeout(brief).on(&pool).await,
            Err(CallError::TimedOut)
        );
        assert_eq!(
            routines::add(1, 2)
                .timeout(Duration::from_secs(10))
                .on(&pool)
                .await,
            Ok(3)
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn returns_large_values() {
    within(120, async {
        let pool = start_pool(1).await;
        for size in [1, 100, 70_000, 1 << 20, 8 << 20] {
            let what = "x".repeat(size);
            let error = routines::find(what.clone()).on(&pool).await.unwrap_err();
            assert_eq!(
                error,
                CallError::Failed(FindError::Missing { missing: what }),
                "{size}"
            );
        }
    })
    .await;
}
