//! Which worker a call goes to.
//!
//! A balancer owns no workers. It is given the [`BalancerContext`] of a pool with each call, so one balancer can serve many pools. What is known of a
//! worker's health and load is kept in the context as well, and goes with it.
//!
//! All balancers that are built in follow the same rules, those of [`attempt`], and differ in whom they ask first:
//!
//! | balancer | asks |
//! | --- | --- |
//! | [`RoundRobin`] | one after the other; the default |
//! | [`LeastLoaded`] | who has the fewest calls in flight |
//! | [`PowerOfTwo`] | of two at random, who promises to be done first |
//! | [`Sticky`] | for the same key, the same |
//!
//! Any other is a few lines. This one counts the calls that it is handing over itself, and asks one worker only:
//!
//! ```
//! use std::{collections::HashMap, sync::Mutex, time::Duration};
//!
//! use async_trait::async_trait;
//! use raddle_rpc::{
//!     CallError, NoWorkersAvailable, Uid,
//!     balancer::{Balancer, Context},
//!     connection::{Outgoing, Replies},
//! };
//!
//! #[derive(Default)]
//! struct Fewest {
//!     in_flight: Mutex<HashMap<Uid, usize>>,
//! }
//!
//! #[async_trait]
//! impl Balancer for Fewest {
//!     async fn dispatch(&self, call: Outgoing, context: &Context, timeout: Option<Duration>) -> Result<Replies, CallError> {
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

/// Chooses workers.
#[async_trait]
pub trait Balancer: Send + Sync + 'static {
    /// Hands the call to a worker of the context. Returns when one has taken it.
    async fn dispatch(
        &self,
        call: CallRequest,
        context: &BalancerContext,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, CallError>;

    /// The name by which routines that call others in the pool find it, in the processes of workers: those that are built in have one, and so does one that is
    /// registered with `raddle::balancer!`. Calls of routines are made in turn, if there is none. What a balancer keeps is each process's own.
    fn name(&self) -> Option<&'static str> {
        None
    }
}

/// One that several pools share.
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
