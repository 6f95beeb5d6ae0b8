//! Tests of calls that wait for a permit: their timeouts do not count against the worker.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    call, dispatch, end,
    fake::{self, Behavior, Fake},
    soon,
};
use crate::{
    CallError,
    balancer::{Balancer, BalancerContext, RoundRobin},
    connection::ConnectionFactory,
};

const BRIEF: Duration = Duration::from_millis(100);

/// A worker whose channel carries `limit` calls at a time.
fn narrow(behavior: Behavior, limit: usize) -> (BalancerContext, Fake) {
    let (context, fake) = (BalancerContext::default(), Fake::start(behavior));
    context.put_worker(
        fake.metadata.clone(),
        ConnectionFactory::new(&fake.metadata.address, limit),
    );
    (context, fake)
}

fn is_admitted(context: &BalancerContext) -> bool {
    context.workers()[0].health.admits(Instant::now())
}

#[tokio::test]
async fn timeout_while_waiting_for_a_permit_does_not_count_against_the_worker() {
    let (context, fake) = narrow(Behavior::Take, 1);
    fake.allow_end(false);
    let first = dispatch(&RoundRobin, &context, fake::call(None))
        .await
        .unwrap();
    // Nothing is sent below, so a paused clock advances from timer to timer.
    tokio::time::pause();
    for _ in 0..4 {
        let outcome = soon(RoundRobin.dispatch(fake::call(None), &context, Some(BRIEF))).await;
        assert_eq!(outcome.unwrap_err(), CallError::TimedOut);
        // A caller's own timer fires a little earlier.
        let ahead = RoundRobin.dispatch(fake::call(None), &context, Some(BRIEF));
        assert!(
            tokio::time::timeout(BRIEF.mul_f64(0.95), ahead)
                .await
                .is_err()
        );
    }
    assert_eq!(
        (fake.take_calls(), context.workers()[0].in_flight()),
        (1, 1),
        "no timed-out call was sent"
    );
    assert!(is_admitted(&context));
    tokio::time::resume();
    // None of the timed-out calls has kept its place in the queue for permits.
    fake.allow_end(true);
    end(first).await;
    call(&RoundRobin, &context, None).await.unwrap();
}

#[tokio::test]
async fn sent_calls_that_time_out_eject_the_worker() {
    let (context, fake) = narrow(Behavior::Take, 3);
    call(&RoundRobin, &context, None).await.unwrap();
    fake.set_behavior(Behavior::Hang);
    // The connection is open, so calls are sent before the first timer fires.
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
async fn permits_are_granted_in_order() {
    let (context, fake) = narrow(Behavior::Take, 1);
    fake.allow_end(false);
    let first = dispatch(&RoundRobin, &context, fake::call(None))
        .await
        .unwrap();
    let (order, context) = (&std::sync::Mutex::new(Vec::new()), &context);
    let waiting = (0..5).map(|n| async move {
        call(&RoundRobin, context, None).await.unwrap();
        order.lock().unwrap().push(n);
    });
    let ending = async {
        fake.allow_end(true);
        end(first).await;
    };
    soon(futures_util::future::join(join_all(waiting), ending)).await;
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
}
