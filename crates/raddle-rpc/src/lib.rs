//! Calls: functions that run in worker processes as if they were local. No broker, no scheduler; one round trip.
//!
//! A [`WorkerPool`] starts workers, each this same program again, and publishes them to a *discovery*. A [`WorkerProxy`] follows a discovery and
//! keeps the [`BalancerContext`](balancer::BalancerContext) of its workers. A call is handed to the proxy, which has a *balancer* choose a worker, and a
//! [`Connection`](connection::Connection) carries it there. In the worker, [`serve`] runs it, and what comes of it goes back the same way.

pub mod balancer;
mod call;
pub mod connection;
pub mod context;
mod error;
mod link;
mod membership;
mod pool;
mod proxy;
mod scope;
pub mod serve;
mod stream;
pub mod worker;

pub use call::{Call, CallStream};
pub use error::{CallError, ErrorClass, Never, NoWorkersAvailable, RpcError};
pub use pool::{PoolBuilder, PoolError, WorkerPool, standalone};
pub use proxy::{ProxyBuilder, WorkerProxy};
pub use raddle_discovery::{
    Address, Encoding, Encodings, MetadataError, WorkerMetadata, WorkerUid,
};
pub use raddle_tls::WorkerCredentials;
pub use scope::{CallTarget, spawn};
