//! Balancers by name. Calls of routines are made in other processes than those of their pool, and are balanced there as the pool's own calls are.

use std::sync::Arc;

use super::{Balancer, LeastLoaded, PowerOfTwo, Sticky};

/// A balancer that a program has, by the name that [`Balancer::name`] says. Registered with `raddle::balancer!`.
#[derive(Clone, Copy, Debug)]
pub struct NamedBalancer {
    /// Its name.
    pub name: &'static str,
    /// Makes one.
    pub make: fn() -> Arc<dyn Balancer>,
}

inventory::collect!(NamedBalancer);

pub(super) const LEAST_LOADED: &str = "least_loaded";
pub(super) const POWER_OF_TWO: &str = "power_of_two";
pub(super) const STICKY: &str = "sticky";

/// A balancer of this name, if this program has one.
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
