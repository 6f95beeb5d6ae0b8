//! An application with routines that is also their worker. Without arguments it exits at once,
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

/// Returns the time of its first instruction in a host.
#[raddle::routine(name = "when-shared")]
async fn when_shared() -> u64 {
    raddle::exec::LeaseDeadlinePage::clock_now()
}

/// Appends its number, the host and the time to a file, and holds its place in the host.
#[raddle::routine(name = "hold")]
async fn hold(path: String, number: u32, ms: u64) -> Result<(), std::io::Error> {
    let now = raddle::exec::LeaseDeadlinePage::clock_now();
    let line = format!("{number} {} {now}\n", std::process::id());
    let mut file = std::fs::File::options()
        .append(true)
        .create(true)
        .open(path)?;
    std::io::Write::write_all(&mut file, line.as_bytes())?;
    tokio::time::sleep(std::time::Duration::from_millis(ms)).await;
    Ok(())
}

/// Sleeps in a host.
#[raddle::routine(name = "nap")]
async fn nap(ms: u64) {
    tokio::time::sleep(std::time::Duration::from_millis(ms)).await;
}

#[raddle::main]
fn main() {}
