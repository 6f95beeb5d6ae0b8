//! Tests of balancers with scripted workers.

mod choice;
mod custom;
mod fake;
mod permits;
mod rules;

use std::{future::Future, time::Duration};

use super::{Balancer, BalancerContext};
use crate::{
    CallError,
    connection::{CallEvent, CallRequest, ReplyStream},
};

/// Everything in these tests happens soon, or never.
async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .expect("in time")
}

/// Pauses the clock while sockets go on, so that a busy machine changes no timing. The clock
/// does not move until the test advances it: tokio does not advance a paused clock while a
/// blocking task runs.
struct StoppedClock {
    _until_dropped: std::sync::mpsc::Sender<()>,
}

impl StoppedClock {
    fn new() -> Self {
        tokio::time::pause();
        let (send, receive) = std::sync::mpsc::channel();
        tokio::task::spawn_blocking(move || receive.recv());
        Self {
            _until_dropped: send,
        }
    }

    async fn advance(&self, time: Duration) {
        tokio::time::advance(time).await;
    }
}

async fn dispatch(
    balancer: &impl Balancer,
    context: &BalancerContext,
    call: CallRequest,
) -> Result<ReplyStream, CallError> {
    soon(balancer.dispatch(call, context, None)).await
}

/// Waits for the end of a call.
async fn end(mut replies: ReplyStream) {
    soon(async { while !replies.next().await.is_last() {} }).await;
}

/// Makes a call and waits for its end.
async fn call(
    balancer: &impl Balancer,
    context: &BalancerContext,
    key: Option<u64>,
) -> Result<(), CallError> {
    let replies = dispatch(balancer, context, fake::call(key)).await?;
    end(replies).await;
    Ok(())
}

#[tokio::test]
async fn fake_worker_answers_like_a_worker() {
    let (context, _fakes) = fake::pool([fake::Behavior::Take]);
    let mut replies = dispatch(&super::RoundRobin, &context, fake::call(None))
        .await
        .unwrap();
    assert_eq!(soon(replies.next()).await, CallEvent::Accepted);
    assert_eq!(
        soon(replies.next()).await,
        CallEvent::Item(bytes::Bytes::from_static(b"\xc0"))
    );
    assert_eq!(soon(replies.next()).await, CallEvent::End);
}
