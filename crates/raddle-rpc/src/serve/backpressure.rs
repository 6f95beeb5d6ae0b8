//! Backpressure functions of the program.

use std::panic;

/// The load of a worker when a call arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerLoad<'a> {
    /// Calls in flight.
    pub in_flight: usize,
    /// The routine of the call.
    pub routine: &'a str,
}

/// Decides whether a worker accepts a call. Registered with `raddle::backpressure!`; a call that is
/// not accepted goes to another worker.
#[derive(Clone, Copy, Debug)]
pub struct Backpressure(
    /// Returns whether to accept the call.
    pub fn(WorkerLoad<'_>) -> bool,
);

impl Backpressure {
    /// Whether every registered function accepts the call.
    pub(super) fn accepts(load: WorkerLoad<'_>) -> bool {
        let accepts = || {
            inventory::iter::<Self>
                .into_iter()
                .all(|Self(accepts)| accepts(load))
        };
        // A function that panics does not block calls.
        panic::catch_unwind(accepts).unwrap_or(true)
    }
}

inventory::collect!(Backpressure);
