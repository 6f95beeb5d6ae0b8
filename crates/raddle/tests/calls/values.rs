//! What calls give back, and what travels with them.

use std::time::Duration;

use raddle::CallError;

use crate::{
    routines::{self, Point, TENANT, Trouble},
    started, within,
};

#[tokio::test(flavor = "multi_thread")]
#[expect(
    clippy::async_yields_async,
    reason = "a call that is handed on is what is tested"
)]
async fn a_call_runs_in_another_process_and_its_result_comes_back() {
    within(120, async {
        let pool = started(1).await;
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
        // Outside of the scope it says where.
        assert_eq!(routines::add(1, 2).on(&pool).await, Ok(3));
        assert_eq!(routines::add(1, 2).await, Err(CallError::NoPool));
        // In the scope it was written, wherever it is awaited.
        let call = pool.scope(async { routines::add(2, 3) }).await;
        assert_eq!(tokio::spawn(call).await.unwrap(), Ok(5));
        assert_eq!(routines::add::local(1, 2).await, 3);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_come_back_as_they_were() {
    within(120, async {
        let pool = started(1).await;
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
async fn errors_cross_with_their_type() {
    within(120, async {
        let pool = started(1).await;
        assert_eq!(routines::find("it".into()).on(&pool).await, Ok(1));
        let error = routines::find("that".into()).on(&pool).await.unwrap_err();
        assert_eq!(
            error,
            CallError::Failed(Trouble::Missing {
                missing: "that".into()
            })
        );
        assert_eq!(error.to_string(), "that is missing");
        assert!(error.may_have_begun());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn panics_are_told_with_their_place_and_the_worker_goes_on() {
    within(120, async {
        let pool = started(1).await;
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
        let pool = started(2).await;
        assert_eq!(routines::nested(5).on(&pool).await, Ok(5));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn context_and_time_travel_with_the_call_and_further() {
    within(120, async {
        let pool = started(1).await;
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
fn the_trace_of_the_process_is_carried_on() {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    // SAFETY: there is one thread, and nobody else reads the environment.
    unsafe { std::env::set_var("TRACEPARENT", parent) };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(within(120, async {
        let pool = started(1).await;
        let (_, trace, _) = routines::surroundings_below().on(&pool).await.unwrap();
        assert_eq!(trace.as_deref(), Some(parent));
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_ends_with_its_time_here_and_there() {
    within(120, async {
        let pool = started(1).await;
        let brief = Duration::from_millis(100);
        assert_eq!(
            routines::rest(60_000).timeout(brief).on(&pool).await,
            Err(CallError::TimedOut)
        );
        // A blocked thread cannot be ended, but need not be waited for either.
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
async fn large_values_come_through() {
    within(120, async {
        let pool = started(1).await;
        for size in [1, 100, 70_000, 1 << 20, 8 << 20] {
            let what = "x".repeat(size);
            let error = routines::find(what.clone()).on(&pool).await.unwrap_err();
            assert_eq!(
                error,
                CallError::Failed(Trouble::Missing { missing: what }),
                "{size}"
            );
        }
    })
    .await;
}
