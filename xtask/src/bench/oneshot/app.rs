//! An application with two routines that is also their worker. Without arguments it exits at once,
//! which is the floor for one-shot workers.

/// Does nothing.
#[raddle::routine(name = "nothing", isolation = "process")]
fn nothing() {}

/// Returns the time of its first instruction, in nanoseconds of `CLOCK_MONOTONIC`.
#[raddle::routine(name = "when", isolation = "process")]
fn when() -> u64 {
    raddle::exec::LeaseDeadlinePage::clock_now()
}

/// Does nothing, in a host.
#[raddle::routine(name = "noop")]
async fn noop() {}

/// Sleeps in a host.
#[raddle::routine(name = "nap")]
async fn nap(ms: u64) {
    tokio::time::sleep(std::time::Duration::from_millis(ms)).await;
}

#[raddle::main]
fn main() {}
