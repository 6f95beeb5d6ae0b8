//! The program that the tests start as a runner. It is also a worker that can be killed: `worker
//! SCRIPT` starts a runner that runs the script, prints the pids of runner and command, and waits
//! for the end; `boxed SCRIPT` runs it in a sandbox. `refusing WHAT ARGS…` runs this program with
//! these arguments on a kernel that refuses some calls.

mod functions;
mod refusing;

use std::time::Duration;

use raddle_model::{Limits, Tid};
use raddle_runner::{ExecRequest, ExecTarget, Runner, RunnerEvent, RunnerOptions, SandboxConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    raddle_runner::runner_main_if_requested(Some(functions::call));
    let mut arguments = std::env::args().skip(1);
    let work = |script, sandbox| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(worker(script, sandbox))
    };
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("worker"), Some(script)) => work(script, None),
        (Some("boxed"), Some(script)) => work(script, Some(SandboxConfig::default())),
        (Some("refusing"), Some(what)) => Err(refusing::exec_refusing(&what, arguments).into()),
        _ => Err("this program does nothing by itself".into()),
    }
}

async fn worker(
    script: String,
    sandbox: Option<SandboxConfig>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut runner = Runner::spawn(&RunnerOptions::default()).await?;
    let request = ExecRequest {
        tid: Tid::from_u64(1_700_000_000_000_000_000).ok_or("no tid")?,
        attempt: 1,
        name: "script".into(),
        program: ExecTarget::Command(vec!["sh".into(), "-c".into(), script]),
        env: std::env::var("RADDLE_TEST_MARK")
            .into_iter()
            .map(|mark| ("RADDLE_TEST_MARK".into(), mark))
            .collect(),
        cwd: None,
        stdin: None,
        timeout: None,
        limits: Limits::default(),
        grace: Duration::from_secs(5),
        timeout_grace: Duration::from_secs(5),
        sandbox,
    };
    runner.start(&request).await?;
    loop {
        if let RunnerEvent::Started { pid } = runner.next().await? {
            println!("{} {pid}", runner.pid());
        }
    }
}
