//! Systems that refuse a layer: without a word of the task it is refused too, and with one it runs with the rest.

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt, process::Command};

use raddle_model::ExitStatus;
use raddle_runner::{ExecRequest, SandboxConfig};

use super::{boxed, rigs_under, stdout};
use crate::support::{code, until};

pub(super) fn lenient(request: ExecRequest) -> ExecRequest {
    ExecRequest {
        sandbox: Some(SandboxConfig {
            fallback: true,
            ..SandboxConfig::default()
        }),
        ..request
    }
}

/// Directories of sandboxes without a root, as they are found among temporary files.
fn scratches() -> Vec<String> {
    let names = fs::read_dir(std::env::temp_dir())
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name());
    names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with("raddle-scratch-"))
        .collect()
}

#[tokio::test]
async fn what_the_system_refuses_is_named_and_done_without_if_the_task_says_so() {
    for (refused, layer) in [
        ("namespaces", "its own namespaces (clone)"),
        ("mount", "its own root"),
        ("landlock", "landlock"),
        ("filter", "a system call filter"),
    ] {
        for mut rig in rigs_under(&format!("refusing {refused}")).await {
            let request = boxed(rig.sh("echo ran"));
            let ran = rig.run(&request).await;
            let ExitStatus::SpawnFailed { message } = ran.done.exit else {
                panic!("{refused}: {:?}", ran.done.exit)
            };
            assert!(
                message.starts_with(&format!("this system refuses the sandbox {layer}")),
                "{message}"
            );
            assert_eq!(ran.stdout, b"");
            let ran = rig.run(&lenient(request)).await;
            let said = String::from_utf8(ran.stderr.clone()).unwrap();
            assert!(
                said.contains(layer) && said.contains("isolation_fallback"),
                "{refused}: {said}"
            );
            assert_eq!(stdout(&ran), "ran\n");
            rig.finish().await;
        }
    }
}

#[tokio::test]
async fn several_layers_can_be_lacking() {
    for mut rig in rigs_under("refusing namespaces,landlock,filter").await {
        let ran = rig
            .run(&lenient(rig.sh(
                "grep NoNewPrivs /proc/self/status; env | grep -c CARGO",
            )))
            .await;
        assert_eq!(
            String::from_utf8_lossy(&ran.stderr)
                .matches("isolation_fallback")
                .count(),
            3
        );
        assert_eq!(
            (ran.stdout, ran.done.exit),
            (b"NoNewPrivs:\t1\n0\n".to_vec(), code(1))
        );
        rig.finish().await;
    }
}

#[tokio::test]
async fn nothing_is_said_where_nothing_is_lacking() {
    for mut rig in rigs_under("").await {
        let ran = rig.run(&lenient(rig.sh("pwd"))).await;
        assert_eq!(
            (stdout(&ran).as_str(), ran.stderr),
            ("/scratch\n", Vec::new())
        );
        rig.finish().await;
    }
}

/// What is left of a sandbox without namespaces still keeps most things apart.
#[tokio::test]
async fn without_namespaces_files_and_network_are_kept_from_it_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let secret = directory.path().join("secret");
    fs::write(&secret, "the secret").unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap();
    let script = format!(
        "import os, socket\n\
         for at in ['{secret}', '/proc/%d/environ' % os.getppid(), '/etc/shadow']:\n  \
           try: open(at).read(); print('read', at)\n  \
           except OSError: pass\n\
         for at in ['{directory}/new', '/tmp/raddle-new', '/usr/new']:\n  \
           try: open(at, 'w'); print('wrote', at)\n  \
           except OSError: pass\n\
         try: socket.create_connection(('{host}', {port})); print('connected')\n\
         except OSError: pass\n\
         open('own', 'w').write('x'); open(os.environ['TMPDIR'] + '/more', 'w').write('x')\n\
         print(os.getuid() != 0, os.getcwd() == os.environ['HOME'], sorted(os.listdir('.')))",
        secret = secret.display(),
        directory = directory.path().display(),
        host = address.ip(),
        port = address.port(),
    );
    for mut rig in rigs_under("refusing namespaces").await {
        let ran = rig
            .run(&lenient(rig.command(&["python3", "-c", &script])))
            .await;
        assert_eq!(stdout(&ran), "True True ['more', 'own']\n");
        // What it starts ends with it, and what it wrote is gone.
        let ran = rig
            .run(&lenient(
                rig.sh("setsid sleep 300 & pwd; mkdir -p a/b; chmod 0 a"),
            ))
            .await;
        let scratch = stdout(&ran).trim().to_owned();
        assert!(
            scratch.contains("raddle-scratch-") && !fs::exists(&scratch).unwrap(),
            "{scratch}"
        );
        rig.finish().await;
    }
    let own = std::process::id().to_string();
    assert!(
        !scratches().iter().any(|name| name.contains(&own)),
        "{:?}",
        scratches()
    );
}

/// Tries to get at one thing each, and says what it got.
const TRIES: &str = "import ctypes, os, socket, sys\n\
    libc = ctypes.CDLL(None)\n\
    secret, port, pid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])\n\
    def got(what, deed):\n  \
      try: deed(); print(what)\n  \
      except OSError: pass\n\
    got('file', lambda: open(secret).read())\n\
    got('write', lambda: open(secret + '.new', 'w'))\n\
    got('network', lambda: socket.create_connection(('127.0.0.1', port), timeout=5))\n\
    got('process', lambda: os.stat('/proc/%d' % pid))\n\
    got('keys', lambda: libc.syscall(250, 0, -3, 0) >= 0 or os.stat('/none'))\n";

/// What keeps each thing from a command is the layer that it is said to be: without it, it is had.
#[tokio::test]
async fn each_layer_keeps_something_away_that_is_had_without() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let secret = directory.path().join("secret");
    fs::write(&secret, "the secret").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let own = std::process::id().to_string();
    for (refused, had) in [
        ("", ""),
        ("filter", "keys "),
        ("landlock", ""),
        ("namespaces", "process "),
        ("namespaces,landlock", "file write process "),
        ("namespaces,filter", "network process keys "),
        (
            "namespaces,landlock,filter",
            "file write network process keys ",
        ),
    ] {
        let words = if refused.is_empty() {
            String::new()
        } else {
            format!("refusing {refused}")
        };
        for mut rig in rigs_under(&words).await {
            let argv = [
                "/usr/bin/python3",
                "-c",
                TRIES,
                secret.to_str().unwrap(),
                &port,
                &own,
            ];
            let ran = rig.run(&lenient(rig.command(&argv))).await;
            assert_eq!(stdout(&ran).replace('\n', " "), had, "without {refused}");
            rig.finish().await;
        }
        let _ = fs::remove_file(directory.path().join("secret.new"));
    }
}

/// Only what a killed runner cannot remove is left to the worker.
#[tokio::test]
async fn a_killed_runner_leaves_its_directory_to_the_worker() {
    for mut rig in rigs_under("refusing namespaces").await {
        let request = lenient(rig.sh("echo x > file; pwd; exec sleep 300"));
        rig.start(&request).await;
        rig.started().await;
        let scratch = loop {
            let raddle_runner::RunnerEvent::Output {
                stream: raddle_runner::OutputChannel::Stdout,
                bytes,
            } = rig.next().await.unwrap()
            else {
                continue;
            };
            break String::from_utf8(bytes).unwrap().trim().to_owned();
        };
        assert!(fs::exists(format!("{scratch}/file")).unwrap());
        assert!(
            Command::new("kill")
                .args(["-9", &rig.runner.pid().to_string()])
                .status()
                .unwrap()
                .success()
        );
        // What lacks may have been said after what it wrote.
        while rig.next().await.is_ok() {}
        until("the command is gone", || rig.left().is_empty()).await;
        rig.finish().await;
        // Nobody is an orphan here, whose parent is not this process.
        raddle_runner::reap_orphans(&raddle_runner::children());
        // Whoever else sweeps at this moment may have come first, and not be done.
        until("the directory is gone", || !fs::exists(&scratch).unwrap()).await;
    }
}
