//! The process of a worker: this same program again, which dies with whoever holds this.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::PathBuf,
    pin::pin,
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use raddle_core::{Tid, TidClock};
use raddle_process::log::Log;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::{
    io::{Interest, unix::AsyncFd},
    process::{Child, Command},
    sync::{
        Notify,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        watch,
    },
};

use super::{Patience, Tally, WorkerError, leash::Leash};
use crate::{
    Encoding, Uid, WorkerMetadata,
    connection::Address,
    credentials::{Allow, WorkerCredentials},
    serve::{self, ARGUMENT, Report, Settings},
};

/// How long a worker may take to serve, unless something else is said.
const START: Duration = Duration::from_secs(30);
/// How long its end may be seen after its last words, or the other way round.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long it may take to say what it has done. No code of a user's holds it up.
const ANSWER: Duration = Duration::from_secs(1);
/// Where systemd hears whether a service is ready. A worker is none: who has started it is.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// What a worker's process is to be.
#[derive(Clone, Debug)]
pub struct ProcessSettings {
    /// The program, which must begin with `#[raddle::main]`. This one, if nothing is said.
    pub program: Option<PathBuf>,
    /// Which worker it is.
    pub uid: Uid,
    /// What its title shows.
    pub name: String,
    /// Where it serves; port 0 is any. A socket of its own, which only this user reaches, if nothing is said.
    pub address: Option<String>,
    /// What it can do.
    pub tags: BTreeSet<String>,
    /// Anything else.
    pub extra: BTreeMap<String, String>,
    /// Calls that it takes at a time, if that is bounded.
    pub max_in_flight: Option<usize>,
    /// Plain functions (`fn`) that it runs at a time. As many as there are cores, if nothing is said.
    pub max_blocking: Option<usize>,
    /// Who it is, and whom it trusts: it then serves at a port, by TLS.
    pub credentials: Option<WorkerCredentials>,
    /// Who may do what. If nothing is said, everybody who is let in.
    pub allow: Option<Allow>,
    /// It may be reached from other machines by anybody. Without this, and without credentials, it serves on this machine only.
    pub insecure: bool,
    /// How long it keeps what it needs to call others, when it does not.
    pub proxy_pool_ttl: Duration,
    /// What it logs, and how. If nothing is said, what its environment asks for.
    pub log: Option<Log>,
}

/// The process of a worker. It ends when this is dropped.
#[derive(Debug)]
pub struct WorkerProcess {
    pid: u32,
    metadata: WorkerMetadata,
    /// How it ended, when it has.
    ended: watch::Receiver<Option<String>>,
    /// Ends it.
    kill: watch::Sender<bool>,
    /// What it has done, as it was last heard.
    done: watch::Receiver<Tally>,
    /// Has it asked.
    asked: Arc<Notify>,
    /// Has it told to stop.
    stops: UnboundedSender<Patience>,
}

impl Default for ProcessSettings {
    fn default() -> Self {
        Self {
            program: None,
            uid: Uid::new(),
            name: "pool-worker".into(),
            address: None,
            tags: BTreeSet::new(),
            extra: BTreeMap::new(),
            max_in_flight: None,
            max_blocking: None,
            credentials: None,
            allow: None,
            insecure: false,
            proxy_pool_ttl: Duration::from_secs(60),
            log: None,
        }
    }
}

impl WorkerProcess {
    /// Starts one. Returns when it serves.
    pub async fn start(settings: &ProcessSettings, timeout: Option<Duration>) -> Result<Self, WorkerError> {
        if settings.program.is_none() && !serve::has_entered() {
            return Err(WorkerError::NoEntry);
        }
        let timeout = timeout.unwrap_or(START);
        let (mut leash, theirs) = Leash::new().map_err(WorkerError::Spawn)?;
        // This program, whatever has become of its file since.
        let program = settings.program.clone().unwrap_or_else(|| "/proc/self/exe".into());
        let mut child = Command::new(program)
            .arg0(own_name())
            .arg(ARGUMENT)
            .env_remove(NOTIFY_SOCKET)
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(WorkerError::Spawn)?;
        let pid = child.id().unwrap_or_default();
        let address = heard_in(timeout, hear(settings, &mut leash), &mut child).await?;
        let metadata = WorkerMetadata {
            uid: settings.uid,
            secure: settings.credentials.is_some() && is_at_a_port(&address),
            address,
            pid,
            version: env!("CARGO_PKG_VERSION").into(),
            tags: settings.tags.clone(),
            extra: settings.extra.clone(),
            encodings: Encoding::ALL.into(),
        };
        let (kill, killed) = watch::channel(false);
        let (say, ended) = watch::channel(None);
        let (count, done) = watch::channel(Tally::default());
        let asked = Arc::new(Notify::new());
        let (stops, stop) = unbounded_channel();
        let held = Held { leash, asked: Arc::clone(&asked), stop, count };
        // Ends with the process, which ends when `kill` is dropped.
        tokio::spawn(look_after(child, held, metadata.address.clone(), killed, say));
        Ok(Self { pid, metadata, ended, kill, done, asked, stops })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What is known of the worker.
    pub fn metadata(&self) -> &WorkerMetadata {
        &self.metadata
    }

    /// Whether it is running.
    pub fn is_alive(&self) -> bool {
        self.ended.borrow().is_none()
    }

    /// What it has done, and is doing. It is asked, and has a second to answer; else it is what was last heard.
    pub async fn tally(&self) -> Tally {
        let mut done = self.done.clone();
        done.mark_unchanged();
        self.asked.notify_one();
        if self.is_alive() {
            // Who has ended has said its last word.
            let _ = tokio::time::timeout(ANSWER, done.changed()).await;
        }
        let done = done.borrow().clone();
        if self.is_alive() { done } else { done.ended() }
    }

    /// Waits for its end, and says how it ended.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(how) => how.clone().unwrap_or_default(),
            Err(_) => "nobody looks after it any more".into(),
        }
    }

    /// Tells it to stop, with what patience there is for calls in flight. It may be told again, with less.
    pub(super) fn stop(&self, patience: Patience) {
        // Who has ended needs no word.
        let _ = self.stops.send(patience);
    }

    /// Ends it at once.
    pub fn kill(&self) {
        self.kill.send_replace(true);
    }
}

/// A worker that is held, and what is heard from it.
struct Held {
    leash: Leash,
    asked: Arc<Notify>,
    stop: UnboundedReceiver<Patience>,
    count: watch::Sender<Tally>,
}

impl Held {
    /// Asks when it is to, and hears. Returns when there is nothing more to hear.
    async fn listen(&mut self) {
        loop {
            tokio::select! {
                heard = self.leash.hear() => match heard {
                    Some(Report::Done(tally)) => _ = self.count.send_replace(tally),
                    Some(_) => {}
                    None => return,
                },
                () = self.asked.notified() => self.leash.ask(),
                Some(patience) = self.stop.recv() => self.leash.stop(patience).await,
            }
        }
    }
}

/// Holds the leash until the process has ended, or nobody wants it any more. Nothing is left of it then: what it has started is killed with it,
/// as long as it has stayed in its group, and so is a socket that has a file.
async fn look_after(
    mut child: Child,
    mut held: Held,
    address: String,
    mut killed: watch::Receiver<bool>,
    say: watch::Sender<Option<String>>,
) {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
    let opened = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    // SAFETY: the descriptor is owned by the value that is registered, and nothing can replace it there.
    let pidfd = opened.and_then(|pidfd| unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }.ok());
    if let Some(pidfd) = pidfd {
        let until_hung_up = async {
            held.listen().await;
            std::future::pending().await
        };
        tokio::select! {
            _ = pidfd.readable() => {}
            () = async { drop(killed.wait_for(|killed| *killed).await) } => {}
            () = until_hung_up => {}
        }
    }
    // Before it is waited for: until then nobody else can have its number.
    if let Some(pid) = pid {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let status = child.wait().await;
    // What it has done is the last that it says.
    let _ = tokio::time::timeout(LAST_WORDS, held.listen()).await;
    drop(held.leash);
    if let Ok(Address::Unix(path)) = address.parse() {
        let _ = std::fs::remove_file(path);
    }
    say.send_replace(Some(described(status)));
}

/// What is heard from a process until it serves, or has ended, or its time is over. Its last words may be read after its end is seen, and its
/// end may be seen after its socket was closed.
async fn heard_in(
    timeout: Duration,
    hearing: impl Future<Output = Result<String, WorkerError>>,
    child: &mut Child,
) -> Result<String, WorkerError> {
    let mut hearing = pin!(tokio::time::timeout(timeout, hearing));
    let ended = tokio::select! {
        heard = &mut hearing => match heard.unwrap_or(Err(WorkerError::TooSlow(timeout))) {
            Err(WorkerError::Ended(_)) => tokio::time::timeout(LAST_WORDS, child.wait()).await,
            heard => return heard,
        },
        status = child.wait() => match tokio::time::timeout(LAST_WORDS, hearing).await {
            Ok(Ok(Err(WorkerError::Unable(reason)))) => return Err(WorkerError::Unable(reason)),
            _ => Ok(status),
        },
    };
    Err(WorkerError::Ended(ended.map_or_else(|_| "it hung up".into(), described)))
}

/// Tells the process what it is to be, and hears where it serves.
async fn hear(settings: &ProcessSettings, leash: &mut Leash) -> Result<String, WorkerError> {
    let hung_up = || WorkerError::Ended("it hung up".into());
    let uid = settings.uid;
    let told = Settings {
        uid,
        tid: next_tid(),
        name: settings.name.clone(),
        address: settings.address.clone().unwrap_or_else(|| own_address(settings)),
        tags: settings.tags.clone(),
        extra: settings.extra.clone(),
        max_in_flight: settings.max_in_flight,
        max_blocking: settings.max_blocking,
        credentials: settings.credentials.as_ref().map(|credentials| credentials.recipe().clone()),
        allow: settings.allow.clone(),
        insecure: settings.insecure,
        proxy_pool_ttl: settings.proxy_pool_ttl,
        log: settings.log.clone(),
    };
    leash.tell(&told).await.map_err(|_| hung_up())?;
    match leash.hear().await {
        Some(Report::Serving(address)) => Ok(address),
        Some(Report::Failed(reason)) => Err(WorkerError::Unable(reason)),
        Some(Report::Done(_)) | None => Err(hung_up()),
    }
}

fn described(status: std::io::Result<std::process::ExitStatus>) -> String {
    status.map_or_else(|error| format!("its end was not seen: {error}"), |status| status.to_string())
}

fn is_at_a_port(address: &str) -> bool {
    matches!(address.parse(), Ok(Address::Tcp(_)))
}

/// Where a worker serves if nothing is said of it: out of the way of all others.
fn own_address(settings: &ProcessSettings) -> String {
    match settings.credentials {
        // A certificate proves nothing on a socket where the system says who is there.
        Some(_) => "127.0.0.1:0".to_owned(),
        None => format!("unix-abstract:raddle-{}", settings.uid),
    }
}

/// What `ps` shows until the worker has its title.
fn own_name() -> OsString {
    std::env::args_os().next().unwrap_or_else(|| "raddle".into())
}

/// An id for a worker, for its title. Unique in this process, and by the clock among others.
fn next_tid() -> Tid {
    static CLOCK: Mutex<Option<TidClock>> = Mutex::new(None);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut clock = CLOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    clock.get_or_insert_with(|| TidClock::resume(0)).next(now.as_nanos() as u64)
}
