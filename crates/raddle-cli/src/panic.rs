//! Ends the process after a panic on any thread or task.
//!
//! A worker without the thread that renews its lease, or without the task that writes its results,
//! would hold its tasks and do nothing. The death of a worker is noticed within a second, and its
//! tasks are reclaimed.

use std::{panic, process};

/// Installs a hook that reports a panic as usual, and then exits with this code. Not for runners,
/// which report panics of their functions.
pub(crate) fn exit_on_panic(code: u8) {
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

    /// The test runs itself as a child process, because it checks an exit code.
    #[test]
    fn a_panic_on_a_detached_thread_ends_the_process() {
        if env::var_os(MARK).is_some() {
            exit_on_panic(RADDLE);
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
        assert!(
            String::from_utf8_lossy(&again.stderr).contains("a thread that is needed is gone"),
            "{again:?}"
        );
    }
}
