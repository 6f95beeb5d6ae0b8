//! What a panic means: the end of the process, whichever thread or task it happened on.
//!
//! A worker without the thread that renews its lease, or without the task that writes its results, would hold what it has and do nothing
//! about it. One that is gone is missed within a second, and others take over.

use std::{panic, process};

/// From now on a panic is reported as always, and then ends the process with this code. Not for runners, which report what their functions do.
pub(crate) fn ends_the_process(code: u8) {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        process::exit(code.into());
    }));
}

#[cfg(test)]
mod tests {
    use std::{env, process::Command, thread, time::Duration};

    use super::*;
    use crate::error::RADDLE;

    const MARK: &str = "RADDLE_TEST_PANIC";

    /// The test starts itself again: what it looks at is the end of a process.
    #[test]
    fn a_panic_on_a_thread_that_nobody_waits_for_ends_the_process() {
        if env::var_os(MARK).is_some() {
            ends_the_process(RADDLE);
            thread::spawn(|| panic!("a thread that is needed is gone"));
            thread::sleep(Duration::from_secs(30));
            return;
        }
        let name = thread::current().name().unwrap().to_owned();
        let again = Command::new(env::current_exe().unwrap())
            .args(["--exact", "--nocapture", &name])
            .env(MARK, "1")
            .output()
            .unwrap();
        assert_eq!(again.status.code(), Some(RADDLE.into()), "{again:?}");
        assert!(String::from_utf8_lossy(&again.stderr).contains("a thread that is needed is gone"), "{again:?}");
    }
}
