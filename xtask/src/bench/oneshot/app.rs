//! An application with two routines that is also their worker. Without arguments it exits at once,
//! which is the floor for one-shot workers.

/// Does nothing.
#[raddle::routine(name = "nothing")]
fn nothing() {}

/// Returns the time of its first instruction, in nanoseconds of `CLOCK_MONOTONIC`.
#[raddle::routine(name = "when")]
fn when() -> u64 {
    raddle::exec::LeaseDeadlinePage::clock_now()
}

#[raddle::main]
fn main() {}
