//! Limits, enforced by whatever mechanism this machine has.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use raddle_model::{ExitStatus, Limits, limits::LimitKind};
use raddle_runner::{RunnerCommand, RunnerOptions};

use crate::support::{Rig, code, options};

const EAT: &str = "python3 -c 'import time\nx = []\nfor i in range(100000): x.append(bytearray(1 << 20)); time.sleep(0.001)'";

#[tokio::test]
async fn kills_a_tree_over_its_memory_limit() {
    let mut rig = Rig::new().await;
    let mut request = rig.sh(&format!("{EAT} & wait; exit 0"));
    request.limits = Limits {
        memory_mb: Some(100),
        ..Limits::default()
    };
    let done = rig.run(&request).await.done;
    assert_eq!(done.exit, ExitStatus::OutOfMemory);
    let peak = done.usage.peak_rss_bytes >> 20;
    assert!((90..250).contains(&peak), "peak of {peak} MiB");
    rig.finish().await;
}

#[tokio::test]
async fn refuses_a_huge_allocation() {
    let mut rig = Rig::new().await;
    let mut request = rig.command(&["python3", "-c", "bytearray(8 << 30)"]);
    request.limits = Limits {
        memory_mb: Some(64),
        ..Limits::default()
    };
    let done = rig.run(&request).await.done;
    assert!(!done.exit.is_success());
    assert!(done.usage.peak_rss_bytes >> 20 < 500, "{:?}", done.usage);
    rig.finish().await;
}

#[tokio::test]
async fn counts_shared_memory_once() {
    let mut rig = Rig::new().await;
    // Eight processes share 40 MiB: a naive sum would be 320.
    let script = "import os, time\nx = bytearray(40 << 20)\nfor _ in range(7):\n  if os.fork() == 0: break\ntime.sleep(0.4)";
    let mut request = rig.command(&["python3", "-c", script]);
    request.limits = Limits {
        memory_mb: Some(150),
        ..Limits::default()
    };
    let outcome = rig.run(&request).await;
    assert_eq!(
        outcome.done.exit,
        code(0),
        "{}",
        String::from_utf8_lossy(&outcome.stderr)
    );
    rig.finish().await;
}

#[tokio::test]
async fn kills_a_fork_bomb() {
    let mut rig = Rig::new().await;
    survive_fork_bombs(&mut rig).await;
    rig.finish().await;
}

#[tokio::test]
async fn kills_a_fork_bomb_without_privileges() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("unprivileged");
    let runner = options().program.to_str().unwrap().to_owned();
    let script = format!(
        "#!/bin/sh\nexec setpriv --reuid=65534 --clear-groups --inh-caps=-all '{runner}' \"$@\"\n"
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let program = if rustix::process::geteuid().is_root() {
        program
    } else {
        runner.into()
    };
    let mut rig = Rig::with(&RunnerOptions {
        program,
        ..options()
    })
    .await;
    survive_fork_bombs(&mut rig).await;
    rig.finish().await;
}

/// Starts fork bombs. A bomb may end by itself between two samples of the runner: at the kernel's
/// own limit no process can fork, and those that cannot fork exit. Then the test waits for the rest
/// of it and starts another.
async fn survive_fork_bombs(rig: &mut Rig) {
    for script in [
        "f() { [ -e FUSE ] && f | f & }; f; sleep 60",
        "while [ -e FUSE ]; do sleep 60 & done; wait",
    ] {
        let mut exit = ExitStatus::Timeout;
        for _ in 0..BOMBS {
            let fuse = Fuse::light(Duration::from_secs(10));
            let mut request = rig.sh(&script.replace("FUSE", &fuse.path));
            request.limits = Limits {
                max_procs: Some(30),
                ..Limits::default()
            };
            request.timeout = Some(Duration::from_secs(3));
            exit = rig.run(&request).await.done.exit;
            if exit != ExitStatus::Timeout {
                assert!(
                    fuse.burns(),
                    "the limit ended the bomb, not the missing fuse file"
                );
                break;
            }
        }
        assert_eq!(
            exit,
            ExitStatus::Limit {
                limit: LimitKind::MaxProcs
            }
        );
    }
}

/// Number of bombs, of which at least one does not end by itself.
const BOMBS: usize = 5;

/// A file that a bomb needs to go on: if the limit fails, the machine that runs the test survives.
/// Each bomb has its own file, so that each gets the full time.
struct Fuse {
    path: String,
}

impl Fuse {
    fn light(lasts: Duration) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let path = file.to_str().unwrap().to_owned();
        std::thread::spawn(move || {
            std::thread::sleep(lasts);
            drop(file);
        });
        Self { path }
    }

    fn burns(&self) -> bool {
        fs::exists(&self.path).unwrap()
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[tokio::test]
async fn counts_threads_as_processes() {
    let mut rig = Rig::new().await;
    let script = "import threading, time\nfor _ in range(40): threading.Thread(target=time.sleep, args=(60,)).start()";
    let mut request = rig.command(&["python3", "-c", script]);
    request.limits = Limits {
        max_procs: Some(20),
        ..Limits::default()
    };
    assert_eq!(
        rig.run(&request).await.done.exit,
        ExitStatus::Limit {
            limit: LimitKind::MaxProcs
        }
    );
    request.limits.max_procs = Some(60);
    rig.start(&request).await;
    rig.started().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    rig.runner.send(RunnerCommand::Kill).await.unwrap();
    assert_eq!(
        rig.end().await.done.exit,
        ExitStatus::Killed,
        "within its limit it runs"
    );
    rig.finish().await;
}

#[tokio::test]
async fn limits_open_files() {
    let mut rig = Rig::new().await;
    let mut request = rig.sh("ulimit -n; ulimit -Hn");
    request.limits = Limits {
        max_fds: Some(17),
        ..Limits::default()
    };
    assert_eq!(rig.run(&request).await.stdout, b"17\n17\n");
    request = rig.command(&[
        "python3",
        "-c",
        "x = [open('/dev/null') for _ in range(50)]",
    ]);
    request.limits = Limits {
        max_fds: Some(17),
        ..Limits::default()
    };
    let outcome = rig.run(&request).await;
    assert_eq!(outcome.done.exit, code(1));
    assert!(String::from_utf8_lossy(&outcome.stderr).contains("Too many open files"));
    rig.finish().await;
}

#[tokio::test]
async fn limits_cpu_time() {
    let mut rig = Rig::new().await;
    let spin = "import time\nend = time.time() + 2\nwhile time.time() < end: pass";
    let mut request = rig.sh(&format!("python3 -c '{spin}' & python3 -c '{spin}' & wait"));
    request.limits = Limits {
        cpu_percent: Some(30),
        ..Limits::default()
    };
    let begin = Instant::now();
    let done = rig.run(&request).await.done;
    assert_eq!(done.exit, code(0));
    let share =
        (done.usage.user_us + done.usage.system_us) as f64 / begin.elapsed().as_micros() as f64;
    // On a busy machine the command gets less than its limit allows.
    assert!((0.02..0.45).contains(&share), "took {share:.2} of a core");
    rig.finish().await;
}

#[tokio::test]
async fn stops_and_pauses_a_throttled_command() {
    let mut rig = Rig::new().await;
    for order in [RunnerCommand::Stop, RunnerCommand::Kill] {
        let mut request = rig.sh("echo ready; while :; do :; done");
        request.limits = Limits {
            cpu_percent: Some(5),
            ..Limits::default()
        };
        rig.start_until_output(&request).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        rig.runner.send(RunnerCommand::Pause).await.unwrap();
        rig.runner.send(RunnerCommand::Resume).await.unwrap();
        rig.runner.send(order).await.unwrap();
        let expected = if order == RunnerCommand::Stop {
            ExitStatus::Cancelled
        } else {
            ExitStatus::Killed
        };
        assert_eq!(rig.end().await.done.exit, expected);
    }
    rig.finish().await;
}
