//! Calls: functions that run in worker processes as if they were local. No broker and no scheduler:
//! one round trip.
//!
//! A [`WorkerPool`] starts workers, each this same program again, and publishes them to a
//! *discovery*. A [`WorkerProxy`] follows a discovery and keeps its workers in a
//! [`BalancerContext`](balancer::BalancerContext). The proxy passes a call to a *balancer*, which
//! chooses a worker, and a [`Connection`](connection::Connection) carries the call there. In the
//! worker, [`serve`] runs the routine and sends the result back.

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

pub use call::{Call, CallStream, RawCall, RawFailure, RawReply};
pub use error::{CallError, ErrorClass, Never, NoWorkersAvailable, RpcError};
pub use pool::{PoolBuilder, PoolError, WorkerPool, standalone};
pub use proxy::{ProxyBuilder, WorkerProxy};
pub use raddle_discovery::{
    Address, Encoding, Encodings, MetadataError, WorkerMetadata, WorkerUid,
};
pub use raddle_tls::WorkerCredentials;
pub use scope::{CallTarget, spawn};
