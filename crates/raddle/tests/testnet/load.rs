//! `Load`: a program that calls all the time and records the outcome of each call.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, ChildStdin, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use raddle::pool::WorkerMetadata;
use serde::{Deserialize, Serialize};

use crate::{Machine, wait_until};

/// Settings of the load program.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Settings {
    /// The workers to call. Without a list, those of the LAN namespace `lan`.
    pub(crate) workers: Option<Vec<WorkerMetadata>>,
    pub(crate) lan: Option<String>,
    /// The number of concurrent callers.
    pub(crate) callers: usize,
    /// The pause after each call, in milliseconds.
    pub(crate) rest: u64,
    /// The timeout of a call, in milliseconds.
    pub(crate) timeout: Option<u64>,
    /// The duration of the routine, in milliseconds.
    pub(crate) linger: u64,
    /// CA, certificate and key.
    pub(crate) credentials: Option<[PathBuf; 3]>,
}

/// The outcome of a call. Times are in milliseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CallRecord {
    pub(crate) began: u64,
    pub(crate) ended: u64,
    /// The host and the process that ran it.
    pub(crate) host: Option<String>,
    pub(crate) process: Option<u32>,
    pub(crate) error: Option<String>,
    pub(crate) may_have_begun: bool,
}

/// The load program. Dropping it stops the calls.
pub(crate) struct Load {
    child: Child,
    stop_pipe: Option<ChildStdin>,
    calls: Arc<Mutex<Vec<CallRecord>>>,
    reader: Option<JoinHandle<()>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: None,
            lan: None,
            callers: 8,
            rest: 10,
            timeout: None,
            linger: 0,
            credentials: None,
        }
    }
}

impl Load {
    /// Starts to call from this machine.
    pub(crate) fn start(machine: &Machine, settings: &Settings) -> Self {
        let mut command = machine.command();
        command
            .arg("load")
            .arg(serde_json::to_string(settings).unwrap());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stop_pipe, lines) = (
            child.stdin.take(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        let calls = Arc::new(Mutex::new(Vec::new()));
        let records = Arc::clone(&calls);
        // The thread ends with the process.
        let reader = thread::spawn(move || {
            for line in lines.lines() {
                let Ok(line) = line else { return };
                let called =
                    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                records.lock().unwrap().push(called);
            }
        });
        Self {
            child,
            stop_pipe,
            calls,
            reader: Some(reader),
        }
    }

    /// The records of all calls that have ended.
    pub(crate) fn calls(&self) -> Vec<CallRecord> {
        self.calls.lock().unwrap().clone()
    }

    /// The number of calls that began after this time and ran on this host.
    pub(crate) fn count_ran(&self, after: u64, host: &str) -> usize {
        let calls = self.calls.lock().unwrap();
        calls
            .iter()
            .filter(|call| call.began >= after && call.host.as_deref() == Some(host))
            .count()
    }

    /// Waits until calls run on all of these hosts and on no others.
    #[track_caller]
    pub(crate) fn wait_until_only(&self, hosts: &[&str]) {
        let mut since = crate::now();
        wait_until(&format!("calls run at {hosts:?}"), 20, || {
            let count_ran = hosts.iter().all(|host| self.count_ran(since, host) > 0);
            let calls = self.calls.lock().unwrap();
            let mut others = calls.iter().filter(|call| call.began >= since);
            let other = others.rfind(|call| {
                !call
                    .host
                    .as_deref()
                    .is_some_and(|host| hosts.contains(&host))
            });
            if let Some(other) = other {
                since = other.began + 1;
            }
            count_ran
        });
    }

    /// Stops the program and returns the records of all calls.
    pub(crate) fn stop(mut self) -> Vec<CallRecord> {
        self.stop_and_wait();
        self.calls()
    }

    fn stop_and_wait(&mut self) {
        drop(self.stop_pipe.take());
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let read = reader.join();
            assert!(
                read.is_ok() || thread::panicking(),
                "the load program prints JSON"
            );
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop_and_wait();
    }
}

/// The failed calls.
pub(crate) fn failed_calls(calls: &[CallRecord]) -> Vec<&CallRecord> {
    failed_calls_after(calls, 0)
}

/// The failed calls that began after this time.
pub(crate) fn failed_calls_after(calls: &[CallRecord], after: u64) -> Vec<&CallRecord> {
    calls
        .iter()
        .filter(|call| call.error.is_some() && call.began > after)
        .collect()
}
