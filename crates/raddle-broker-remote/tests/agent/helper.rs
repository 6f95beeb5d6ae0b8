//! Other processes: this very test binary, started again to play a part.

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
/// Marks the lines that are for the test that started the process, among those of the test harness.
const MARK: &str = "> ";

/// Another process. It is killed with -9 when it is dropped.
pub(crate) struct Other {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Other {
    pub(crate) fn start(part: &str, socket: &Path) -> Self {
        Self::start_as(&[], env::current_exe().unwrap().as_os_str(), part, socket)
    }

    /// Starts `program`, a copy of this one, through the words of `prefix`.
    pub(crate) fn start_as(prefix: &[&str], program: &OsStr, part: &str, socket: &Path) -> Self {
        let mut words = prefix.iter().map(OsStr::new).chain([program]);
        let mut child = Command::new(words.next().unwrap())
            .args(words)
            .args(["--exact", "helper::other_process", "--nocapture"])
            .env(PART, part)
            .env(SOCKET, socket)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next line it says; `None` when it is gone.
    pub(crate) fn hear(&mut self) -> Option<String> {
        loop {
            let line = self.lines.next()?.unwrap();
            if let Some(said) = line.strip_prefix(MARK) {
                return Some(said.to_owned());
            }
        }
    }

    /// Kills it with -9, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// No test of its own: what the other process does.
#[tokio::test]
async fn other_process() {
    let (Ok(part), Some(socket)) = (env::var(PART), env::var_os(SOCKET)) else {
        return;
    };
    // The harness has begun a line of its own.
    println!();
    let socket = Path::new(&socket);
    match part.as_str() {
        "wait" => wait_for_a_task(socket).await,
        "hold" => hold_a_task(socket).await,
        "look" => look(socket).await,
        "serve" => serve(socket).await,
        part => panic!("no part {part}"),
    }
}

fn say(words: &str) {
    println!("{MARK}{words}");
}

/// Waits for a task that has not come.
async fn wait_for_a_task(socket: &Path) {
    let broker = remote(socket).await;
    let owner = broker.register(info(), TTL).await.unwrap();
    let claiming = broker.claim(request(owner, TTL));
    let saying = async {
        // Calls of one client are begun in their order: when this is answered, the other waits.
        broker.summary().await.unwrap();
        say("waiting");
        std::future::pending::<()>().await;
    };
    let _ = tokio::join!(claiming, saying);
}

/// Claims and begins one task under a short lease, and does nothing more.
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
    say("holding");
    std::future::pending::<()>().await;
}

/// Says what it is told when it wants to look.
async fn look(socket: &Path) {
    match Remote::connect(socket).await {
        Ok(_) => say("served"),
        Err(error) => say(&error.to_string()),
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
    say("serving");
    agent.run(std::future::pending()).await;
}
