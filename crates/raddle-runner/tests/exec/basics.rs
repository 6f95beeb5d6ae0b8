//! Exit codes, signals, programs that cannot be run, input and environment.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use raddle_model::ExitStatus;

use crate::support::{Rig, code};

#[tokio::test]
async fn reports_exit_codes_and_signals_of_the_command() {
    let mut rig = Rig::new().await;
    for expected in [0, 1, 3, 126, 127, 255] {
        assert_eq!(
            rig.run(&rig.sh(&format!("exit {expected}")))
                .await
                .done
                .exit,
            code(expected)
        );
    }
    for signal in [9, 15, 6] {
        assert_eq!(
            rig.run(&rig.sh(&format!("kill -{signal} $$")))
                .await
                .done
                .exit,
            ExitStatus::Signal { signal }
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn result_of_an_attempt_is_complete() {
    let mut rig = Rig::new().await;
    let outcome = rig
        .run(&rig.sh("echo out; echo err >&2; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"))
        .await;
    let done = outcome.done;
    assert_eq!(
        (outcome.stdout, outcome.stderr),
        (b"out\n".to_vec(), b"err\n".to_vec())
    );
    assert_eq!((done.stdout_bytes, done.stderr_bytes), (4, 4));
    assert!(done.started_at.unwrap() <= done.ended_at);
    assert!(
        done.usage.peak_rss_bytes > 100_000 && done.usage.user_us + done.usage.system_us > 1000,
        "{:?}",
        done.usage
    );
    assert!(outcome.pid.is_some());
    rig.finish().await;
}

#[tokio::test]
async fn distinguishes_programs_that_cannot_be_run() {
    let mut rig = Rig::new().await;
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str, mode: u32| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let plain = file("plain", "echo\n", 0o644);
    let no_format = file("no-format", "echo\n", 0o755);
    let no_interpreter = file("no-interpreter", "#!/no/such/interpreter\n", 0o755);

    for absent in [
        "no-such-program-of-ours",
        "/no/such/program",
        "./no-such-program",
        "",
    ] {
        let done = rig.run(&rig.command(&[absent])).await.done;
        assert_eq!(
            done.exit,
            ExitStatus::NotFound {
                message: format!("command not found: {absent}")
            }
        );
        assert_eq!((done.started_at, done.exit.shell_code()), (None, 127));
    }
    for refused in [
        &*plain,
        &*no_format,
        &*no_interpreter,
        "/",
        directory.path().to_str().unwrap(),
    ] {
        let done = rig.run(&rig.command(&[refused])).await.done;
        assert!(
            matches!(&done.exit, ExitStatus::NotExecutable { message } if message.contains(refused)),
            "{:?}",
            done.exit
        );
        assert_eq!(done.exit.shell_code(), 126);
    }
    // As in a shell, too long arguments count as "not executable".
    let done = rig
        .run(&rig.command(&["true", &"x".repeat(1 << 20)]))
        .await
        .done;
    assert!(
        matches!(done.exit, ExitStatus::NotExecutable { .. }),
        "{:?}",
        done.exit
    );
    let mut in_path = rig.command(&["plain"]);
    in_path
        .env
        .push(("PATH".into(), directory.path().to_str().unwrap().into()));
    assert!(matches!(
        rig.run(&in_path).await.done.exit,
        ExitStatus::NotExecutable { .. }
    ));

    // The runner still works.
    assert_eq!(rig.run(&rig.sh("exit 0")).await.done.exit, code(0));
    rig.finish().await;
}

#[tokio::test]
async fn names_the_failed_setup_step() {
    let mut rig = Rig::new().await;
    let mut cases = Vec::new();
    let mut absent = rig.sh("true");
    absent.cwd = Some("/no/such/directory".into());
    cases.push((absent, "/no/such/directory"));
    let mut no_directory = rig.command(&["/bin/true"]);
    no_directory.cwd = Some("/dev/null".into());
    cases.push((no_directory, "/dev/null"));
    cases.push((rig.command(&[]), "empty"));
    cases.push((rig.command(&["true", "a\0b"]), "argument 1"));
    let mut key = rig.sh("true");
    key.env.push(("A=B".into(), "1".into()));
    cases.push((key, "'A=B'"));
    for (request, named) in cases {
        let exit = rig.run(&request).await.done.exit;
        assert!(
            matches!(&exit, ExitStatus::SpawnFailed { message } if message.contains(named)),
            "{exit:?}"
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn starts_commands_with_default_signals_and_descriptors() {
    let mut rig = Rig::new().await;
    let mut request = rig.sh(
        "pwd; echo $A; ls /proc/self/fd | tr '\\n' ' '; grep -E '^Sig(Blk|Ign)' /proc/self/status",
    );
    request.cwd = Some("/usr".into());
    request.env.push(("A".into(), "one".into()));
    request.env.push(("A".into(), "two".into()));
    let stdout = String::from_utf8(rig.run(&request).await.stdout).unwrap();
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines[..2], ["/usr", "two"]);
    // Descriptor 3 is the directory that ls reads.
    assert!(
        lines[2].starts_with("0 1 2 3 SigBlk:\t0000000000000000"),
        "{stdout}"
    );
    assert_eq!(lines[3], "SigIgn:\t0000000000000000");
    rig.finish().await;
}

#[tokio::test]
async fn delivers_input_completely_and_closes_it() {
    let mut rig = Rig::new().await;
    let big: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 % 251) as u8).collect();
    for input in [b"".to_vec(), b"one line\n".to_vec(), big] {
        let mut request = rig.command(&["cat"]);
        request.stdin = Some(input.clone());
        let outcome = rig.run(&request).await;
        assert_eq!(outcome.done.exit, code(0));
        assert!(
            outcome.stdout == input,
            "{} bytes of {}",
            outcome.stdout.len(),
            input.len()
        );
    }
    assert_eq!(
        rig.run(&rig.command(&["cat"])).await.stdout,
        b"",
        "without input there is none"
    );
    rig.finish().await;
}

#[tokio::test]
async fn ignores_input_that_no_process_reads() {
    let mut rig = Rig::new().await;
    for script in [
        "exit 4",
        "sleep 0.1; exit 4",
        "exec <&-; sleep 0.1; exit 4",
        "head -c 1 >/dev/null; exit 4",
    ] {
        let mut request = rig.sh(script);
        request.stdin = Some(vec![b'x'; 1 << 20]);
        assert_eq!(rig.run(&request).await.done.exit, code(4), "{script}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn ignores_a_timeout_that_is_not_reached() {
    let mut rig = Rig::new().await;
    let mut request = rig.sh("exit 5");
    request.timeout = Some(Duration::from_secs(u64::MAX / 4));
    assert_eq!(rig.run(&request).await.done.exit, code(5));
    rig.finish().await;
}
