//! How many `/bin/true` a second: through one runner, and with bare `posix_spawn` and `waitpid`,
//! interleaved in one run.
//!
//! `cargo run --release -p raddle-runner --example spawn_rate [TASKS [ROUNDS]]`

use std::{
    ffi::CString,
    ptr,
    time::{Duration, Instant},
};

use raddle_model::{
    Tid,
    attempt_input::{ATTEMPT_VARIABLE, TID_VARIABLE},
};
use raddle_runner::{ExecRequest, Runner, RunnerEvent, RunnerOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    raddle_runner::runner_main_if_requested(None);
    let mut arguments = std::env::args()
        .skip(1)
        .map(|argument| argument.parse::<u32>());
    let tasks = arguments.next().transpose()?.unwrap_or(1000);
    let rounds = arguments.next().transpose()?.unwrap_or(7);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut ratios = runtime.block_on(async {
        let mut runner = Runner::spawn(&RunnerOptions::default()).await?;
        let mut ratios = Vec::new();
        for round in 1..=rounds {
            let bare = rate(tasks, bare(tasks)?);
            let ours = rate(tasks, through(&mut runner, tasks).await?);
            println!(
                "round {round}: bare {bare:.0}/s, runner {ours:.0}/s, ratio {:.2}",
                ours / bare
            );
            ratios.push(ours / bare);
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", runner.pid()))?;
        println!(
            "runner {}",
            status
                .lines()
                .find(|line| line.starts_with("VmRSS"))
                .unwrap_or_default()
        );
        runner.close().await;
        Ok::<_, Box<dyn std::error::Error>>(ratios)
    })?;
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.2}", ratios[ratios.len() / 2]);
    Ok(())
}

fn rate(tasks: u32, took: Duration) -> f64 {
    f64::from(tasks) / took.as_secs_f64()
}

fn bare(tasks: u32) -> std::io::Result<Duration> {
    let path = CString::new("/bin/true")?;
    let argv = [path.as_ptr().cast_mut(), ptr::null_mut()];
    let env: Vec<_> = std::env::vars()
        .filter_map(|(k, v)| CString::new(format!("{k}={v}")).ok())
        .collect();
    let envp: Vec<_> = env
        .iter()
        .map(|e| e.as_ptr().cast_mut())
        .chain([ptr::null_mut()])
        .collect();
    let begin = Instant::now();
    for _ in 0..tasks {
        let (mut pid, mut status) = (0, 0);
        // SAFETY: every pointer is to a local that outlives the call; the argument arrays end with
        // null.
        let (error, got) = unsafe {
            let error = libc::posix_spawn(
                &raw mut pid,
                path.as_ptr(),
                ptr::null(),
                ptr::null(),
                argv.as_ptr(),
                envp.as_ptr(),
            );
            (error, libc::waitpid(pid, &raw mut status, 0))
        };
        if error != 0 || got != pid || status != 0 {
            return Err(std::io::Error::other("bare posix_spawn failed"));
        }
    }
    Ok(begin.elapsed())
}

async fn through(runner: &mut Runner, tasks: u32) -> Result<Duration, Box<dyn std::error::Error>> {
    let tid = Tid::from_u64(1_700_000_000_000_000_000).ok_or("no tid")?;
    let mut request = ExecRequest {
        env: vec![
            (TID_VARIABLE.into(), "1700000000000000000".into()),
            (ATTEMPT_VARIABLE.into(), "1".into()),
        ],
        timeout: Some(Duration::from_secs(60)),
        grace: Duration::from_secs(5),
        timeout_grace: Duration::from_secs(5),
        ..ExecRequest::command(tid, "true", ["/bin/true"])
    };
    let begin = Instant::now();
    for n in 0..tasks {
        request.attempt = n;
        runner.start(&request).await?;
        loop {
            if let RunnerEvent::Done(done) = runner.next().await? {
                if !done.exit.is_success() {
                    return Err(done.exit.to_string().into());
                }
                break;
            }
        }
    }
    Ok(begin.elapsed())
}
