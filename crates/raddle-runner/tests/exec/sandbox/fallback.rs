//! Kernels that refuse a layer: by default the attempt fails; with `isolation_fallback` it runs
//! with the other layers.

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt, process::Command};

use raddle_model::ExitStatus;
use raddle_runner::{ExecRequest, SandboxConfig};

use super::{boxed, rigs_under, stdout};
use crate::support::{code, until};

pub(super) fn with_fallback(request: ExecRequest) -> ExecRequest {
    ExecRequest {
        sandbox: Some(SandboxConfig {
            fallback: true,
            ..SandboxConfig::default()
        }),
        ..request
    }
}

/// Scratch directories of sandboxes without their own root, among the temporary files.
fn scratch_directories() -> Vec<String> {
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
async fn names_a_refused_layer_and_omits_it_only_with_fallback() {
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
            let ran = rig.run(&with_fallback(request)).await;
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
async fn omits_several_layers() {
    for mut rig in rigs_under("refusing namespaces,landlock,filter").await {
        let ran = rig
            .run(&with_fallback(rig.sh(
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
async fn reports_nothing_if_no_layer_is_missing() {
    for mut rig in rigs_under("").await {
        let ran = rig.run(&with_fallback(rig.sh("pwd"))).await;
        assert_eq!(
            (stdout(&ran).as_str(), ran.stderr),
            ("/scratch\n", Vec::new())
        );
        rig.finish().await;
    }
}

/// A sandbox without namespaces still protects most things.
#[tokio::test]
async fn protects_files_and_network_without_namespaces() {
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
            .run(&with_fallback(rig.command(&["python3", "-c", &script])))
            .await;
        assert_eq!(stdout(&ran), "True True ['more', 'own']\n");
        // Its children die with it, and its files are removed.
        let ran = rig
            .run(&with_fallback(
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
        !scratch_directories().iter().any(|name| name.contains(&own)),
        "{:?}",
        scratch_directories()
    );
}

/// Each script tries to reach one thing and prints what it reached.
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

/// Each thing is protected by the layer that is documented for it: without that layer the command
/// reaches it.
#[tokio::test]
async fn each_layer_protects_what_is_documented() {
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
            let ran = rig.run(&with_fallback(rig.command(&argv))).await;
            assert_eq!(stdout(&ran).replace('\n', " "), had, "without {refused}");
            rig.finish().await;
        }
        let _ = fs::remove_file(directory.path().join("secret.new"));
    }
}

/// The worker removes only what a killed runner cannot remove itself.
#[tokio::test]
async fn worker_removes_the_directory_of_a_killed_runner() {
    for mut rig in rigs_under("refusing namespaces").await {
        let request = with_fallback(rig.sh("echo x > file; pwd; exec sleep 300"));
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
        // The message about missing layers may come after the command's output.
        while rig.next().await.is_ok() {}
        until("the command is gone", || {
            rig.leftover_processes().is_empty()
        })
        .await;
        rig.finish().await;
        // `reap_orphans` finds nothing: the parent of these processes is not this process.
        raddle_runner::reap_orphans(&raddle_runner::children());
        // Another test may sweep at the same moment and not be done.
        until("the directory is gone", || !fs::exists(&scratch).unwrap()).await;
    }
}
