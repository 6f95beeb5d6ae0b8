//! Workers that are asked how they are, and told to stop, from wherever somebody is: by any discovery or an address, and with credentials.

use std::process::Command;

use crate::{
    CALLEE,
    secure::{CREDENTIALS, Trust},
    served::{Served, World},
    until, within,
};

/// What a command comes to.
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs `callee pool …` in the directory of a program that serves, as a user who finds nothing on this machine.
fn pool(served: &Served, args: &[&str]) -> Ran {
    let mut command = Command::new(CALLEE);
    command
        .arg("pool")
        .args(args)
        .current_dir(served.path())
        .env("XDG_RUNTIME_DIR", "/nonexistent");
    let ran = command.output().unwrap();
    let [out, err] = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    Ran {
        code: ran.status.code(),
        out,
        err,
    }
}

impl Ran {
    #[track_caller]
    fn ok(&self) -> &str {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        &self.out
    }

    #[track_caller]
    fn says(&self, code: i32, words: &str) {
        let said = format!("{}{}", self.out, self.err);
        assert!(
            self.code == Some(code) && said.contains(words),
            "{:?}: {said}",
            self.code
        );
    }
}

fn by<'a>(who: &[&'a str; 2]) -> [&'a str; 6] {
    [
        "--credentials-ca",
        "ca.pem",
        "--credentials-cert",
        who[0],
        "--credentials-key",
        who[1],
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_credentials_asks_and_stops_workers_wherever_they_are() {
    within(120, async {
        let (world, trust, stranger) = (World::new(), Trust::new(), Trust::new());
        stranger.files(world.path(), "stranger", &["spiffe://test/ops"]);
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
        let served = Served::started(world, command).await;
        let [one, two] = <[_; 2]>::try_from(served.workers()).unwrap();
        let (ops, web, strange) = (
            ["ops.pem", "ops.key"],
            ["web.pem", "web.key"],
            ["stranger.pem", "stranger.key"],
        );
        let files = ["--discovery", "file:workers"];

        // By a directory, and by an address: who it is, and what it does.
        let found = pool(&served, &[&["workers"], &files[..], &by(&ops)].concat());
        let rows: Vec<&str> = found.ok().lines().skip(1).collect();
        assert!(
            rows.len() == 2 && rows.iter().all(|row| row.contains(" listening ")),
            "{}",
            found.out
        );
        let asked = pool(
            &served,
            &[&["workers", &one.address, "--json"], &by(&ops)[..]].concat(),
        );
        let asked: serde_json::Value = serde_json::from_str(asked.ok()).unwrap();
        assert_eq!(
            (&asked[0]["uid"], &asked[0]["pid"]),
            (&one.uid.to_string().into(), &one.pid.into())
        );
        assert_eq!(
            (&asked[0]["pool"], &asked[0]["secure"]),
            (&one.address.as_str().into(), &true.into())
        );
        let pinged = pool(
            &served,
            &[
                &["ping", "--count", "2", "--interval", "0"],
                &files[..],
                &by(&web),
            ]
            .concat(),
        );
        assert!(
            pinged.ok().contains("workers: 4 asked, 4 answered\n"),
            "{}",
            pinged.out
        );

        // Who has none, or the wrong ones, is told what is wrong.
        let plain = pool(&served, &[&["workers"], &files[..]].concat());
        assert!(plain.ok().contains(" no answer "), "{}", plain.out);
        plain.says(
            0,
            "it serves over TLS: say who you are with --credentials-ca",
        );
        let once = ["--count", "1"];
        pool(&served, &[&["ping", &one.address], &once[..]].concat()).says(
            1,
            "if it serves over TLS, say who you are with --credentials-ca",
        );
        // The worker refuses it after the caller has taken the handshake for done: what is heard of that first is a race.
        let strange = pool(
            &served,
            &[&["ping", &one.address], &once[..], &by(&strange)].concat(),
        );
        let heard = [
            "the TLS handshake failed",
            "connection closed",
            "broken pipe",
            "connection reset",
        ];
        let said = format!("{}{}", strange.out, strange.err);
        assert!(
            strange.code == Some(1) && heard.iter().any(|words| said.contains(words)),
            "{said}"
        );
        let wrong_name = [
            &["ping", &one.address],
            &once[..],
            &by(&ops),
            &["--expect", "spiffe://test/other"],
        ]
        .concat();
        pool(&served, &wrong_name).says(
            1,
            "it is that of nobody by name, and not of spiffe://test/other",
        );
        let missing = [&["ping", &one.address][..], &by(&["none.pem", "ops.key"])].concat();
        pool(&served, &missing).says(2, "none.pem");

        // Who may not stop it cannot, whatever he may call.
        let uid = two.uid.to_string();
        let denied = pool(&served, &[&["stop", &uid], &files[..], &by(&web)].concat());
        denied.says(1, "cannot be told to stop");
        let stopped = pool(&served, &[&["stop", &uid], &files[..], &by(&ops)].concat());
        assert_eq!(
            stopped.ok(),
            format!("{uid} stopped, 0 calls ended, 0 cancelled\n")
        );
        let stopped = pool(&served, &[&["stop", &one.address][..], &by(&ops)].concat());
        assert_eq!(
            stopped.ok(),
            format!("{} stopped, 0 calls ended, 0 cancelled\n", one.address)
        );
        until("others are there", async || {
            let now = served.workers();
            now.len() == 2
                && now
                    .iter()
                    .all(|worker| ![one.uid, two.uid].contains(&worker.uid))
        })
        .await;
        served.interrupt().ends(0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_there_is_said_in_words_that_help() {
    within(120, async {
        let served = Served::start(&[
            "--workers",
            "1",
            "--bind",
            "127.0.0.1:0",
            "--discovery",
            "file:workers",
        ])
        .await;
        let worker = served.workers().remove(0);
        pool(&served, &["stop"]).says(2, "POOL|UID|ADDRESS");
        pool(&served, &["workers", "--discovery", "dns"])
            .says(2, "say by which name they are found");
        pool(&served, &["workers", "--discovery", "dns:nowhere"])
            .says(2, "'nowhere' is no name of workers");
        pool(
            &served,
            &["workers", "other", "--discovery", "file:workers"],
        )
        .says(2, "there is no pool or worker 'other'");
        pool(&served, &["stop", "127.0.0.1:1"]).says(1, "no worker listens at this address");
        let none = pool(&served, &["stop", "--discovery", "file:nobody"]);
        assert_eq!(
            (none.ok(), none.err.as_str()),
            ("", "raddle: no worker was found\n")
        );
        let stopped = pool(&served, &["stop", "--discovery", "file:workers"]);
        assert_eq!(
            stopped.ok(),
            format!("{} stopped, 0 calls ended, 0 cancelled\n", worker.uid)
        );
        served.interrupt().ends(0).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_program_is_served_by_one_that_has_no_routines() {
    within(120, async {
        let world = World::new();
        let said = world.refuses(&["--program", "nothing"], 2);
        assert!(said.contains("there is no program nothing"), "{said}");
        let said = world.refuses(&["--program", "/"], 2);
        assert!(
            said.contains("/ is no program: give one with #[raddle::main]"),
            "{said}"
        );
        let command = world.command(&["--json", "--workers", "1", "--program", CALLEE]);
        let served = Served::started(world, command).await;
        let caller = served.pool().start().await.unwrap();
        assert_eq!(crate::routines::add(1, 2).on(&caller).await, Ok(3));
        served.interrupt().ends(0).await;
    })
    .await;
}
