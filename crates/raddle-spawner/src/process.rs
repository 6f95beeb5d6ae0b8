//! The launcher that starts processes of this machine.

use std::{
    collections::HashMap, ffi::OsString, fmt::Display, io, os::unix::process::ExitStatusExt,
    path::PathBuf, process::Stdio, time::Duration,
};

use async_trait::async_trait;
use raddle_model::{Tid, stop::StopPolicy, worker::WorkerInfo};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    sync::mpsc,
    time::timeout,
};

use raddle_container::{ExitKind, LaunchError};

use super::{
    launcher::{BroadcastCommand, LaunchId, Launcher, SPAWNER_VARIABLE, WorkerEvent, process_here},
    readiness::ReadinessParser,
};

/// What a process is started from: a program that says on its standard output first its worker's id and then, when it has its task, anything
/// else, a line each.
#[derive(Clone, Debug)]
pub struct ProcessTemplate {
    /// The program.
    pub program: PathBuf,
    /// What it is called, and its arguments.
    pub args: Vec<OsString>,
    /// What is in its environment besides what is in ours.
    pub env: Vec<(OsString, OsString)>,
}

/// What a worker says is short, and there may be many.
const LINE: usize = 128;

impl ProcessTemplate {
    /// Starts that process, with this as its standard input. One that is `bound` to whoever starts it is killed when nobody watches it any more.
    pub fn start(&self, stdin: Stdio, bound: bool) -> io::Result<(u32, Child)> {
        let Self { program, args, env } = self;
        let mut command = Command::new(program);
        if let [name, args @ ..] = &args[..] {
            command.arg0(name).args(args);
        }
        // A group of its own: a Ctrl-C at the terminal is for its manager, who passes it on. Nothing here may take std off its posix_spawn path.
        command
            .envs(env.iter().map(|(key, value)| (key, value)))
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .process_group(0)
            .kill_on_drop(bound);
        let child = command.spawn()?;
        let pid = child
            .id()
            .ok_or_else(|| io::Error::other("the worker ended at once"))?;
        Ok((pid, child))
    }
}

/// Starts processes.
pub struct ProcessLauncher {
    template: ProcessTemplate,
    /// Those that are there, and the way to the task that owns each.
    orders: HashMap<LaunchId, mpsc::UnboundedSender<BroadcastCommand>>,
    news: mpsc::UnboundedReceiver<(LaunchId, WorkerEvent)>,
    tell: mpsc::UnboundedSender<(LaunchId, WorkerEvent)>,
}

impl ProcessLauncher {
    /// A launcher that has started nothing yet.
    pub fn new(template: ProcessTemplate) -> Self {
        // At most three for each process, so the channel needs no bound.
        let (tell, news) = mpsc::unbounded_channel();
        Self {
            template,
            orders: HashMap::new(),
            news,
            tell,
        }
    }
}

#[async_trait]
impl Launcher for ProcessLauncher {
    async fn launch(&mut self, spawner: Tid) -> Result<LaunchId, LaunchError> {
        let mut template = self.template.clone();
        template
            .env
            .push((SPAWNER_VARIABLE.into(), spawner.to_string().into()));
        let (pid, child) = template.start(Stdio::null(), false)?;
        let id = LaunchId::process(pid);
        self.orders.insert(
            id.clone(),
            watch(child, id.clone(), self.tell.clone(), None),
        );
        Ok(id)
    }

    fn recognise(&self, info: &WorkerInfo) -> Option<LaunchId> {
        process_here(info)
    }

    async fn next(&mut self) -> (LaunchId, WorkerEvent) {
        let (id, news) = self.news.recv().await.expect("the other end is ours");
        if let WorkerEvent::Gone(_) = news {
            self.orders.remove(&id);
        }
        (id, news)
    }

    fn tell(&mut self, what: BroadcastCommand) {
        for order in self.orders.values() {
            // Refused only by one that is gone.
            let _ = order.send(what);
        }
    }
}

/// Reports what becomes of a process under `id`, and returns the channel for orders to it. When that is dropped, the process is stopped as `left` says;
/// without `left` it outlives the process that started it.
pub fn watch<K: Clone + Display + Send + Sync + 'static>(
    mut child: Child,
    id: K,
    tell: mpsc::UnboundedSender<(K, WorkerEvent)>,
    left: Option<StopPolicy>,
) -> mpsc::UnboundedSender<BroadcastCommand> {
    let (order, orders) = mpsc::unbounded_channel();
    let lines = child
        .stdout
        .take()
        .map(|stdout| BufReader::with_capacity(LINE, stdout).lines());
    tokio::spawn(keep(id, child, lines, orders, tell, left));
    order
}

/// Passes on what a process says, and obeys until it is gone: only who waits for a process can be sure of its number. Its end is heard from the
/// kernel by a descriptor, at once.
async fn keep<K: Clone + Display>(
    id: K,
    mut child: Child,
    mut lines: Option<Lines<BufReader<ChildStdout>>>,
    mut orders: mpsc::UnboundedReceiver<BroadcastCommand>,
    tell: mpsc::UnboundedSender<(K, WorkerEvent)>,
    left: Option<StopPolicy>,
) {
    let (mut said, mut is_kept) = (ReadinessParser::default(), true);
    loop {
        tokio::select! {
            // What it said comes before its end.
            biased;
            line = next_line(&mut lines), if lines.is_some() => match line {
                Some(line) => {
                    if let Some(news) = said.line(&id, &line) {
                        let _ = tell.send((id.clone(), news));
                    }
                }
                None => lines = None,
            },
            what = orders.recv(), if is_kept => match what {
                None => {
                    is_kept = false;
                    if let Some(policy) = left {
                        return see_out(child, policy).await;
                    }
                }
                Some(BroadcastCommand::Kill) => kill(&mut child),
                Some(BroadcastCommand::Stop) => terminate(&child),
                // The worker counts requests to stop. The kernel merges a second `SIGTERM` with one
                // that is still pending, so the second request is another signal.
                Some(BroadcastCommand::GiveBack) => interrupt(&child),
            },
            status = child.wait() => {
                let gone = match status {
                    Ok(status) => status.code().map_or_else(|| ExitKind::Signal(status.signal().unwrap_or(0)), ExitKind::Code),
                    // Somebody else has waited for it.
                    Err(_) => ExitKind::Unknown,
                };
                let _ = tell.send((id, WorkerEvent::Gone(gone)));
                return;
            }
        }
    }
}

/// Stops a process that nobody keeps any more: whoever did was dropped. What it runs may end, and is given back after that.
async fn see_out(mut child: Child, policy: StopPolicy) {
    tracing::warn!(
        pid = child.id(),
        "the manager of a process was dropped: it is stopped"
    );
    terminate(&child);
    let drain = policy.drain.unwrap_or(Duration::MAX);
    if timeout(drain, child.wait()).await.is_ok() {
        return;
    }
    interrupt(&child);
    if timeout(policy.grace, child.wait()).await.is_ok() {
        return;
    }
    kill(&mut child);
    // Nothing can be done about one that the kernel does not let go of.
    let _ = child.wait().await;
}

fn terminate(child: &Child) {
    if let Some(pid) = child.id() {
        raddle_runner::terminate(pid);
    }
}

fn interrupt(child: &Child) {
    if let Some(pid) = child.id() {
        raddle_runner::interrupt(pid);
    }
}

fn kill(child: &mut Child) {
    // What it has started beside its runners is in its group; what runners run ends with their socket.
    if let Some(pid) = child.id() {
        raddle_runner::kill_group(pid);
    }
    drop(child.start_kill());
}

async fn next_line(lines: &mut Option<Lines<BufReader<ChildStdout>>>) -> Option<String> {
    lines.as_mut()?.next_line().await.ok().flatten()
}
