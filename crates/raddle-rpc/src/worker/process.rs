//! The process of a worker: this same program again, which dies with whoever holds this.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::PathBuf,
    process::Stdio,
    sync::Mutex,
    time::{Duration, SystemTime},
};

use raddle_discovery::{Address, WorkerMetadata, WorkerUid};
use raddle_model::{Tid, TidClock};
use raddle_process::log::Log;
use raddle_tls::{AllowRules, WorkerCredentials};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{Interest, unix::AsyncFd},
    process::{Child, Command},
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        watch,
    },
};

use super::{CallCounts, StopMode, WorkerError, parent_link::ParentLink};
use crate::{
    membership::PoolKey,
    serve::{self, ARGUMENT, StartReport, WorkerSettings},
};

/// How long a worker may take to start, unless something else is said.
const START: Duration = Duration::from_secs(30);
/// How long its end may be seen after its last words, or the other way round.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long it may take to say what it has done. No code of a user's holds it up.
const ANSWER: Duration = Duration::from_secs(1);
/// Where systemd hears whether a service is ready. A worker is none: who has started it is.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// What a worker's process is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessSettings {
    /// The program, which must begin with `#[raddle::main]`. This one, if nothing is said.
    #[serde(skip)]
    pub program: Option<PathBuf>,
    /// Which worker it is.
    pub uid: WorkerUid,
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
    #[serde(skip)]
    pub credentials: Option<WorkerCredentials>,
    /// Who may do what. If nothing is said, everybody who is let in.
    pub allow: Option<AllowRules>,
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
    metadata: WorkerMetadata,
    /// How it ended, when it has.
    ended: watch::Receiver<Option<String>>,
    /// What it has done, as it was last heard.
    done: watch::Receiver<CallCounts>,
    /// It ends when this is dropped.
    orders: UnboundedSender<ProcessCommand>,
}

/// What is wanted of a process.
enum ProcessCommand {
    /// That it says what it has done.
    Tally,
    /// That it stops.
    Stop(StopMode),
    /// That it ends at once.
    Kill,
}

impl Default for ProcessSettings {
    fn default() -> Self {
        Self {
            program: None,
            uid: WorkerUid::new(),
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
    pub async fn start(
        settings: &ProcessSettings,
        timeout: Option<Duration>,
    ) -> Result<Self, WorkerError> {
        if settings.program.is_none() && !serve::has_entered() {
            return Err(WorkerError::NoEntry);
        }
        let timeout = timeout.unwrap_or(START);
        let (mut leash, theirs) = ParentLink::new().map_err(WorkerError::Spawn)?;
        // This program, whatever has become of its file since.
        let program = settings
            .program
            .clone()
            .unwrap_or_else(|| "/proc/self/exe".into());
        let mut child = Command::new(program)
            .arg0(own_name())
            .arg(ARGUMENT)
            .env_remove(NOTIFY_SOCKET)
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(WorkerError::Spawn)?;
        let hearing = tokio::time::timeout(timeout, hear(settings, &mut leash));
        let metadata = match hearing.await.unwrap_or(Err(WorkerError::TooSlow(timeout))) {
            Err(WorkerError::Ended(how)) => {
                // Its end may be seen after its socket was closed.
                let ended = tokio::time::timeout(LAST_WORDS, child.wait()).await;
                return Err(WorkerError::Ended(ended.map_or(how, described)));
            }
            heard => heard?,
        };
        let (say, ended) = watch::channel(None);
        let (count, done) = watch::channel(CallCounts::default());
        let (orders, ordered) = unbounded_channel();
        // Ends with the process, which ends when `orders` is dropped.
        tokio::spawn(look_after(
            child,
            HeldWorker {
                leash,
                ordered,
                count,
            },
            metadata.address.clone(),
            say,
        ));
        Ok(Self {
            metadata,
            ended,
            done,
            orders,
        })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.metadata.pid
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
    pub async fn tally(&self) -> CallCounts {
        let mut done = self.done.clone();
        done.mark_unchanged();
        let _ = self.orders.send(ProcessCommand::Tally);
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
    pub(super) fn stop(&self, patience: StopMode) {
        // Who has ended needs no word.
        let _ = self.orders.send(ProcessCommand::Stop(patience));
    }

    /// Ends it at once.
    pub fn kill(&self) {
        let _ = self.orders.send(ProcessCommand::Kill);
    }
}

/// A worker that is held, and what is heard from it.
struct HeldWorker {
    leash: ParentLink,
    ordered: UnboundedReceiver<ProcessCommand>,
    count: watch::Sender<CallCounts>,
}

impl HeldWorker {
    /// Passes orders on until it is to end.
    async fn obey(&mut self) {
        let mut is_heard = true;
        loop {
            tokio::select! {
                report = self.leash.hear(), if is_heard => match report {
                    Some(report) => self.note(report),
                    None => is_heard = false,
                },
                order = self.ordered.recv() => match order {
                    Some(ProcessCommand::Tally) => self.leash.ask(),
                    Some(ProcessCommand::Stop(patience)) => self.leash.stop(patience),
                    Some(ProcessCommand::Kill) | None => return,
                },
            }
        }
    }

    /// Hears its last words.
    async fn hear_out(&mut self) {
        while let Some(report) = self.leash.hear().await {
            self.note(report);
        }
    }

    fn note(&self, report: StartReport) {
        if let StartReport::Done(tally) = report {
            self.count.send_replace(tally);
        }
    }
}

/// Holds the leash until the process has ended, or nobody wants it any more. Nothing is left of it then: what it has started is killed with it,
/// as long as it has stayed in its group, and so is a socket that has a file.
async fn look_after(
    mut child: Child,
    mut held: HeldWorker,
    address: String,
    say: watch::Sender<Option<String>>,
) {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
    let opened = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let pidfd = opened.and_then(|pidfd| {
        // SAFETY: the descriptor is owned by the value that is registered, and nothing can replace it there.
        unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }.ok()
    });
    if let Some(pidfd) = pidfd {
        tokio::select! {
            _ = pidfd.readable() => {}
            () = held.obey() => {}
        }
    }
    // Before it is waited for: until then nobody else can have its number.
    if let Some(pid) = pid {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let status = child.wait().await;
    // What it has done is the last that it says.
    let _ = tokio::time::timeout(LAST_WORDS, held.hear_out()).await;
    drop(held.leash);
    if let Ok(Address::Unix(path)) = address.parse() {
        let _ = std::fs::remove_file(path);
    }
    say.send_replace(Some(described(status)));
}

/// Tells the process what it is to be, and hears what it serves as.
async fn hear(
    settings: &ProcessSettings,
    leash: &mut ParentLink,
) -> Result<WorkerMetadata, WorkerError> {
    let hung_up = || WorkerError::Ended("it hung up".into());
    let address = settings
        .address
        .clone()
        .unwrap_or_else(|| own_address(settings));
    let told = WorkerSettings {
        tid: next_tid(),
        process: ProcessSettings {
            address: Some(address),
            ..settings.clone()
        },
        credentials: settings
            .credentials
            .as_ref()
            .map(|credentials| credentials.recipe().clone()),
        pool_key: PoolKey::of_starting_pool(),
    };
    leash.tell(&told).await.map_err(|_| hung_up())?;
    match leash.hear().await {
        Some(StartReport::Serving(metadata)) => Ok(*metadata),
        Some(StartReport::Failed(reason)) => Err(WorkerError::Unable(reason)),
        Some(StartReport::Done(_)) | None => Err(hung_up()),
    }
}

fn described(status: std::io::Result<std::process::ExitStatus>) -> String {
    status.map_or_else(
        |error| format!("its end was not seen: {error}"),
        |status| status.to_string(),
    )
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
    std::env::args_os()
        .next()
        .unwrap_or_else(|| "raddle".into())
}

/// An id for a worker, for its title. Unique in this process, and by the clock among others.
fn next_tid() -> Tid {
    static CLOCK: Mutex<Option<TidClock>> = Mutex::new(None);
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let mut clock = CLOCK
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    clock
        .get_or_insert_with(|| TidClock::resume(0))
        .next(now.as_nanos() as u64)
}
