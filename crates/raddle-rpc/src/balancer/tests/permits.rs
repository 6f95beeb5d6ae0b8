//! Calls that wait on this side for their turn: whatever becomes of them says nothing of the worker.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    call, dispatch, end,
    fake::{self, Does, Fake},
    soon,
};
use crate::{
    CallError,
    balancer::{Balancer, BalancerContext, RoundRobin},
    connection::ConnectionFactory,
};

const BRIEF: Duration = Duration::from_millis(100);

/// A worker to which only so many calls go at a time.
fn narrow(does: Does, limit: usize) -> (BalancerContext, Fake) {
    let (context, fake) = (BalancerContext::default(), Fake::start(does));
    context.put_worker(
        fake.metadata.clone(),
        ConnectionFactory::new(&fake.metadata.address, limit),
    );
    (context, fake)
}

fn is_admitted(context: &BalancerContext) -> bool {
    context.workers()[0].standing.admits(Instant::now())
}

#[tokio::test]
async fn who_waits_for_a_turn_in_vain_does_not_blame_the_worker() {
    let (context, fake) = narrow(Does::Take, 1);
    fake.let_end(false);
    let first = dispatch(&RoundRobin, &context, fake::call(None))
        .await
        .unwrap();
    // Nothing is sent below, so that time passes as fast as timers are due.
    tokio::time::pause();
    for _ in 0..4 {
        let outcome = soon(RoundRobin.dispatch(fake::call(None), &context, Some(BRIEF))).await;
        assert_eq!(outcome.unwrap_err(), CallError::TimedOut);
        // A caller's own timer is a little ahead.
        let ahead = RoundRobin.dispatch(fake::call(None), &context, Some(BRIEF));
        assert!(
            tokio::time::timeout(BRIEF.mul_f64(0.95), ahead)
                .await
                .is_err()
        );
    }
    assert_eq!(
        (fake.asked(), context.workers()[0].in_flight()),
        (1, 1),
        "none of them was sent"
    );
    assert!(is_admitted(&context));
    tokio::time::resume();
    // Nor has any of them kept its place in the queue.
    fake.let_end(true);
    end(first).await;
    call(&RoundRobin, &context, None).await.unwrap();
}

#[tokio::test]
async fn a_worker_that_hangs_is_found_out_by_those_that_were_sent() {
    let (context, fake) = narrow(Does::Take, 3);
    call(&RoundRobin, &context, None).await.unwrap();
    fake.now_does(Does::Hang);
    // The connection is there: what is sent is sent before the first timer.
    tokio::time::pause();
    let calls = (0..6).map(|_| RoundRobin.dispatch(fake::call(None), &context, Some(BRIEF)));
    let outcomes = soon(join_all(calls)).await;
    assert!(
        outcomes
            .into_iter()
            .all(|outcome| outcome.is_err_and(|error| error == CallError::TimedOut))
    );
    assert!(!is_admitted(&context));
}

#[tokio::test]
async fn turns_are_taken_in_the_order_of_asking() {
    let (context, fake) = narrow(Does::Take, 1);
    fake.let_end(false);
    let first = dispatch(&RoundRobin, &context, fake::call(None))
        .await
        .unwrap();
    let (order, context) = (&std::sync::Mutex::new(Vec::new()), &context);
    let waiting = (0..5).map(|n| async move {
        call(&RoundRobin, context, None).await.unwrap();
        order.lock().unwrap().push(n);
    });
    let ending = async {
        fake.let_end(true);
        end(first).await;
    };
    soon(futures_util::future::join(join_all(waiting), ending)).await;
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
}
