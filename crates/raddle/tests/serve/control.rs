//! `pool workers`, `ping` and `stop` by any discovery or address, and with credentials.

use std::process::Command;

use crate::{
    CALLEE,
    secure::{CREDENTIALS, Trust},
    server::{PoolServer, ServerDir},
    wait_until, within,
};

/// The outcome of a command.
struct CommandOutput {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs `callee pool …` in the directory of a server, without a local discovery directory.
fn run_pool(served: &PoolServer, args: &[&str]) -> CommandOutput {
    let mut command = Command::new(CALLEE);
    command
        .arg("pool")
        .args(args)
        .current_dir(served.path())
        .env("XDG_RUNTIME_DIR", "/nonexistent");
    let output = command.output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    CommandOutput {
        code: output.status.code(),
        out,
        err,
    }
}

impl CommandOutput {
    #[track_caller]
    fn stdout(&self) -> &str {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        &self.out
    }

    #[track_caller]
    fn assert_output(&self, code: i32, expected: &str) {
        let message = format!("{}{}", self.out, self.err);
        assert!(
            self.code == Some(code) && message.contains(expected),
            "{:?}: {message}",
            self.code
        );
    }
}

fn credential_args<'a>(files: &[&'a str; 2]) -> [&'a str; 6] {
    [
        "--credentials-ca",
        "ca.pem",
        "--credentials-cert",
        files[0],
        "--credentials-key",
        files[1],
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_and_stops_workers_with_credentials() {
    within(120, async {
        let (world, trust, other_ca) = (ServerDir::new(), Trust::new(), Trust::new());
        other_ca.files(world.path(), "stranger", &["spiffe://test/ops"]);
        trust.files(world.path(), "worker", &["127.0.0.1"]);
        trust.files(world.path(), "ops", &["spiffe://test/ops"]);
        trust.files(world.path(), "web", &["spiffe://test/web"]);
        let rules = [
            "--allow",
            "spiffe://test/ops = @stop, @info",
            "--allow",
            "spiffe://test/web = *, @info",
        ];
        let serving = [
            "--json",
            "--workers",
            "2",
            "--bind",
            "127.0.0.1:0",
            "--discovery",
            "file:workers",
        ];
        let command = world.command(&[&serving[..], &CREDENTIALS, &rules].concat());
        let served = PoolServer::start_command(world, command).await;
        let [one, two] = <[_; 2]>::try_from(served.workers()).unwrap();
        let (ops, web, unknown_ca) = (
            ["ops.pem", "ops.key"],
            ["web.pem", "web.key"],
            ["stranger.pem", "stranger.key"],
        );
        let files = ["--discovery", "file:workers"];

        // Query by a discovery directory and by an address.
        let found = run_pool(
            &served,
            &[&["workers"], &files[..], &credential_args(&ops)].concat(),
        );
        let rows: Vec<&str> = found.stdout().lines().skip(1).collect();
        assert!(
            rows.len() == 2 && rows.iter().all(|row| row.contains(" listening ")),
            "{}",
            found.out
        );
        let info = run_pool(
            &served,
            &[
                &["workers", &one.address, "--json"],
                &credential_args(&ops)[..],
            ]
            .concat(),
        );
        let info: serde_json::Value = serde_json::from_str(info.stdout()).unwrap();
        assert_eq!(
            (&info[0]["uid"], &info[0]["pid"]),
            (&one.uid.to_string().into(), &one.pid.into())
        );
        assert_eq!(
            (&info[0]["pool"], &info[0]["secure"]),
            (&one.address.as_str().into(), &true.into())
        );
        let pinged = run_pool(
            &served,
            &[
                &["ping", "--count", "2", "--interval", "0"],
                &files[..],
                &credential_args(&web),
            ]
            .concat(),
        );
        assert!(
            pinged.stdout().contains("workers: 4 asked, 4 answered\n"),
            "{}",
            pinged.out
        );

        // Missing and wrong credentials are explained.
        let plain = run_pool(&served, &[&["workers"], &files[..]].concat());
        assert!(plain.stdout().contains(" no answer "), "{}", plain.out);
        plain.assert_output(0, "it serves over TLS: give --credentials-ca");
        let once = ["--count", "1"];
        run_pool(&served, &[&["ping", &one.address], &once[..]].concat())
            .assert_output(1, "if it serves over TLS, give --credentials-ca");
        // The worker refuses the certificate after the caller has finished the handshake, so the
        // first error is a race.
        let unknown_ca = run_pool(
            &served,
            &[
                &["ping", &one.address],
                &once[..],
                &credential_args(&unknown_ca),
            ]
            .concat(),
        );
        let possible_errors = [
            "the TLS handshake failed",
            "connection closed",
            "broken pipe",
            "connection reset",
        ];
        let message = format!("{}{}", unknown_ca.out, unknown_ca.err);
        assert!(
            unknown_ca.code == Some(1)
                && possible_errors
                    .iter()
                    .any(|expected| message.contains(expected)),
            "{message}"
        );
        let wrong_name = [
            &["ping", &one.address],
            &once[..],
            &credential_args(&ops),
            &["--expect", "spiffe://test/other"],
        ]
        .concat();
        run_pool(&served, &wrong_name).assert_output(
            1,
            "it is for a peer without a name, expected spiffe://test/other",
        );
        let missing = [
            &["ping", &one.address][..],
            &credential_args(&["none.pem", "ops.key"]),
        ]
        .concat();
        run_pool(&served, &missing).assert_output(2, "none.pem");

        // The right to call does not include the right to stop.
        let uid = two.uid.to_string();
        let denied = run_pool(
            &served,
            &[&["stop", &uid], &files[..], &credential_args(&web)].concat(),
        );
        denied.assert_output(1, "cannot stop worker");
        let stopped = run_pool(
            &served,
            &[&["stop", &uid], &files[..], &credential_args(&ops)].concat(),
        );
        assert_eq!(
            stopped.stdout(),
            format!("{uid} stopped, 0 calls ended, 0 cancelled\n")
        );
        let stopped = run_pool(
            &served,
            &[&["stop", &one.address][..], &credential_args(&ops)].concat(),
        );
        assert_eq!(
            stopped.stdout(),
            format!("{} stopped, 0 calls ended, 0 cancelled\n", one.address)
        );
        wait_until("replacements are published", async || {
            let now = served.workers();
            now.len() == 2
                && now
                    .iter()
                    .all(|worker| ![one.uid, two.uid].contains(&worker.uid))
        })
        .await;
        served.interrupt().assert_ends(0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn explains_unknown_workers_and_addresses() {
    within(120, async {
        let served = PoolServer::start(&[
            "--workers",
            "1",
            "--bind",
            "127.0.0.1:0",
            "--discovery",
            "file:workers",
        ])
        .await;
        let worker = served.workers().remove(0);
        run_pool(&served, &["stop"]).assert_output(2, "POOL|UID|ADDRESS");
        run_pool(&served, &["workers", "--discovery", "dns"]).assert_output(2, "give the DNS name");
        run_pool(&served, &["workers", "--discovery", "dns:nowhere"])
            .assert_output(2, "invalid DNS name 'nowhere'");
        run_pool(
            &served,
            &["workers", "other", "--discovery", "file:workers"],
        )
        .assert_output(2, "there is no pool or worker 'other'");
        run_pool(&served, &["stop", "127.0.0.1:1"])
            .assert_output(1, "no worker listens at this address");
        let none = run_pool(&served, &["stop", "--discovery", "file:absent"]);
        assert_eq!(
            (none.stdout(), none.err.as_str()),
            ("", "raddle: no worker was found\n")
        );
        let stopped = run_pool(&served, &["stop", "--discovery", "file:workers"]);
        assert_eq!(
            stopped.stdout(),
            format!("{} stopped, 0 calls ended, 0 cancelled\n", worker.uid)
        );
        served.interrupt().assert_ends(0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_another_program() {
    within(120, async {
        let world = ServerDir::new();
        let message = world.run_refused(&["--program", "nothing"], 2);
        assert!(message.contains("there is no program nothing"), "{message}");
        let message = world.run_refused(&["--program", "/"], 2);
        assert!(
            message.contains("/ is not a program: name one with #[raddle::main]"),
            "{message}"
        );
        let command = world.command(&["--json", "--workers", "1", "--program", CALLEE]);
        let served = PoolServer::start_command(world, command).await;
        let caller = served.pool().start().await.unwrap();
        assert_eq!(crate::routines::add(1, 2).on(&caller).await, Ok(3));
        served.interrupt().assert_ends(0).await;
    })
    .await;
}
