//! Tests of the rules that all balancers share.

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
    fake::{self, Behavior, pool},
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
async fn fails_without_workers() {
    for balancer in all() {
        let error = CallError::from(NoWorkersAvailable(None));
        assert_eq!(
            call(&balancer, &BalancerContext::default(), Some(1)).await,
            Err(error)
        );
    }
}

#[tokio::test]
async fn transient_errors_keep_the_worker_and_the_next_is_tried() {
    for balancer in all() {
        for code in [
            Code::Unavailable,
            Code::DeadlineExceeded,
            Code::ResourceExhausted,
        ] {
            let (context, fakes) = pool([
                Behavior::Refuse(code),
                Behavior::Refuse(code),
                Behavior::Take,
            ]);
            for _ in 0..9 {
                call(&balancer, &context, None).await.unwrap();
            }
            assert_eq!((context.workers().len(), fakes[2].take_calls()), (3, 9));
        }
    }
}

#[tokio::test]
async fn unusable_workers_are_removed_and_the_next_is_tried() {
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
            let (context, fakes) = pool([
                Behavior::Refuse(code),
                Behavior::Take,
                Behavior::Refuse(code),
            ]);
            for _ in 0..20 {
                call(&balancer, &context, Some(1)).await.unwrap();
            }
            for _ in 0..20 {
                call(&balancer, &context, None).await.unwrap();
            }
            assert_eq!(fakes[1].take_calls(), 40);
            // Each failing worker was tried at most once, and no other worker is removed.
            assert!(
                context
                    .workers()
                    .iter()
                    .any(|worker| worker.metadata.uid == fakes[1].metadata.uid)
            );
            assert!(fakes[0].take_calls() <= 1 && fakes[2].take_calls() <= 1);
        }
    }
}

#[tokio::test]
async fn tries_every_worker_once_before_it_fails() {
    for balancer in all() {
        let (context, fakes) = pool(
            [
                Code::Unavailable,
                Code::Unauthenticated,
                Code::NotFound,
                Code::Unavailable,
            ]
            .map(Behavior::Refuse),
        );
        let Err(CallError::NoWorkers(NoWorkersAvailable(Some(last)))) =
            call(&balancer, &context, Some(3)).await
        else {
            panic!("a worker has accepted the call")
        };
        assert!(
            last.starts_with("worker ") && last.ends_with(": scripted"),
            "{last}"
        );
        assert_eq!(fakes.each_ref().map(|fake| fake.take_calls()), [1; 4]);
        assert_eq!(context.workers().len(), 3);
    }
}

#[tokio::test]
async fn unsuitable_workers_stay_and_their_shared_reason_is_the_error() {
    for balancer in all() {
        let (context, fakes) = pool([Code::NotFound, Code::NotFound].map(Behavior::Refuse));
        for _ in 0..5 {
            assert_eq!(
                call(&balancer, &context, None).await,
                Err(CallError::UnknownRoutine("scripted".into()))
            );
        }
        fakes
            .iter()
            .for_each(|fake| fake.set_behavior(Behavior::Refuse(Code::FailedPrecondition)));
        assert_eq!(
            call(&balancer, &context, None).await,
            Err(CallError::Version("scripted".into()))
        );
        fakes
            .iter()
            .for_each(|fake| fake.set_behavior(Behavior::Refuse(Code::PermissionDenied)));
        assert_eq!(
            call(&balancer, &context, None).await,
            Err(CallError::Denied("scripted".into()))
        );
        fakes[1].set_behavior(Behavior::Take);
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
async fn error_of_the_call_is_returned_at_once() {
    for balancer in all() {
        let (context, fakes) =
            pool([Code::InvalidArgument, Code::InvalidArgument].map(Behavior::Refuse));
        assert_eq!(
            call(&balancer, &context, None).await,
            Err(CallError::Arguments("scripted".into()))
        );
        assert_eq!(fakes.iter().map(|fake| fake.take_calls()).sum::<usize>(), 1);
        assert_eq!(context.workers().len(), 2);
    }
}

#[tokio::test]
async fn timeout_covers_all_attempts_together() {
    let (pause, timeout) = (Duration::from_millis(900), Duration::from_secs(1));
    let (context, fakes) = pool([
        Behavior::RefuseAfter(pause, Code::Unavailable),
        Behavior::Hang,
    ]);
    let began = Instant::now();
    assert_eq!(
        soon(RoundRobin.dispatch(fake::call(None), &context, Some(timeout)))
            .await
            .unwrap_err(),
        CallError::TimedOut
    );
    assert!(began.elapsed() < pause + timeout, "{:?}", began.elapsed());
    assert_eq!(fakes[0].take_calls(), 1);
}

#[tokio::test]
async fn refusing_worker_is_ejected_and_returns() {
    let _clock = StoppedClock::new();
    for balancer in all() {
        let (context, fakes) = pool([Behavior::Refuse(Code::Unavailable), Behavior::Take]);
        for _ in 0..30 {
            call(&balancer, &context, None).await.unwrap();
        }
        assert_eq!(
            (fakes[0].take_calls(), fakes[1].take_calls()),
            (3, 30),
            "three failures eject"
        );
        // It is still tried when all others refuse.
        fakes[1].set_behavior(Behavior::Refuse(Code::Unavailable));
        let refused = call(&balancer, &context, None).await;
        assert!(
            matches!(refused, Err(CallError::NoWorkers(_))),
            "{refused:?}"
        );
        assert_eq!((fakes[0].take_calls(), fakes[1].take_calls()), (1, 1));
        // One success makes it healthy again.
        fakes[0].set_behavior(Behavior::Take);
        call(&balancer, &context, None).await.unwrap();
        assert_eq!(fakes[0].take_calls(), 1);
        assert!(
            context
                .workers()
                .iter()
                .all(|worker| worker.in_flight() == 0)
        );
    }
}

#[tokio::test]
async fn one_call_tries_the_worker_after_the_backoff() {
    let clock = StoppedClock::new();
    let (context, fakes) = pool([Behavior::Refuse(Code::Unavailable), Behavior::Take]);
    for _ in 0..6 {
        call(&RoundRobin, &context, None).await.unwrap();
    }
    assert_eq!(fakes[0].take_calls(), 3);
    fakes[0].set_behavior(Behavior::Hang);
    clock.advance(Duration::from_millis(1_100)).await;
    // The call that tries the worker waits; the others do not.
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
        // Timers fire at the next millisecond.
        clock.advance(patience + Duration::from_millis(2)).await;
    };
    futures_util::future::join(futures_util::future::join_all(calls), ending).await;
    assert_eq!(done.get(), 9);
    assert_eq!((fakes[0].take_calls(), fakes[1].take_calls()), (1, 15));
    // A caller that gave up has no result, so the next call tries.
    fakes[0].set_behavior(Behavior::Take);
    for _ in 0..4 {
        call(&RoundRobin, context, None).await.unwrap();
    }
    assert_eq!((fakes[0].take_calls(), fakes[1].take_calls()), (2, 2));
}

#[tokio::test]
async fn key_has_one_stand_in_while_its_worker_is_ejected() {
    let _clock = StoppedClock::new();
    let (context, fakes) = pool([Behavior::Take; 3]);
    call(&Sticky, &context, Some(7)).await.unwrap();
    let owner = fakes.iter().find(|fake| fake.take_calls() > 0).unwrap();
    owner.set_behavior(Behavior::Refuse(Code::Unavailable));
    for _ in 0..10 {
        call(&Sticky, &context, Some(7)).await.unwrap();
    }
    assert_eq!(owner.take_calls(), 3, "then it was ejected");
    let mut calls = fakes.each_ref().map(|fake| fake.take_calls());
    calls.sort_unstable();
    assert_eq!(calls, [0, 0, 10], "always the same stand-in");
}

#[tokio::test]
async fn lost_worker_is_skipped() {
    let (context, mut fakes) = pool([Behavior::Take, Behavior::Take]);
    fakes[0].kill().await;
    for _ in 0..10 {
        call(&RoundRobin, &context, None).await.unwrap();
    }
    assert_eq!(fakes[1].take_calls(), 10);
}

#[tokio::test]
async fn one_balancer_serves_many_pools() {
    let balancer: Arc<RoundRobin> = Arc::default();
    let ((one, of_one), (other, of_other)) = (
        pool([Behavior::Take, Behavior::Take]),
        pool([Behavior::Take, Behavior::Take]),
    );
    for _ in 0..2 {
        call(&balancer, &one, None).await.unwrap();
        call(&balancer, &other, None).await.unwrap();
    }
    // With one shared counter, each pool would use only one of its workers.
    assert_eq!(
        [&of_one, &of_other].map(|fakes| fakes.each_ref().map(|fake| fake.take_calls())),
        [[1, 1], [1, 1]]
    );
}

#[tokio::test]
async fn call_is_in_flight_until_it_ends_or_is_dropped() {
    let (context, fakes) = pool([Behavior::Take]);
    let in_flight = || context.workers()[0].in_flight();
    fakes[0].allow_end(false);
    let first = dispatch(&RoundRobin, &context, fake::call(None))
        .await
        .unwrap();
    let second = dispatch(&RoundRobin, &context, fake::call(None))
        .await
        .unwrap();
    assert_eq!(in_flight(), 2);
    drop(first);
    assert_eq!(in_flight(), 1);
    fakes[0].allow_end(true);
    let mut second = second;
    soon(async { while !second.next().await.is_last() {} }).await;
    assert_eq!(in_flight(), 0, "over, although the stream is kept");
    drop(second);
    fakes[0].set_behavior(Behavior::Hang);
    let cancelled =
        tokio::time::timeout(Duration::from_millis(50), call(&RoundRobin, &context, None)).await;
    assert!(cancelled.is_err() && in_flight() == 0);
}

#[tokio::test]
async fn worker_lost_during_a_call_is_rechecked() {
    let (context, fakes) = pool([Behavior::Break]);
    let rechecks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&rechecks);
    context.on_unreachable(move |_| _ = counted.fetch_add(1, Ordering::Relaxed));
    let mut replies = RoundRobin
        .dispatch(fake::call(None), &context, None)
        .await
        .unwrap();
    assert_eq!(
        (replies.next().await, rechecks.load(Ordering::Relaxed)),
        (CallEvent::Accepted, 0)
    );
    assert!(matches!(replies.next().await, CallEvent::Failed(error) if error.may_have_begun));
    assert_eq!(rechecks.load(Ordering::Relaxed), 1);
    fakes[0].set_behavior(Behavior::Take);
    call(&(Arc::new(RoundRobin) as Arc<dyn Balancer>), &context, None)
        .await
        .unwrap();
    assert_eq!(
        rechecks.load(Ordering::Relaxed),
        1,
        "a successful call requests no recheck"
    );
}
