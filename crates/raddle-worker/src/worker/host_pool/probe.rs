//! Asks a host program who it is, before a worker offers what it runs.

use std::sync::Arc;

use raddle_model::{
    ExitStatus, Tid, TidClock,
    host::{FromHost, HostHello, PROTOCOL},
    title,
};
use raddle_runner::{LeaseDeadlinePage, OutputChannel, RunnerOptions};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::{
    core::HostEvent,
    hosts::SIGKILL,
    process::{HostContext, HostNews, NEWS, run_host},
};
use crate::{host::HostOptions, worker::options::secret_variables};

/// The variable by which a host knows that its start-up functions are not needed.
const PROBE: &str = "RADDLE_PROBE";
/// How much of what a host printed is in the reason why it does not start.
const SHOWN: usize = 2000;

/// How often a host is started that something else kills.
const TRIES: u32 = 3;

/// Starts a host and returns its hello. The host is killed.
pub async fn probe(options: &HostOptions) -> Result<HostHello, String> {
    let mut tries = 1;
    loop {
        let mut was_killed = false;
        match probe_once(options, &mut was_killed).await {
            Err(_) if was_killed && tries < TRIES => tries += 1,
            outcome => return outcome,
        }
    }
}

async fn probe_once(options: &HostOptions, was_killed: &mut bool) -> Result<HostHello, String> {
    let lease = LeaseDeadlinePage::new().map_err(|error| error.to_string())?;
    let worker: Tid = TidClock::resume(0).next(0);
    let context = HostContext {
        runner: RunnerOptions {
            title_idle: title::format(worker, &options.name, "host"),
            removed_variables: secret_variables(),
            ..RunnerOptions::default()
        },
        worker,
        env: vec![(PROBE.into(), "1".into())],
        options: Arc::new(options.clone()),
        lease: Arc::new(lease),
    };
    let (commands, queue) = mpsc::unbounded_channel();
    let (news, mut heard) = mpsc::channel(NEWS);
    let running = tokio::spawn(run_host(0, context, queue, news));
    let deadline = Instant::now() + options.startup_timeout;
    let mut printed = String::new();
    let hello = loop {
        let news = match timeout_at(deadline, heard.recv()).await {
            Ok(Some(news)) => news,
            Ok(None) => break Err("it ended".into()),
            Err(_) => {
                break Err(format!(
                    "it did not say hello within {:?}",
                    options.startup_timeout
                ));
            }
        };
        match news {
            HostNews::Event(HostEvent::Messages { messages, .. }) => {
                if let Some((first, _)) = messages.into_iter().next() {
                    break match first {
                        FromHost::Hello(hello) if hello.protocol == PROTOCOL => Ok(hello),
                        FromHost::Hello(hello) => Err(format!(
                            "it speaks version {} of the host protocol, and this worker version {PROTOCOL}",
                            hello.protocol
                        )),
                        _ => Err("its first message was no hello".into()),
                    };
                }
            }
            HostNews::Event(HostEvent::Broken { reason, .. }) => break Err(reason),
            HostNews::Event(HostEvent::Exited { exit, .. }) => {
                *was_killed =
                    exit == ExitStatus::Killed || exit == ExitStatus::Signal { signal: SIGKILL };
                break Err(format!("it ended: {exit}"));
            }
            HostNews::Output {
                stream: OutputChannel::Stderr,
                bytes,
                ..
            } if printed.len() < SHOWN => {
                printed.push_str(&String::from_utf8_lossy(&bytes));
            }
            _ => {}
        }
    };
    drop(commands);
    drop(heard);
    let _ = running.await;
    hello.map_err(|reason: String| match printed.trim() {
        "" => reason,
        printed => format!("{reason}\n{printed}"),
    })
}
