//! Whether a worker wants more.

use std::panic;

/// What a worker has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerLoad<'a> {
    /// Calls in flight.
    pub in_flight: usize,
    /// The routine that is called.
    pub routine: &'a str,
}

/// Decides whether a worker takes a call. Registered with `raddle::backpressure!`; one that it does not take is offered to another worker.
#[derive(Clone, Copy, Debug)]
pub struct Backpressure(
    /// Whether the call is taken.
    pub fn(WorkerLoad<'_>) -> bool,
);

impl Backpressure {
    /// Whether all that this program has registered take it.
    pub(super) fn allows(load: WorkerLoad<'_>) -> bool {
        let takes = || {
            inventory::iter::<Self>
                .into_iter()
                .all(|Self(takes)| takes(load))
        };
        // One that panics has nothing against it.
        panic::catch_unwind(takes).unwrap_or(true)
    }
}

inventory::collect!(Backpressure);
