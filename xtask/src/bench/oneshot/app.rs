//! A user's program: two routines, and itself as their worker. Started without arguments it does nothing, which is the floor that one-shot
//! workers are measured against.

/// Does nothing.
#[raddle::routine(name = "nothing")]
fn nothing() {}

/// Says when its first instruction ran, in nanoseconds on the machine's clock.
#[raddle::routine(name = "when")]
fn when() -> u64 {
    raddle::exec::LeaseDeadlinePage::clock_now()
}

#[raddle::main]
fn main() {}
