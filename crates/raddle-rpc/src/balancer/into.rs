//! Conversion into a balancer: from a value, or from a function that makes one.

use std::{
    future::{Future, ready},
    sync::Arc,
};

use futures_util::future::BoxFuture;

use super::Balancer;

/// A future of a balancer, which is awaited when the pool starts.
pub type MakeBalancer = BoxFuture<'static, Arc<dyn Balancer>>;

/// Conversion into a pool's balancer: from a [`Balancer`], from a function that returns one, or
/// from an `async` function that does. A function is called once, when the pool starts. The
/// balancer is dropped with the pool.
///
/// `Kind` tells these apart, and is inferred.
pub trait IntoBalancer<Kind> {
    /// Converts.
    fn into_balancer(self) -> MakeBalancer;
}

/// By value.
#[derive(Debug)]
pub enum ByValue {}

/// By a function.
#[derive(Debug)]
pub enum ByFactory {}

/// By an `async` function.
#[derive(Debug)]
pub enum ByAsyncFactory {}

impl<B: Balancer> IntoBalancer<ByValue> for B {
    fn into_balancer(self) -> MakeBalancer {
        Box::pin(ready(Arc::new(self) as Arc<dyn Balancer>))
    }
}

impl<F, B> IntoBalancer<ByFactory> for F
where
    F: FnOnce() -> B + Send + 'static,
    B: Balancer,
{
    fn into_balancer(self) -> MakeBalancer {
        Box::pin(async { Arc::new(self()) as Arc<dyn Balancer> })
    }
}

impl<F, M, B> IntoBalancer<ByAsyncFactory> for F
where
    F: FnOnce() -> M + Send + 'static,
    M: Future<Output = B> + Send + 'static,
    B: Balancer,
{
    fn into_balancer(self) -> MakeBalancer {
        Box::pin(async { Arc::new(self().await) as Arc<dyn Balancer> })
    }
}
