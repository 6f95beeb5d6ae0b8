//! Commands in a sandbox, and their attempts to escape. Each case runs under root's runner, under
//! one without privileges, and under one of root with supplementary groups.

mod escape;
mod exhaustion;
mod fallback;
mod functions;
mod hygiene;
mod namespaces;
mod network;
mod privileges;

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use raddle_model::ExitStatus;
use raddle_runner::{ExecRequest, RunnerCommand, RunnerOptions, SandboxConfig};

use crate::support::{Outcome, Rig, code, options};

/// Makes a raw system call and prints its result.
const CALL: &str = "import ctypes, os\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    def call(*numbers):\n  \
      got = libc.syscall(*[ctypes.c_long(n) for n in numbers])\n  \
      return 'done' if got >= 0 else os.strerror(ctypes.get_errno())\n";

/// Users of a runner, as `setpriv` arguments: one without privileges, and root with a supplementary
/// group.
const OTHERS: [&str; 2] = [
    "--reuid=65534 --regid=65534 --clear-groups --inh-caps=-all",
    "--groups=4",
];

/// One runner with the test's privileges, and one for each other user.
async fn rigs() -> Vec<Rig> {
    rigs_under("").await
}

/// As [`rigs`], with these words before the arguments of each runner.
async fn rigs_under(words: &str) -> Vec<Rig> {
    let mut rigs = vec![rig_of("", words).await];
    if rustix::process::geteuid().is_root() {
        for privileges in OTHERS {
            rigs.push(rig_of(&format!("setpriv {privileges}"), words).await);
        }
    }
    rigs
}

async fn rig_of(prefix: &str, words: &str) -> Rig {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("other");
    let runner = options().program.to_str().unwrap().to_owned();
    fs::write(
        &program,
        format!("#!/bin/sh\nexec {prefix} '{runner}' {words} \"$@\"\n"),
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut rig = Rig::with(&RunnerOptions {
        program,
        ..options()
    })
    .await;
    // After a first run, the program is in the page cache.
    let probe = rig.sh("true");
    rig.run(&probe).await;
    rig
}

/// A field of `/proc/PID/status`.
fn status(pid: u32, name: &str) -> String {
    let all = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = all
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} of {pid}"))
        .trim()
        .to_owned()
}

fn boxed(request: ExecRequest) -> ExecRequest {
    ExecRequest {
        sandbox: Some(SandboxConfig::default()),
        ..request
    }
}

async fn sh(rig: &mut Rig, script: &str) -> Outcome {
    let request = boxed(rig.sh(script));
    rig.run(&request).await
}

fn stdout(outcome: &Outcome) -> String {
    assert_eq!(
        outcome.done.exit,
        code(0),
        "{}",
        String::from_utf8_lossy(&outcome.stderr)
    );
    String::from_utf8(outcome.stdout.clone()).unwrap()
}

#[tokio::test]
async fn runs_a_command_as_outside() {
    for mut rig in rigs().await {
        let outcome = sh(&mut rig, "echo out; echo err >&2; cat; exit 3").await;
        assert_eq!(
            (outcome.done.exit, outcome.stdout, outcome.stderr),
            (code(3), b"out\n".to_vec(), b"err\n".to_vec())
        );
        let request = ExecRequest {
            stdin: Some(b"told".to_vec()),
            ..boxed(rig.command(&["cat"]))
        };
        assert_eq!(stdout(&rig.run(&request).await), "told");
        assert_eq!(
            sh(&mut rig, "kill -9 $$").await.done.exit,
            ExitStatus::Signal { signal: 9 }
        );
        let streams = sh(
            &mut rig,
            "umask; echo out > /dev/stdout; echo err > /dev/stderr; cat /etc/hosts > /dev/null",
        )
        .await;
        assert_eq!(
            (streams.done.exit, streams.stdout),
            (code(0), b"0022\nout\n".to_vec())
        );
        let absent = boxed(rig.command(&["no-such-program"]));
        assert!(matches!(
            rig.run(&absent).await.done.exit,
            ExitStatus::NotFound { .. }
        ));
        // Host files are not there, and no message mentions them.
        let outside = boxed(rig.command(&[options().program.to_str().unwrap()]));
        assert!(matches!(
            rig.run(&outside).await.done.exit,
            ExitStatus::NotFound { .. }
        ));
        let spent = sh(&mut rig, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")
            .await
            .done
            .usage;
        assert!(spent.user_us + spent.system_us > 1000, "{spent:?}");
        rig.finish().await;
    }
}

#[tokio::test]
async fn sends_sigterm_before_sigkill() {
    for mut rig in rigs().await {
        let request = boxed(
            rig.sh("trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.05; done"),
        );
        rig.start_until_output(&request).await;
        rig.runner.send(RunnerCommand::Stop).await.unwrap();
        let outcome = rig.end().await;
        assert_eq!(
            (outcome.done.exit, outcome.stdout),
            (ExitStatus::Cancelled, b"asked\n".to_vec())
        );
        let request = boxed(rig.sh("trap '' TERM; echo ready; sleep 100"));
        rig.start_until_output(&request).await;
        rig.runner.send(RunnerCommand::Kill).await.unwrap();
        assert_eq!(rig.end().await.done.exit, ExitStatus::Killed);
        let request = ExecRequest {
            timeout: Some(Duration::from_millis(200)),
            ..boxed(rig.sh("sleep 100"))
        };
        assert_eq!(rig.run(&request).await.done.exit, ExitStatus::Timeout);
        rig.finish().await;
    }
}

/// The worker's variables may be secrets.
#[tokio::test]
async fn hides_the_environment_of_the_worker() {
    for mut rig in rigs().await {
        let mut names: Vec<String> = stdout(&sh(&mut rig, "env").await)
            .lines()
            .map(|line| line.split('=').next().unwrap().into())
            .collect();
        names.sort();
        assert_eq!(
            names,
            ["HOME", "LANG", "PATH", "PWD", "RADDLE_TEST_MARK", "TMPDIR"]
        );
        // Nor in what else the command might read of the shim, which is process 1.
        let said = sh(
            &mut rig,
            "cat /proc/1/environ; cat /proc/1/maps; ls /proc/1/fd /proc/1/root",
        )
        .await;
        assert_eq!(
            said.stdout,
            b"",
            "{}",
            String::from_utf8_lossy(&said.stdout)
        );
        rig.finish().await;
    }
}

#[tokio::test]
async fn hides_files_of_the_host() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let secret = directory.path().join("secret");
    fs::write(&secret, "the secret").unwrap();
    for mut rig in rigs().await {
        let outcome = sh(&mut rig, &format!("cat {}", secret.display())).await;
        assert_eq!((outcome.done.exit, outcome.stdout), (code(1), Vec::new()));
        for path in [
            "/root",
            "/home",
            "/var",
            "/run",
            "/sys",
            "/boot",
            "/etc/shadow",
            "/proc/kcore",
            "/proc/sys",
        ] {
            assert_eq!(
                sh(&mut rig, &format!("ls -d {path}")).await.done.exit,
                code(2),
                "{path}"
            );
        }
        let links = "ln -s / /scratch/up; ls /scratch/up/root /proc/self/root/root /proc/self/cwd/../root 2>/dev/null; true";
        assert_eq!(stdout(&sh(&mut rig, links).await), "");
        rig.finish().await;
    }
    assert_eq!(fs::read_to_string(secret).unwrap(), "the secret");
}

#[tokio::test]
async fn allows_writes_only_in_scratch_and_tmp() {
    for mut rig in rigs().await {
        let tries = "for at in / /usr /usr/bin /etc /bin /lib /dev /proc; do touch $at/new 2>/dev/null && echo $at; done; \
                     rm -f /usr/bin/env 2>/dev/null; ls /usr/bin/env";
        assert_eq!(stdout(&sh(&mut rig, tries).await), "/usr/bin/env\n");
        let own = "pwd; for at in . /scratch /tmp; do echo it > $at/new && cat $at/new; done";
        assert_eq!(stdout(&sh(&mut rig, own).await), "/scratch\nit\nit\nit\n");
        // The files are gone in the next attempt.
        assert_eq!(
            stdout(&sh(&mut rig, "ls -A /scratch /tmp").await),
            "/scratch:\n\n/tmp:\n"
        );
        rig.finish().await;
    }
}

#[tokio::test]
async fn runs_as_an_unprivileged_user_for_good() {
    for mut rig in rigs().await {
        let status = stdout(
            &sh(
                &mut rig,
                "id -u; grep -E '^(NoNewPrivs|Seccomp|Cap(Eff|Prm|Bnd)):' /proc/self/status",
            )
            .await,
        );
        let lines: Vec<String> = status
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let none = "0000000000000000";
        let capabilities = ["CapPrm:", "CapEff:", "CapBnd:"].map(|name| format!("{name} {none}"));
        let [prm, eff, bnd] = &capabilities;
        assert_eq!(
            lines,
            ["1000", prm, eff, bnd, "NoNewPrivs: 1", "Seccomp: 2"]
        );
        // The command is in none of the worker's groups.
        let groups = stdout(&sh(&mut rig, "grep ^Groups: /proc/self/status").await);
        assert_eq!(groups.trim_end(), "Groups:");
        rig.finish().await;
    }
}

#[tokio::test]
async fn hides_other_processes() {
    for mut rig in rigs().await {
        let seen = stdout(&sh(&mut rig, "ls /proc | grep -c '^[0-9]'").await);
        assert!(seen.trim().parse::<u32>().unwrap() <= 4, "{seen}");
        let host = std::process::id();
        // It can only reach itself and its own children.
        let tries = format!(
            "kill -0 {host} 2>/dev/null && echo seen; kill -9 -1; kill -9 1; sleep 0.1; echo still here"
        );
        assert_eq!(stdout(&sh(&mut rig, &tries).await), "still here\n");
        rig.finish().await;
    }
}

#[tokio::test]
async fn has_no_network() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for mut rig in rigs().await {
        let script = format!(
            "import socket\n\
             for family, address in [(socket.AF_INET, ('127.0.0.1', {port})), (socket.AF_INET, ('192.0.2.1', 80)), (socket.AF_INET6, ('::1', {port}))]:\n  \
               s = socket.socket(family); s.settimeout(3)\n  \
               try: s.connect(address); print('connected', address)\n  \
               except OSError as e: pass\n\
             for family in [socket.AF_NETLINK, socket.AF_PACKET, getattr(socket, 'AF_VSOCK', 40)]:\n  \
               try: socket.socket(family, socket.SOCK_RAW); print('family', family)\n  \
               except OSError as e: pass\n\
             print('end')"
        );
        let request = boxed(rig.command(&["python3", "-c", &script]));
        assert_eq!(stdout(&rig.run(&request).await), "end\n");
        rig.finish().await;
    }
}

/// System calls that the filter refuses.
#[tokio::test]
async fn refuses_calls_that_no_command_needs() {
    let calls = [
        ("ptrace", libc::SYS_ptrace),
        ("mount", libc::SYS_mount),
        ("unshare", libc::SYS_unshare),
        ("init_module", libc::SYS_init_module),
        ("bpf", libc::SYS_bpf),
        ("keyctl", libc::SYS_keyctl),
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("perf_event_open", libc::SYS_perf_event_open),
        ("setns", libc::SYS_setns),
        ("chroot", libc::SYS_chroot),
        ("reboot", libc::SYS_reboot),
    ];
    for mut rig in rigs().await {
        let tries: String = calls
            .iter()
            .map(|(name, number)| format!("print('{name}', call({number}, 0, 0, 0, 0, 0))\n"))
            .collect();
        let user_namespace = libc::CLONE_NEWUSER | libc::SIGCHLD;
        let tries = format!(
            "{CALL}{tries}print('clone', call({}, {user_namespace}, 0, 0, 0, 0))\n",
            libc::SYS_clone
        );
        let request = boxed(rig.command(&["python3", "-c", &tries]));
        let said = stdout(&rig.run(&request).await);
        assert_eq!(said.lines().count(), calls.len() + 1, "{said}");
        assert!(
            said.lines()
                .all(|line| line.ends_with(" Operation not permitted")),
            "{said}"
        );
        rig.finish().await;
    }
}

#[tokio::test]
async fn kills_all_processes_at_the_end() {
    for mut rig in rigs().await {
        let began = Instant::now();
        let script = "setsid sleep 300 & (setsid sh -c 'trap \"\" TERM HUP; sleep 300' &) ; exit 0";
        assert_eq!(sh(&mut rig, script).await.done.exit, code(0));
        assert!(began.elapsed() < Duration::from_secs(20));
        rig.finish().await;
    }
}

#[tokio::test]
async fn refuses_a_working_directory_of_the_host() {
    let mut rig = Rig::new().await;
    let request = ExecRequest {
        cwd: Some("/tmp".into()),
        ..boxed(rig.sh("true"))
    };
    let exit = rig.run(&request).await.done.exit;
    assert!(
        matches!(&exit, ExitStatus::SpawnFailed { message } if message.contains("remove cwd")),
        "{exit:?}"
    );
    rig.finish().await;
}
