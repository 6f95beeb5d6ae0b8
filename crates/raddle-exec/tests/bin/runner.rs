//! The program that the tests start as a runner. Asked to, it is also a worker that can be killed: `worker SCRIPT` starts a runner,
//! has it run the script, prints the pids of runner and command, and waits for its end.

mod functions;

use std::time::Duration;

use raddle_core::{Limits, Tid};
use raddle_exec::{Notice, Program, Request, Runner, RunnerOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    raddle_exec::runner_main_if_asked(Some(functions::call));
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("worker"), Some(script)) => {
            tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(worker(script))
        }
        _ => Err("this program does nothing by itself".into()),
    }
}

async fn worker(script: String) -> Result<(), Box<dyn std::error::Error>> {
    let mut runner = Runner::spawn(&RunnerOptions::default()).await?;
    let request = Request {
        tid: Tid::from_u64(1_700_000_000_000_000_000).ok_or("no tid")?,
        attempt: 1,
        name: "script".into(),
        program: Program::Command(vec!["sh".into(), "-c".into(), script]),
        env: Vec::new(),
        cwd: None,
        stdin: None,
        timeout: None,
        limits: Limits::default(),
        grace: Duration::from_secs(5),
        sandboxed: false,
    };
    runner.start(&request).await?;
    loop {
        if let Notice::Started { pid } = runner.next().await? {
            println!("{} {pid}", runner.pid());
        }
    }
}
