//! `HelperProcess`: this test binary, started again to play a part.

use std::{
    env,
    ffi::OsStr,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use raddle_broker::{AttemptStarted, Broker};
use raddle_broker_remote::{BrokerServer, Remote};
use raddle_broker_sqlite::Sqlite;

use crate::support::*;

const PART: &str = "RADDLE_TEST_PART";
const SOCKET: &str = "RADDLE_TEST_SOCKET";
/// The prefix of lines for the test, among those of the test harness.
const MARK: &str = "> ";

/// A helper process. Dropping it kills the process.
pub(crate) struct HelperProcess {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl HelperProcess {
    pub(crate) fn start(part: &str, socket: &Path) -> Self {
        Self::start_as(&[], env::current_exe().unwrap().as_os_str(), part, socket)
    }

    /// Starts `program`, a copy of this one, with the command `prefix` before it.
    pub(crate) fn start_as(prefix: &[&str], program: &OsStr, part: &str, socket: &Path) -> Self {
        let mut text = prefix.iter().map(OsStr::new).chain([program]);
        let mut child = Command::new(text.next().unwrap())
            .args(text)
            .args(["--exact", "helper_process::run_part", "--nocapture"])
            .env(PART, part)
            .env(SOCKET, socket)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next line; `None` when the process has ended.
    pub(crate) fn next_line(&mut self) -> Option<String> {
        loop {
            let line = self.lines.next()?.unwrap();
            if let Some(line_text) = line.strip_prefix(MARK) {
                return Some(line_text.to_owned());
            }
        }
    }

    /// Sends `SIGKILL` and waits for the end.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test: the main function of a helper process.
#[tokio::test]
async fn run_part() {
    let (Ok(part), Some(socket)) = (env::var(PART), env::var_os(SOCKET)) else {
        return;
    };
    // The harness has begun a line.
    println!();
    let socket = Path::new(&socket);
    match part.as_str() {
        "wait" => wait_for_a_task(socket).await,
        "hold" => hold_a_task(socket).await,
        "look" => connect(socket).await,
        "serve" => serve(socket).await,
        part => panic!("unknown part {part}"),
    }
}

fn print_line(text: &str) {
    println!("{MARK}{text}");
}

/// Waits for a task that does not arrive.
async fn wait_for_a_task(socket: &Path) {
    let broker = remote(socket).await;
    let owner = broker.register(info(), TTL).await.unwrap();
    let claiming = broker.claim(request(owner, TTL));
    let saying = async {
        // Calls of one client start in order: once this one is answered, the claim is waiting.
        broker.summary().await.unwrap();
        print_line("waiting");
        std::future::pending::<()>().await;
    };
    let _ = tokio::join!(claiming, saying);
}

/// Claims and starts a task under a short lease, and waits.
async fn hold_a_task(socket: &Path) {
    let broker = remote(socket).await;
    let owner = broker
        .register(info(), Duration::from_millis(700))
        .await
        .unwrap();
    let attempt_id = broker.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
    broker
        .mark_started(vec![AttemptStarted {
            attempt_id,
            pid: Some(std::process::id()),
        }])
        .await
        .unwrap();
    print_line("holding");
    std::future::pending::<()>().await;
}

/// Connects and prints the outcome.
async fn connect(socket: &Path) {
    match Remote::connect(socket).await {
        Ok(_) => print_line("served"),
        Err(error) => print_line(&error.to_string()),
    }
}

/// Serves the database beside the socket.
async fn serve(socket: &Path) {
    let broker: Arc<dyn Broker> = Arc::new(
        Sqlite::open(&socket.with_file_name("broker.db"))
            .await
            .unwrap(),
    );
    let agent = BrokerServer::bind(socket, broker).await.unwrap();
    print_line("serving");
    agent.run(std::future::pending()).await;
}
