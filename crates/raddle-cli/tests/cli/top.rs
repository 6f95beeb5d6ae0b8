//! `raddle top` in a real terminal: tmux, with keys and sizes.

use std::{path::PathBuf, process::Command};

use serde_json::Value;

use crate::world::{World, wait_until};

/// A terminal with a program in it.
struct Terminal<'a> {
    world: &'a World,
    socket: PathBuf,
}

impl<'a> Terminal<'a> {
    /// Starts `raddle top` with these arguments, between two looks at the terminal's settings.
    fn start(world: &'a World, args: &str) -> Self {
        let script = format!(
            "stty -g >before; raddle top {args}; echo $? >code; stty -g >after; echo left; exec sleep 600"
        );
        let socket = world.path().join("tmux.sock");
        let terminal = Self { world, socket };
        let script = world.file("top.sh", script);
        let session = [
            "new-session",
            "-d",
            "-x",
            "80",
            "-y",
            "24",
            "sh",
            script.to_str().unwrap(),
        ];
        terminal.tmux(&session);
        terminal
    }

    fn tmux(&self, args: &[&str]) -> String {
        let mut command: Command = self.world.command("tmux");
        command
            .env("TERM", "xterm-256color")
            .env_remove("TMUX")
            .env("LC_ALL", "C.UTF-8");
        command
            .arg("-f")
            .arg("/dev/null")
            .arg("-u")
            .arg("-S")
            .arg(&self.socket)
            .args(args);
        let ran = command.output().unwrap();
        assert!(ran.status.success(), "{args:?}: {ran:?}");
        String::from_utf8_lossy(&ran.stdout).into_owned()
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn type_text(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    fn wait_for(&self, text: &str) {
        self.wait(&format!("'{text}' is on the screen"), |screen| {
            screen.contains(text)
        });
    }

    fn wait(&self, what: &str, test: impl Fn(&str) -> bool) {
        wait_until(what, || test(&self.screen()));
    }

    /// The process of `raddle top`.
    fn pid(&self) -> i32 {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let ran = Command::new("pgrep")
            .args(["-P", shell.trim()])
            .output()
            .unwrap();
        String::from_utf8(ran.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }

    /// Waits for the end, and checks that the terminal is as it was.
    fn assert_left(&self, code: &str) {
        wait_until("the program has ended", || {
            self.world.path().join("after").exists()
        });
        self.wait_for("left");
        assert_eq!(self.world.read_trimmed("code"), code, "{}", self.screen());
        assert_eq!(self.world.read("before"), self.world.read("after"));
        let flags = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        assert_eq!(
            flags.trim(),
            "0 1",
            "the first screen is back, with a cursor"
        );
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        let mut command: Command = self.world.command("tmux");
        let _ = command
            .arg("-S")
            .arg(&self.socket)
            .arg("kill-server")
            .output();
    }
}

fn failed_task(world: &World) -> String {
    let script = "echo no such user >&2; exit 3";
    let ran = world.raddle([
        "run", "--json", "--name", "import", "--", "sh", "-c", script,
    ]);
    assert_eq!(ran.code, 3, "{ran:?}");
    ran.json()["tid"].as_str().unwrap().to_owned()
}

#[test]
fn a_failed_task_is_found_explained_and_retried() {
    let world = World::new();
    world.raddle(["run", "--name", "report", "--", "true"]).ok();
    let failed = failed_task(&world);
    let terminal = Terminal::start(&world, "");
    terminal.wait_for("Overview");
    terminal.wait_for("exit code 3");
    terminal.keys(&["2"]);
    terminal.wait_for("report");
    terminal.keys(&["/"]);
    terminal.type_text("state:faild");
    terminal.keys(&["Enter"]);
    terminal.wait_for("character 7");
    terminal.keys(&["BSpace"]);
    terminal.type_text("ed");
    terminal.keys(&["Enter"]);
    terminal.wait("only the failed task is listed", |screen| {
        screen.contains("import") && !screen.contains("report")
    });
    terminal.keys(&["e"]);
    terminal.wait_for("is finished, failed");
    terminal.keys(&["o"]);
    terminal.wait_for("no such user");
    terminal.keys(&["Escape"]);
    terminal.wait_for("Attempts");
    terminal.keys(&["Escape"]);
    terminal.wait("the list is back", |screen| {
        screen.contains("STATE") && screen.contains("import")
    });
    terminal.keys(&["R"]);
    let retried = || world.list(&["task", "list", &format!("meta.retry_of:{failed}")]);
    wait_until("it was submitted again", || {
        retried().as_array().is_some_and(|it| it.len() == 1)
    });
    terminal.keys(&["4"]);
    // It waits, and no worker is there.
    terminal.wait_for("no worker is alive");
    terminal.keys(&["q"]);
    terminal.assert_left("0");
}

#[test]
fn new_tasks_appear_without_a_key() {
    let world = World::new();
    world.raddle(["run", "--name", "first", "--", "true"]).ok();
    let terminal = Terminal::start(&world, "state:created,completed");
    terminal.wait_for("first");
    let tid = world.submit(&["--name", "second", "--", "true"]);
    terminal.wait_for("second");
    world.worker(&[]);
    terminal.wait("it is shown as completed", |screen| {
        screen
            .lines()
            .any(|line| line.contains("second") && line.contains("completed"))
    });
    assert_eq!(world.task(&tid)["state"], "completed");
    terminal.keys(&["q"]);
    terminal.assert_left("0");
}

#[test]
fn every_size_and_every_signal_leave_a_sane_terminal() {
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let world = World::new();
        failed_task(&world);
        let terminal = Terminal::start(&world, "");
        terminal.wait_for("exit code 3");
        for (columns, lines) in [
            ("60", "20"),
            ("200", "60"),
            ("10", "3"),
            ("1", "1"),
            ("80", "24"),
        ] {
            terminal.tmux(&["resize-window", "-x", columns, "-y", lines]);
        }
        terminal.wait_for("exit code 3");
        // SAFETY: `kill` has no preconditions.
        unsafe { libc::kill(terminal.pid(), signal) };
        terminal.assert_left("0");
    }
}

#[test]
fn a_broker_that_goes_is_told_and_awaited() {
    let world = World::new();
    failed_task(&world);
    let serve = || world.worker(&["--serve", "agent.sock", "--name", "server"]);
    let server = serve();
    let url = format!(
        "--queue-url unix:{}",
        world.path().join("agent.sock").display()
    );
    let terminal = Terminal::start(&world, &url);
    terminal.wait_for("exit code 3");
    world.raddle(["worker", "stop", "--kill", &server]).ok();
    terminal.wait_for("broker lost");
    assert!(
        terminal.screen().contains("exit code 3"),
        "the last values stay"
    );
    serve();
    terminal.wait("it is back", |screen| !screen.contains("broker lost"));
    terminal.keys(&["C-c"]);
    terminal.assert_left("0");
}

#[test]
fn without_a_terminal_one_frame_is_printed() {
    let world = World::new();
    failed_task(&world);
    let ran = world.raddle(["top"]).ok();
    for part in ["READY", "Failures", "exit code 3", "no such user"] {
        assert!(ran.text().contains(part), "{part} is not in {}", ran.text());
    }
    assert!(!ran.text().contains('\u{1b}'));
    let json: Value = world.raddle(["top", "--json"]).ok().json();
    assert_eq!(json["failures"]["items"][0]["count"], 1);
    assert_eq!(json["dead"], 1);
    world
        .raddle(["top", "state:faild"])
        .code(2)
        .stderr_contains("query, character 7");
}
