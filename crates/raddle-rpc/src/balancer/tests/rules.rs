//! What follows from refusals, whoever balances.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tonic::Code;

use super::{
    StoppedClock, call, dispatch,
    fake::{self, Does, pool},
    soon,
};
use crate::{
    CallError, NoWorkersAvailable,
    balancer::{Balancer, BalancerContext, LeastLoaded, PowerOfTwo, RoundRobin, Sticky},
    connection::CallEvent,
};

fn all() -> [Arc<dyn Balancer>; 4] {
    [
        Arc::new(RoundRobin),
        Arc::new(LeastLoaded),
        Arc::new(PowerOfTwo::new()),
        Arc::new(Sticky),
    ]
}

#[tokio::test]
async fn without_workers_there_is_nobody_to_call() {
    for balancer in all() {
        let nobody = CallError::from(NoWorkersAvailable(None));
        assert_eq!(
            call(&balancer, &BalancerContext::default(), Some(1)).await,
            Err(nobody)
        );
    }
}

#[tokio::test]
async fn what_passes_keeps_the_worker_and_the_next_is_asked() {
    for balancer in all() {
        for code in [
            Code::Unavailable,
            Code::DeadlineExceeded,
            Code::ResourceExhausted,
        ] {
            let (context, fakes) = pool([Does::Refuse(code), Does::Refuse(code), Does::Take]);
            for _ in 0..9 {
                call(&balancer, &context, None).await.unwrap();
            }
            assert_eq!((context.workers().len(), fakes[2].asked()), (3, 9));
        }
    }
}

#[tokio::test]
async fn a_worker_that_is_no_use_is_removed_and_the_next_is_asked() {
    for balancer in all() {
        for code in [
            Code::Aborted,
            Code::AlreadyExists,
            Code::Cancelled,
            Code::DataLoss,
            Code::Internal,
            Code::OutOfRange,
            Code::Unauthenticated,
            Code::Unimplemented,
            Code::Unknown,
        ] {
            let (context, fakes) = pool([Does::Refuse(code), Does::Take, Does::Refuse(code)]);
            for _ in 0..20 {
                call(&balancer, &context, Some(1)).await.unwrap();
            }
            for _ in 0..20 {
                call(&balancer, &context, None).await.unwrap();
            }
            assert_eq!(fakes[1].asked(), 40);
            // Sooner or later each was asked, and none twice; nobody else is removed.
            assert!(
                context
                    .workers()
                    .iter()
                    .any(|worker| worker.metadata.uid == fakes[1].metadata.uid)
            );
            assert!(fakes[0].asked() <= 1 && fakes[2].asked() <= 1);
        }
    }
}

#[tokio::test]
async fn all_are_asked_once_before_it_is_given_up() {
    for balancer in all() {
        let (context, fakes) = pool(
            [
                Code::Unavailable,
                Code::Unauthenticated,
                Code::NotFound,
                Code::Unavailable,
            ]
            .map(Does::Refuse),
        );
        let Err(CallError::NoWorkers(NoWorkersAvailable(Some(last)))) =
            call(&balancer, &context, Some(3)).await
        else {
            panic!("somebody has taken it")
        };
        assert!(
            last.starts_with("worker ") && last.ends_with(": as told"),
            "{last}"
        );
        assert_eq!(fakes.each_ref().map(|fake| fake.asked()), [1; 4]);
        assert_eq!(context.workers().len(), 3);
    }
}

#[tokio::test]
async fn workers_that_are_not_suited_stay_and_if_all_are_so_that_is_said() {
    for balancer in all() {
        let (context, fakes) = pool([Code::NotFound, Code::NotFound].map(Does::Refuse));
        for _ in 0..5 {
            assert_eq!(
                call(&balancer, &context, None).await,
                Err(CallError::UnknownRoutine("as told".into()))
            );
        }
        fakes
            .iter()
            .for_each(|fake| fake.now_does(Does::Refuse(Code::FailedPrecondition)));
        assert_eq!(
            call(&balancer, &context, None).await,
            Err(CallError::Version("as told".into()))
        );
        fakes
            .iter()
            .for_each(|fake| fake.now_does(Does::Refuse(Code::PermissionDenied)));
        assert_eq!(
            call(&balancer, &context, None).await,
            Err(CallError::Denied("as told".into()))
        );
        fakes[1].now_does(Does::Take);
        assert_eq!(call(&balancer, &context, None).await, Ok(()));
        assert!(
            context.workers().len() == 2
                && context
                    .workers()
                    .iter()
                    .all(|worker| worker.in_flight() == 0)
        );
    }
}

#[tokio::test]
async fn an_error_of_the_call_is_returned_at_once() {
    for balancer in all() {
        let (context, fakes) =
            pool([Code::InvalidArgument, Code::InvalidArgument].map(Does::Refuse));
        assert_eq!(
            call(&balancer, &context, None).await,
            Err(CallError::Arguments("as told".into()))
        );
        assert_eq!(fakes.iter().map(|fake| fake.asked()).sum::<usize>(), 1);
        assert_eq!(context.workers().len(), 2);
    }
}

#[tokio::test]
async fn the_time_is_that_of_all_attempts_together() {
    let (pause, timeout) = (Duration::from_millis(900), Duration::from_secs(1));
    let (context, fakes) = pool([Does::RefuseAfter(pause, Code::Unavailable), Does::Hang]);
    let began = Instant::now();
    assert_eq!(
        soon(RoundRobin.dispatch(fake::call(None), &context, Some(timeout)))
            .await
            .unwrap_err(),
        CallError::TimedOut
    );
    assert!(began.elapsed() < pause + timeout, "{:?}", began.elapsed());
    assert_eq!(fakes[0].asked(), 1);
}

#[tokio::test]
async fn a_worker_that_keeps_refusing_is_left_alone_and_comes_back() {
    let _clock = StoppedClock::new();
    for balancer in all() {
        let (context, fakes) = pool([Does::Refuse(Code::Unavailable), Does::Take]);
        for _ in 0..30 {
            call(&balancer, &context, None).await.unwrap();
        }
        assert_eq!(
            (fakes[0].asked(), fakes[1].asked()),
            (3, 30),
            "three were enough"
        );
        // It is still better than nobody.
        fakes[1].now_does(Does::Refuse(Code::Unavailable));
        let refused = call(&balancer, &context, None).await;
        assert!(
            matches!(refused, Err(CallError::NoWorkers(_))),
            "{refused:?}"
        );
        assert_eq!((fakes[0].asked(), fakes[1].asked()), (1, 1));
        // And when it is well again, that is noticed.
        fakes[0].now_does(Does::Take);
        call(&balancer, &context, None).await.unwrap();
        assert_eq!(fakes[0].asked(), 1);
        assert!(
            context
                .workers()
                .iter()
                .all(|worker| worker.in_flight() == 0)
        );
    }
}

#[tokio::test]
async fn after_the_backoff_one_call_tries() {
    let clock = StoppedClock::new();
    let (context, fakes) = pool([Does::Refuse(Code::Unavailable), Does::Take]);
    for _ in 0..6 {
        call(&RoundRobin, &context, None).await.unwrap();
    }
    assert_eq!(fakes[0].asked(), 3);
    fakes[0].now_does(Does::Hang);
    clock.advance(Duration::from_millis(1_100)).await;
    // The call that tries it waits; the others do not.
    let (context, patience) = (&context, Duration::from_secs(2));
    let done = &Cell::new(0);
    let calls = (0..10).map(|_| async move {
        let called = tokio::time::timeout(patience, call(&RoundRobin, context, None)).await;
        done.set(done.get() + usize::from(called.is_ok()));
    });
    let ending = async {
        while done.get() < 9 {
            tokio::task::yield_now().await;
        }
        // Timers are due at the next millisecond.
        clock.advance(patience + Duration::from_millis(2)).await;
    };
    futures_util::future::join(futures_util::future::join_all(calls), ending).await;
    assert_eq!(done.get(), 9);
    assert_eq!((fakes[0].asked(), fakes[1].asked()), (1, 15));
    // Who gave up has not found out anything, so the next one tries.
    fakes[0].now_does(Does::Take);
    for _ in 0..4 {
        call(&RoundRobin, context, None).await.unwrap();
    }
    assert_eq!((fakes[0].asked(), fakes[1].asked()), (2, 2));
}

#[tokio::test]
async fn a_key_has_a_stand_in_while_its_worker_is_left_alone() {
    let _clock = StoppedClock::new();
    let (context, fakes) = pool([Does::Take; 3]);
    call(&Sticky, &context, Some(7)).await.unwrap();
    let owner = fakes.iter().find(|fake| fake.asked() > 0).unwrap();
    owner.now_does(Does::Refuse(Code::Unavailable));
    for _ in 0..10 {
        call(&Sticky, &context, Some(7)).await.unwrap();
    }
    assert_eq!(owner.asked(), 3, "then it was left alone");
    let mut asked = fakes.each_ref().map(|fake| fake.asked());
    asked.sort_unstable();
    assert_eq!(asked, [0, 0, 10], "always by the same");
}

#[tokio::test]
async fn a_worker_that_is_gone_is_no_use_but_does_no_harm() {
    let (context, mut fakes) = pool([Does::Take, Does::Take]);
    fakes[0].kill().await;
    for _ in 0..10 {
        call(&RoundRobin, &context, None).await.unwrap();
    }
    assert_eq!(fakes[1].asked(), 10);
}

#[tokio::test]
async fn one_balancer_serves_many_pools() {
    let balancer: Arc<RoundRobin> = Arc::default();
    let ((one, of_one), (other, of_other)) = (
        pool([Does::Take, Does::Take]),
        pool([Does::Take, Does::Take]),
    );
    for _ in 0..2 {
        call(&balancer, &one, None).await.unwrap();
        call(&balancer, &other, None).await.unwrap();
    }
    // Had they one position in common, each pool would have been left with one of its workers.
    assert_eq!(
        [&of_one, &of_other].map(|fakes| fakes.each_ref().map(|fake| fake.asked())),
        [[1, 1], [1, 1]]
    );
}

#[tokio::test]
async fn a_call_counts_until_it_is_over_or_dropped() {
    let (context, fakes) = pool([Does::Take]);
    let in_flight = || context.workers()[0].in_flight();
    fakes[0].let_end(false);
    let first = dispatch(&RoundRobin, &context, fake::call(None))
        .await
        .unwrap();
    let second = dispatch(&RoundRobin, &context, fake::call(None))
        .await
        .unwrap();
    assert_eq!(in_flight(), 2);
    drop(first);
    assert_eq!(in_flight(), 1);
    fakes[0].let_end(true);
    let mut second = second;
    soon(async { while !second.next().await.is_last() {} }).await;
    assert_eq!(in_flight(), 0, "over, though somebody keeps it");
    drop(second);
    fakes[0].now_does(Does::Hang);
    let cancelled =
        tokio::time::timeout(Duration::from_millis(50), call(&RoundRobin, &context, None)).await;
    assert!(cancelled.is_err() && in_flight() == 0);
}

#[tokio::test]
async fn a_worker_that_is_lost_with_a_call_is_a_reason_to_find_out_whether_it_is_there() {
    let (context, fakes) = pool([Does::Break]);
    let doubts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&doubts);
    context.doubt_by(move |_| _ = counted.fetch_add(1, Ordering::Relaxed));
    let mut replies = RoundRobin
        .dispatch(fake::call(None), &context, None)
        .await
        .unwrap();
    assert_eq!(
        (replies.next().await, doubts.load(Ordering::Relaxed)),
        (CallEvent::Accepted, 0)
    );
    assert!(matches!(replies.next().await, CallEvent::Failed(error) if error.may_have_begun));
    assert_eq!(doubts.load(Ordering::Relaxed), 1);
    fakes[0].now_does(Does::Take);
    call(&(Arc::new(RoundRobin) as Arc<dyn Balancer>), &context, None)
        .await
        .unwrap();
    assert_eq!(
        doubts.load(Ordering::Relaxed),
        1,
        "one that ends well is none"
    );
}
