//! `HelperProcess`: this test binary, started again to play a part.

use std::{
    env,
    fs::File,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use raddle_broker::{AttemptStarted, Leases, Operations, Queries, Tasks};
use rustix::process::Pid;

use crate::support::*;

const PART: &str = "RADDLE_TEST_PART";
const DATABASE: &str = "RADDLE_TEST_DATABASE";
/// The prefix of lines for the test, among those of the test harness.
const MARK: &str = "> ";
/// The number of tasks per batch.
pub(crate) const GROUP: usize = 10;

/// A helper process. Dropping it kills the process.
pub(crate) struct HelperProcess {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl HelperProcess {
    pub(crate) fn start(part: &str, database: &Path) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "helper_process::run_part", "--nocapture"])
            .env(PART, part)
            .env(DATABASE, database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Sends the signal to continue.
    pub(crate) fn resume(&mut self) {
        self.child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(b"go\n")
            .unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The words of the next line; `None` when the process has ended.
    pub(crate) fn next_line(&mut self) -> Option<Vec<String>> {
        loop {
            let line = self.lines.next()?.unwrap();
            if let Some(line_text) = line.strip_prefix(MARK) {
                return Some(line_text.split(' ').map(String::from).collect());
            }
        }
    }

    /// Waits for its own end.
    pub(crate) fn wait(mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    /// Sends `SIGKILL`, and returns the lines that it had printed.
    pub(crate) fn kill(mut self) -> Vec<Vec<String>> {
        self.child.kill().unwrap();
        std::iter::from_fn(|| self.next_line()).collect()
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Nanoseconds of the wall clock, which all processes share.
pub(crate) fn now() -> u64 {
    u64::try_from(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos(),
    )
    .unwrap()
}

/// Not a test: the main function of a helper process.
#[tokio::test]
async fn run_part() {
    let (Ok(part), Some(database)) = (env::var(PART), env::var_os(DATABASE)) else {
        return;
    };
    // The harness has begun a line.
    println!();
    let database = Path::new(&database);
    match part.as_str() {
        "open" => open_on_signal(database).await,
        "submit" => submit_groups(database).await,
        "claim" => claim_and_wait(database).await,
        "hold" => hold_locks(database),
        "tied" => claim_and_leave_child(database).await,
        "wait" => claim_in_loop(database).await,
        "advance" => advance_operation(database).await,
        part => panic!("unknown part {part}"),
    }
}

fn print_line(words: &[String]) {
    println!("{MARK}{}", words.join(" "));
}

fn wait_for_go() {
    std::io::stdin()
        .lock()
        .read_line(&mut String::new())
        .unwrap();
}

/// Opens the database when signalled, and submits a task.
async fn open_on_signal(database: &Path) {
    print_line(&["here".into()]);
    wait_for_go();
    let broker = open(database).await;
    let tids = submit(&broker, vec![spec("task")]).await.unwrap();
    print_line(&["stored".into(), tids[0].to_string()]);
}

/// Submits batches, and prints the ids of each that was accepted.
async fn submit_groups(database: &Path) {
    let broker = open(database).await;
    for n in 0.. {
        let group = vec![spec(&format!("group-{}-{n}", std::process::id())); GROUP];
        let tids = submit(&broker, group).await.unwrap();
        print_line(&tids.iter().map(|tid| tid.to_string()).collect::<Vec<_>>());
    }
}

/// Claims and starts a task under a short lease, and waits.
async fn claim_and_wait(database: &Path) {
    let broker = open(database).await;
    let owner = worker(&broker, Duration::from_millis(700)).await;
    let attempt_id = broker.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
    broker
        .mark_started(vec![AttemptStarted {
            attempt_id,
            pid: Some(std::process::id()),
        }])
        .await
        .unwrap();
    print_line(&[
        "claimed".into(),
        owner.to_string(),
        attempt_id.tid.to_string(),
    ]);
    std::future::pending::<()>().await;
}

/// Takes every lock on the database, and waits.
fn hold_locks(database: &Path) {
    let shared_file = File::options()
        .read(true)
        .write(true)
        .open(format!("{}-state", database.display()))
        .unwrap();
    rustix::fs::flock(&shared_file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let sqlite = rusqlite::Connection::open(database).unwrap();
    sqlite.busy_timeout(SOON).unwrap();
    sqlite.execute_batch("BEGIN IMMEDIATE").unwrap();
    print_line(&["held".into()]);
    std::thread::sleep(SOON);
}

/// Claims and starts a task under a long lease, and starts a child that lives until a file exists.
async fn claim_and_leave_child(database: &Path) {
    let broker = open(database).await;
    let owner = worker(&broker, TTL).await;
    broker.acquire_liveness_lock(owner);
    let attempt_id = broker.claim(request(owner, SOON)).await.unwrap()[0].attempt_id;
    broker
        .mark_started(vec![AttemptStarted {
            attempt_id,
            pid: Some(std::process::id()),
        }])
        .await
        .unwrap();
    let wait = "for n in $(seq 200); do test -e \"$0\" && exit; sleep 0.05; done";
    let mut child = Command::new("sh");
    // The child must not keep the pipe open that the test reads.
    child
        .args(["-c", wait])
        .arg(database.with_extension("go"))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut child = child.spawn().unwrap();
    print_line(&["claimed".into(), owner.to_string()]);
    child.wait().unwrap();
}

/// Claims tasks in a loop, and prints when each arrived.
async fn claim_in_loop(database: &Path) {
    let broker = open(database).await;
    let owner = worker(&broker, TTL).await;
    loop {
        print_line(&["waiting".into()]);
        let claims = broker.claim(request(owner, SOON)).await.unwrap();
        print_line(&[
            "got".into(),
            claims[0].attempt_id.tid.to_string(),
            now().to_string(),
        ]);
    }
}

/// Advances the newest operation to its end, and prints each step.
async fn advance_operation(database: &Path) {
    let broker = open(database).await;
    let id = broker.operations(None, 1).await.unwrap()[0].id;
    loop {
        let view = broker.advance_operation(id, 7).await.unwrap();
        print_line(&["done".into(), view.done.to_string()]);
        if view.state != raddle_broker::operations::OperationState::Running {
            return;
        }
    }
}
