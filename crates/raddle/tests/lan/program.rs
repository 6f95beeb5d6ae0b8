//! `Program`: the program `raddle-test-lan`, which runs in a host.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Write},
    process::{Child, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use raddle::pool::WorkerMetadata;
use raddle_testnet::Host;
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_raddle-test-lan");
/// The limit for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Dropping it kills the process.
pub(crate) struct Program {
    child: Child,
    lines: Receiver<Value>,
    events: VecDeque<Value>,
}

impl Program {
    pub(crate) fn start(host: &Host, settings: Value) -> Self {
        let mut command = host.command(PROGRAM);
        let mut child = command
            .arg(settings.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        // The thread ends with the program.
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let value =
                    serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}"));
                if send.send(value).is_err() {
                    return;
                }
            }
        });
        let mut program = Self {
            child,
            lines,
            events: VecDeque::new(),
        };
        program.wait_for(|value| (value == "ready").then_some(()));
        program
    }

    /// A program that prints discovery events.
    pub(crate) fn watch(host: &Host, namespace: &str) -> Self {
        Self::start(host, json!({"namespace": namespace, "watch": true}))
    }

    /// A program that publishes workers.
    pub(crate) fn publisher(host: &Host, namespace: &str) -> Self {
        Self::start(host, json!({"namespace": namespace}))
    }

    /// A program with a pool.
    pub(crate) fn pool(host: &Host, namespace: &str, pool: Value) -> Self {
        Self::start(host, json!({"namespace": namespace, "pool": pool}))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command and waits for the reply.
    pub(crate) fn request(&mut self, command: &str) -> Value {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        self.wait_for(|value| value.get("answer").cloned())
    }

    /// Sends a command that must succeed.
    pub(crate) fn run(&mut self, command: &str) {
        assert_eq!(self.request(command), "ok", "{command}");
    }

    /// Sends a command that must fail. Returns the error.
    pub(crate) fn run_refused(&mut self, command: &str) -> String {
        let answer = self.request(command);
        answer["error"]
            .as_str()
            .unwrap_or_else(|| panic!("{command}: {answer}"))
            .to_owned()
    }

    /// The next discovery event within this time.
    pub(crate) fn next_event(&mut self, within: Duration) -> Option<(String, WorkerMetadata)> {
        let value = match self.events.pop_front() {
            Some(value) => value,
            None => self.lines.recv_timeout(within).ok()?,
        };
        let worker =
            serde_json::from_value(value["worker"].clone()).unwrap_or_else(|_| panic!("{value}"));
        Some((value["event"].as_str().unwrap().to_owned(), worker))
    }

    /// Expects this event within this time. Returns how long it took.
    #[track_caller]
    pub(crate) fn expect(
        &mut self,
        event: &str,
        worker: &WorkerMetadata,
        within: Duration,
    ) -> Duration {
        let began = Instant::now();
        let events = self.next_event(within);
        assert_eq!(
            events,
            Some((event.to_owned(), worker.clone())),
            "within {within:?}"
        );
        began.elapsed()
    }

    /// Expects that a worker is dropped. Its addresses expire one by one, so updates may come
    /// first.
    #[track_caller]
    pub(crate) fn expect_dropped(&mut self, worker: &WorkerMetadata, within: Duration) {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let (event, seen) = self.next_event(left).expect("an event in time");
            assert_eq!(seen.uid, worker.uid, "{event}");
            if event == "dropped" {
                return;
            }
            assert_eq!(event, "updated");
        }
    }

    pub(crate) fn workers(&mut self) -> Vec<WorkerMetadata> {
        serde_json::from_value(self.request("workers")).unwrap()
    }

    /// Sends `SIGKILL`.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Closes its input and waits for its end.
    pub(crate) fn quit(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    fn wait_for<T>(&mut self, wanted: impl Fn(&Value) -> Option<T>) -> T {
        let until = Instant::now() + REPLY_TIMEOUT;
        loop {
            let value = self
                .lines
                .recv_timeout(until.saturating_duration_since(Instant::now()))
                .expect("an answer");
            match wanted(&value) {
                Some(answer) => return answer,
                None => self.events.push_back(value),
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
