//! Default limits of a sandbox, and limits of the task.

use std::time::Duration;

use raddle_model::{ExitStatus, Limits, limits::LimitKind};
use raddle_runner::ExecRequest;

use super::{boxed, rigs, sh, stdout};
use crate::support::code;

/// Requests memory that outlives its mappings: memfds and System V segments.
const UNMAPPED: &str = "import ctypes, os, sys\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    try: os.memfd_create('x'); print('a file')\n\
    except OSError as e: print(e.strerror)\n\
    for size in (56, 1 << 16, 1 << 20, 1 << 32):\n  \
      got = libc.shmget(0, ctypes.c_size_t(size), 0o1600)\n  \
      print('a segment' if got >= 0 else os.strerror(ctypes.get_errno()))\n";
/// Fills a file as far as possible.
const FILL: &str = "import os\nwith open('x', 'wb') as f: f.truncate(300 << 20)";

#[tokio::test]
async fn limits_disk_space() {
    for mut rig in rigs().await {
        let fills = "dd if=/dev/zero of=/scratch/much bs=1M count=400 2>/dev/null; du -m /scratch/much | cut -f1";
        let filled: u32 = stdout(&sh(&mut rig, fills).await).trim().parse().unwrap();
        assert!((200..=256).contains(&filled), "{filled} MiB");
        let counts = "i=0; while : > /tmp/$i 2>/dev/null; do i=$((i+1)); done; echo $i";
        let made: u32 =
            stdout(&sh(&mut rig, &format!("sh -c '{counts}' 2>/dev/null || true")).await)
                .trim()
                .parse()
                .unwrap_or(0);
        assert!(made < 20_000, "{made} files");
        let request = boxed(rig.command(&["python3", "-c", FILL]));
        let ran = rig.run(&request).await;
        assert_eq!(ran.done.exit, code(1));
        assert!(
            String::from_utf8_lossy(&ran.stderr).contains("File too large"),
            "{ran:?}"
        );
        rig.finish().await;
    }
}

#[tokio::test]
async fn limits_memory_including_files_in_memory() {
    for mut rig in rigs().await {
        let eats = "x = []\nwhile True: x.append(bytearray(1 << 20))";
        let request = boxed(rig.command(&["python3", "-c", eats]));
        let ran = rig.run(&request).await;
        assert!(
            matches!(
                ran.done.exit,
                ExitStatus::OutOfMemory | ExitStatus::Code { code: 1 }
            ),
            "{:?}",
            ran.done.exit
        );
        assert!(
            ran.done.usage.peak_rss_bytes < 3 << 30,
            "{:?}",
            ran.done.usage
        );
        let limits = Limits {
            memory_mb: Some(100),
            ..Limits::default()
        };
        let keeps = "dd if=/dev/zero of=/scratch/much bs=1M count=150 2>/dev/null; sleep 60";
        let request = ExecRequest {
            limits,
            timeout: Some(Duration::from_secs(30)),
            ..boxed(rig.sh(keeps))
        };
        assert_eq!(rig.run(&request).await.done.exit, ExitStatus::OutOfMemory);
        let request = boxed(rig.command(&["python3", "-c", UNMAPPED]));
        let no_memory = "Cannot allocate memory\n";
        let said =
            format!("Function not implemented\na segment\na segment\n{no_memory}{no_memory}");
        assert_eq!(stdout(&rig.run(&request).await), said);
        rig.finish().await;
    }
}

#[tokio::test]
async fn limits_processes() {
    let bomb = "i=0; while [ $i -lt 400 ]; do sleep 60 & i=$((i+1)); done; wait";
    for mut rig in rigs().await {
        let exit = sh(&mut rig, bomb).await.done.exit;
        assert!(
            matches!(
                exit,
                ExitStatus::Limit {
                    limit: LimitKind::MaxProcs
                } | ExitStatus::Code { code: 2 }
            ),
            "{exit:?}"
        );
        let limits = Limits {
            max_procs: Some(20),
            ..Limits::default()
        };
        let request = ExecRequest {
            limits,
            ..boxed(rig.sh("i=0; while [ $i -lt 60 ]; do sleep 60 & i=$((i+1)); done; wait"))
        };
        assert!(!rig.run(&request).await.done.exit.is_success());
        // The sandbox's own processes do not count.
        let limits = Limits {
            max_procs: Some(1),
            ..Limits::default()
        };
        let request = ExecRequest {
            limits,
            ..boxed(rig.command(&["sleep", "0.2"]))
        };
        assert_eq!(rig.run(&request).await.done.exit, code(0));
        rig.finish().await;
    }
}

#[tokio::test]
async fn limits_open_files_of_a_sandbox() {
    let opens = "import os\nn = 0\ntry:\n  while True: os.dup(0); n += 1\nexcept OSError as e: print(n < 1024, e.strerror)";
    for mut rig in rigs().await {
        let request = boxed(rig.command(&["python3", "-c", opens]));
        assert_eq!(
            stdout(&rig.run(&request).await),
            "True Too many open files\n"
        );
        assert_eq!(stdout(&sh(&mut rig, "ulimit -c").await), "0\n");
        rig.finish().await;
    }
}
