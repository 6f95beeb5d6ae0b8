//! `ProcessLauncher`: workers as processes of this machine.

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
    launcher::{
        BroadcastCommand, LaunchId, Launcher, SPAWNER_VARIABLE, WorkerEvent, recognise_process,
    },
    readiness::ReadinessParser,
};

/// How to start a worker process. The program reports on stdout: first its worker id, then any line
/// when it has a task.
#[derive(Clone, Debug)]
pub struct ProcessTemplate {
    /// The program.
    pub program: PathBuf,
    /// `argv`, with the name first.
    pub args: Vec<OsString>,
    /// Environment variables to add.
    pub env: Vec<(OsString, OsString)>,
}

/// Lines of a worker are short, and there may be many workers.
const LINE_BYTES: usize = 128;

impl ProcessTemplate {
    /// Starts the process with this stdin. If `bound`, it is killed when its `Child` is dropped.
    pub fn start(&self, stdin: Stdio, bound: bool) -> io::Result<(u32, Child)> {
        let Self { program, args, env } = self;
        let mut command = Command::new(program);
        if let [name, args @ ..] = &args[..] {
            command.arg0(name).args(args);
        }
        // Its own process group: Ctrl-C at the terminal is for the manager, which forwards it.
        // Nothing here may take std off its posix_spawn path.
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

/// Starts worker processes.
pub struct ProcessLauncher {
    template: ProcessTemplate,
    /// The channel to the task that owns each process.
    commands: HashMap<LaunchId, mpsc::UnboundedSender<BroadcastCommand>>,
    events: mpsc::UnboundedReceiver<(LaunchId, WorkerEvent)>,
    events_tx: mpsc::UnboundedSender<(LaunchId, WorkerEvent)>,
}

impl ProcessLauncher {
    /// A launcher without workers.
    pub fn new(template: ProcessTemplate) -> Self {
        // At most three events per process, so the channel needs no bound.
        let (events_tx, events) = mpsc::unbounded_channel();
        Self {
            template,
            commands: HashMap::new(),
            events,
            events_tx,
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
        self.commands.insert(
            id.clone(),
            watch(child, id.clone(), self.events_tx.clone(), None),
        );
        Ok(id)
    }

    fn recognise(&self, info: &WorkerInfo) -> Option<LaunchId> {
        recognise_process(info)
    }

    async fn next_event(&mut self) -> (LaunchId, WorkerEvent) {
        let (id, event) = self.events.recv().await.expect("the other end is ours");
        if let WorkerEvent::Exited(_) = event {
            self.commands.remove(&id);
        }
        (id, event)
    }

    fn broadcast(&mut self, command: BroadcastCommand) {
        for commands in self.commands.values() {
            // Fails only if the process has ended.
            let _ = commands.send(command);
        }
    }
}

/// Reports events of a process under `id`, and returns the channel for commands to it. When the
/// channel is dropped, the process is stopped by the policy `left`, or left running without one.
pub fn watch<K: Clone + Display + Send + Sync + 'static>(
    mut child: Child,
    id: K,
    events_tx: mpsc::UnboundedSender<(K, WorkerEvent)>,
    on_drop: Option<StopPolicy>,
) -> mpsc::UnboundedSender<BroadcastCommand> {
    let (commands_tx, commands) = mpsc::unbounded_channel();
    let lines = child
        .stdout
        .take()
        .map(|stdout| BufReader::with_capacity(LINE_BYTES, stdout).lines());
    tokio::spawn(own_process(id, child, lines, commands, events_tx, on_drop));
    commands_tx
}

/// Owns a process: reports its lines and its end, and carries out commands. Only the parent that
/// has not reaped a process can rely on its PID. The end arrives through a pidfd, without polling.
async fn own_process<K: Clone + Display>(
    id: K,
    mut child: Child,
    mut lines: Option<Lines<BufReader<ChildStdout>>>,
    mut commands: mpsc::UnboundedReceiver<BroadcastCommand>,
    events_tx: mpsc::UnboundedSender<(K, WorkerEvent)>,
    on_drop: Option<StopPolicy>,
) {
    let (mut readiness, mut is_owned) = (ReadinessParser::default(), true);
    loop {
        tokio::select! {
            // Lines come before the end.
            biased;
            line = next_line(&mut lines), if lines.is_some() => match line {
                Some(line) => {
                    if let Some(event) = readiness.parse_line(&id, &line) {
                        let _ = events_tx.send((id.clone(), event));
                    }
                }
                None => lines = None,
            },
            command = commands.recv(), if is_owned => match command {
                None => {
                    is_owned = false;
                    if let Some(policy) = on_drop {
                        return stop_abandoned(child, policy).await;
                    }
                }
                Some(BroadcastCommand::Kill) => kill(&mut child),
                Some(BroadcastCommand::Stop) => terminate(&child),
                // The worker counts requests to stop. The kernel merges a second `SIGTERM` with one
                // that is still pending, so the second request is another signal.
                Some(BroadcastCommand::Release) => interrupt(&child),
            },
            status = child.wait() => {
                let gone = match status {
                    Ok(status) => status.code().map_or_else(|| ExitKind::Signal(status.signal().unwrap_or(0)), ExitKind::Code),
                    // Another part of this program has reaped it.
                    Err(_) => ExitKind::Unknown,
                };
                let _ = events_tx.send((id, WorkerEvent::Exited(gone)));
                return;
            }
        }
    }
}

/// Stops a process whose manager was dropped: its task may finish, and is released after that.
async fn stop_abandoned(mut child: Child, policy: StopPolicy) {
    tracing::warn!(
        pid = child.id(),
        "the manager of a process was dropped: stopping the process"
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
    // The kernel may not let it end. Nothing more can be done.
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
    // Its process group contains what it started itself. Runners end when their socket closes.
    if let Some(pid) = child.id() {
        raddle_runner::kill_group(pid);
    }
    drop(child.start_kill());
}

async fn next_line(lines: &mut Option<Lines<BufReader<ChildStdout>>>) -> Option<String> {
    lines.as_mut()?.next_line().await.ok().flatten()
}
