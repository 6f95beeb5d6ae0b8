//! Balancers: which worker a call goes to.
//!
//! A balancer owns no workers. Each call brings the [`BalancerContext`] of its pool, so one
//! balancer can serve many pools. The context also holds the health and load of each worker.
//!
//! All built-in balancers follow the rules of [`attempt`], and differ in the worker that they try
//! first:
//!
//! | balancer | tries first |
//! | --- | --- |
//! | [`RoundRobin`] | each worker in turn; the default |
//! | [`LeastLoaded`] | the worker with the fewest calls in flight |
//! | [`PowerOfTwo`] | of two random workers, the one with the lower expected latency |
//! | [`Sticky`] | the same worker for the same key |
//!
//! A custom balancer is a few lines. This one counts the calls that it is dispatching, and tries
//! one worker only:
//!
//! ```
//! use std::{collections::HashMap, sync::Mutex, time::Duration};
//!
//! use async_trait::async_trait;
//! use raddle_rpc::{
//!     CallError, NoWorkersAvailable, WorkerUid,
//!     balancer::{Balancer, BalancerContext},
//!     connection::{CallRequest, ReplyStream},
//! };
//!
//! #[derive(Default)]
//! struct Fewest {
//!     in_flight: Mutex<HashMap<WorkerUid, usize>>,
//! }
//!
//! #[async_trait]
//! impl Balancer for Fewest {
//!     async fn dispatch(&self, call: CallRequest, context: &BalancerContext, timeout: Option<Duration>) -> Result<ReplyStream, CallError> {
//!         let workers = context.workers();
//!         let worker = {
//!             let mut in_flight = self.in_flight.lock().unwrap();
//!             let fewest = workers.iter().min_by_key(|worker| in_flight.get(&worker.metadata.uid).copied().unwrap_or(0));
//!             let worker = fewest.ok_or(NoWorkersAvailable(None))?;
//!             *in_flight.entry(worker.metadata.uid).or_default() += 1;
//!             worker
//!         };
//!         let replies = worker.factory.connect().dispatch(call, timeout).await;
//!         *self.in_flight.lock().unwrap().entry(worker.metadata.uid).or_default() -= 1;
//!         Ok(replies?)
//!     }
//! }
//! ```

mod attempt;
mod breaker;
mod context;
mod endpoint_health;
mod into;
mod key;
mod latency;
mod least_loaded;
mod named;
mod power_of_two;
mod round_robin;
mod sticky;
#[cfg(test)]
mod tests;
mod unconnected;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

pub use self::{
    attempt::{Candidates, attempt},
    context::{BalancerContext, Endpoint},
    into::{ByAsyncFactory, ByFactory, ByValue, IntoBalancer, MakeBalancer},
    least_loaded::LeastLoaded,
    named::NamedBalancer,
    power_of_two::PowerOfTwo,
    round_robin::RoundRobin,
    sticky::Sticky,
};
pub(crate) use self::{key::hash_key, named::balancer_by_name};
use crate::{
    CallError,
    connection::{CallRequest, ReplyStream},
};

/// Chooses a worker for each call.
#[async_trait]
pub trait Balancer: Send + Sync + 'static {
    /// Sends the call to a worker of the context. Returns when a worker has accepted it.
    async fn dispatch(
        &self,
        call: CallRequest,
        context: &BalancerContext,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, CallError>;

    /// The name of the balancer in worker processes, where routines call others in the pool.
    /// Built-in balancers have one, and so do those registered with `raddle::balancer!`. Without a
    /// name, calls of routines are balanced by [`RoundRobin`]. Each process has its own state.
    fn name(&self) -> Option<&'static str> {
        None
    }
}

/// A balancer that several pools share.
#[async_trait]
impl<B: Balancer + ?Sized> Balancer for Arc<B> {
    async fn dispatch(
        &self,
        call: CallRequest,
        context: &BalancerContext,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, CallError> {
        (**self).dispatch(call, context, timeout).await
    }

    fn name(&self) -> Option<&'static str> {
        (**self).name()
    }
}
