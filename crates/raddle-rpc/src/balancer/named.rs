//! Balancers by name: routines call others from worker processes, and these calls are balanced like
//! those of the pool itself.

use std::sync::Arc;

use super::{Balancer, LeastLoaded, PowerOfTwo, Sticky};

/// A balancer of this program, registered with `raddle::balancer!`.
#[derive(Clone, Copy, Debug)]
pub struct NamedBalancer {
    /// The name that its [`Balancer::name`] returns.
    pub name: &'static str,
    /// Makes a balancer.
    pub make: fn() -> Arc<dyn Balancer>,
}

inventory::collect!(NamedBalancer);

pub(super) const LEAST_LOADED: &str = "least_loaded";
pub(super) const POWER_OF_TWO: &str = "power_of_two";
pub(super) const STICKY: &str = "sticky";

/// Makes the balancer of this name, if the program has one.
pub(crate) fn balancer_by_name(name: &str) -> Option<Arc<dyn Balancer>> {
    match name {
        LEAST_LOADED => Some(Arc::new(LeastLoaded)),
        POWER_OF_TWO => Some(Arc::new(PowerOfTwo)),
        STICKY => Some(Arc::new(Sticky)),
        _ => inventory::iter::<NamedBalancer>
            .into_iter()
            .find(|named| named.name == name)
            .map(|named| (named.make)()),
    }
}
