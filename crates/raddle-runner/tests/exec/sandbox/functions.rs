//! Functions of the runner's own program, and handlers with a directory, in a sandbox.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use raddle_model::ExitStatus;
use raddle_runner::{ExecRequest, RunnerCommand, SandboxConfig};

use super::{boxed, rigs};
use crate::support::code;

#[tokio::test]
async fn runs_a_function_as_outside() {
    for mut rig in rigs().await {
        let ran = rig.run(&boxed(rig.function("echo", "x"))).await;
        assert_eq!(
            (ran.reply.as_str(), &ran.done.exit),
            ("answered x", &code(0))
        );
        assert_eq!(
            (ran.stdout.as_slice(), ran.stderr.as_slice()),
            (&b"printed x"[..], &b"complained\n"[..])
        );
        assert_eq!(
            rig.run(&boxed(rig.function("threads", ""))).await.reply,
            "42"
        );
        assert_eq!(
            rig.run(&boxed(rig.function("flood", "0123456789")))
                .await
                .reply,
            "0123456789".repeat(1 << 20)
        );
        assert_eq!(
            rig.run(&boxed(rig.function("unheard of", "")))
                .await
                .done
                .exit,
            code(3)
        );
        assert_eq!(
            rig.run(&boxed(rig.function("abort", ""))).await.done.exit,
            ExitStatus::Signal {
                signal: libc::SIGABRT
            }
        );
        let mut sleep = boxed(rig.function("sleep", ""));
        rig.start_until_output(&sleep).await;
        rig.runner.send(RunnerCommand::Stop).await.unwrap();
        assert_eq!(rig.end().await.done.exit, ExitStatus::Cancelled);
        sleep.timeout = Some(Duration::from_millis(50));
        assert_eq!(rig.run(&sleep).await.done.exit, ExitStatus::Timeout);
        rig.finish().await;
    }
}

#[tokio::test]
async fn hides_the_worker_from_a_function() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let secret = directory.path().join("secret");
    fs::write(&secret, "the secret").unwrap();
    assert!(
        std::env::var_os("CARGO").is_some(),
        "the runner has inherited the variable"
    );
    for mut rig in rigs().await {
        let pry = rig.function("pry", secret.to_str().unwrap());
        assert!(
            rig.run(&pry).await.reply.starts_with("a file "),
            "the file is visible outside"
        );
        assert_eq!(
            rig.run(&boxed(pry)).await.reply,
            "no file 1000 /scratch false"
        );
        rig.finish().await;
    }
}

#[tokio::test]
async fn mounts_the_directory_of_a_handler_read_only() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("program.sh");
    fs::write(&program, "#!/bin/sh\npwd; ls; touch new 2>/dev/null && echo written; touch /scratch/new && echo own\n")
        .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let show = |path: &std::path::Path| {
        Some(SandboxConfig {
            directory: Some(path.to_str().unwrap().into()),
            ..SandboxConfig::default()
        })
    };
    for mut rig in rigs().await {
        for argv in [
            &["/handler/program.sh"][..],
            &["sh", "program.sh"],
            &["./program.sh"],
        ] {
            let request = ExecRequest {
                sandbox: show(directory.path()),
                ..rig.command(argv)
            };
            let ran = rig.run(&request).await;
            assert_eq!(
                (ran.done.exit, ran.stdout),
                (code(0), b"/handler\nprogram.sh\nown\n".to_vec()),
                "{argv:?}"
            );
        }
        let request = ExecRequest {
            sandbox: show(&directory.path().join("absent")),
            ..rig.command(&["true"])
        };
        let exit = rig.run(&request).await.done.exit;
        assert!(
            matches!(&exit, ExitStatus::SpawnFailed { message } if message.contains("cannot enter the directory")),
            "{exit:?}"
        );
        rig.finish().await;
    }
    assert!(!directory.path().join("new").exists());
}
