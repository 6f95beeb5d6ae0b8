//! Other processes: this very test binary, started again to play a part.

use std::{
    env,
    fs::File,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use raddle_broker::{AttemptStarted, Leases, Queries, Tasks};
use rustix::process::Pid;

use crate::support::*;

const PART: &str = "RADDLE_TEST_PART";
const DATABASE: &str = "RADDLE_TEST_DATABASE";
/// Marks the lines that are for the test that started the process, among those of the test harness.
const MARK: &str = "> ";
/// How many tasks the submitter puts into each group.
pub(crate) const GROUP: usize = 10;

/// Another process. It is killed with -9 when it is dropped.
pub(crate) struct Other {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Other {
    pub(crate) fn start(part: &str, database: &Path) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "helper::other_process", "--nocapture"])
            .env(PART, part)
            .env(DATABASE, database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Lets it go on.
    pub(crate) fn go(&mut self) {
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

    /// The words of the next line it says; `None` when it is gone.
    pub(crate) fn hear(&mut self) -> Option<Vec<String>> {
        loop {
            let line = self.lines.next()?.unwrap();
            if let Some(said) = line.strip_prefix(MARK) {
                return Some(said.split(' ').map(String::from).collect());
            }
        }
    }

    /// How it ends by itself.
    pub(crate) fn wait(mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    /// Kills it with -9, and gives back what it had said by then.
    pub(crate) fn kill(mut self) -> Vec<Vec<String>> {
        self.child.kill().unwrap();
        std::iter::from_fn(|| self.hear()).collect()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Nanoseconds on a clock that all processes share.
pub(crate) fn now() -> u64 {
    u64::try_from(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos(),
    )
    .unwrap()
}

/// No test of its own: what the other process does.
#[tokio::test]
async fn other_process() {
    let (Ok(part), Some(database)) = (env::var(PART), env::var_os(DATABASE)) else {
        return;
    };
    // The harness has begun a line of its own.
    println!();
    let database = Path::new(&database);
    match part.as_str() {
        "open" => open_at_a_word(database).await,
        "submit" => submit_groups(database).await,
        "claim" => claim_and_stay(database).await,
        "hold" => hold(database),
        "tied" => claim_and_leave_a_child(database).await,
        "wait" => claim_what_comes(database).await,
        part => panic!("no part {part}"),
    }
}

fn say(words: &[String]) {
    println!("{MARK}{}", words.join(" "));
}

fn listen() {
    std::io::stdin()
        .lock()
        .read_line(&mut String::new())
        .unwrap();
}

/// Opens the database when told to, and puts one task into it.
async fn open_at_a_word(database: &Path) {
    say(&["here".into()]);
    listen();
    let broker = open(database).await;
    let tids = submit(&broker, vec![spec("task")]).await.unwrap();
    say(&["stored".into(), tids[0].to_string()]);
}

/// Submits one group after another, and tells the ids of each that was accepted.
async fn submit_groups(database: &Path) {
    let broker = open(database).await;
    for n in 0.. {
        let group = vec![spec(&format!("group-{}-{n}", std::process::id())); GROUP];
        let tids = submit(&broker, group).await.unwrap();
        say(&tids.iter().map(|tid| tid.to_string()).collect::<Vec<_>>());
    }
}

/// Claims and begins one task under a short lease, and does nothing more.
async fn claim_and_stay(database: &Path) {
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
    say(&[
        "claimed".into(),
        owner.to_string(),
        attempt_id.tid.to_string(),
    ]);
    std::future::pending::<()>().await;
}

/// Takes every lock on the database, and stays.
fn hold(database: &Path) {
    let bell = File::options()
        .read(true)
        .write(true)
        .open(format!("{}-state", database.display()))
        .unwrap();
    rustix::fs::flock(&bell, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let sqlite = rusqlite::Connection::open(database).unwrap();
    sqlite.busy_timeout(SOON).unwrap();
    sqlite.execute_batch("BEGIN IMMEDIATE").unwrap();
    say(&["held".into()]);
    std::thread::sleep(SOON);
}

/// Claims and begins one task under a long lease, and starts a child that lives until there is a file to end it.
async fn claim_and_leave_a_child(database: &Path) {
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
    // Not the pipe that the test reads to its end.
    child
        .args(["-c", wait])
        .arg(database.with_extension("go"))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut child = child.spawn().unwrap();
    say(&["claimed".into(), owner.to_string()]);
    child.wait().unwrap();
}

/// Claims tasks as they come, and tells when each came.
async fn claim_what_comes(database: &Path) {
    let broker = open(database).await;
    let owner = worker(&broker, TTL).await;
    loop {
        say(&["waiting".into()]);
        let claims = broker.claim(request(owner, SOON)).await.unwrap();
        say(&[
            "got".into(),
            claims[0].attempt_id.tid.to_string(),
            now().to_string(),
        ]);
    }
}
