//! The tutorial with two machines: its commands run, and their output matches.

use std::{
    os::unix::fs::{DirBuilderExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use raddle::pool::WorkerUid;
use raddle_testnet::{Host, Lan};

use crate::{machine::first_line, wait_until};

const PAGE: &str = include_str!("../../../../docs/tutorials/many-machines.md");
const SECTION: &str = "## Calls: workers that are found on the network";
/// The names of the machines in the tutorial.
const NAMES: [&str; 2] = ["one", "two"];
const ADDRESSES: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

/// A command of a machine, and its expected output.
struct TypedCommand {
    machine: usize,
    text: String,
    expected: Vec<String>,
}

/// All commands of the section.
fn parse_commands() -> Vec<TypedCommand> {
    let section = PAGE
        .split_once(SECTION)
        .expect("the tutorial has that section")
        .1;
    let section = section
        .split_once("\n## ")
        .map_or(section, |(section, _)| section);
    let mut all: Vec<TypedCommand> = Vec::new();
    let blocks = section
        .split("```console\n")
        .skip(1)
        .map(|block| block.split_once("```").unwrap().0);
    for line in blocks.flat_map(str::lines) {
        let prompt = NAMES
            .iter()
            .position(|name| line.starts_with(&format!("{name}$ ")));
        match (prompt, all.last_mut()) {
            (Some(machine), _) => {
                let text = line.split_once("$ ").unwrap().1.to_owned();
                all.push(TypedCommand {
                    machine,
                    text,
                    expected: Vec::new(),
                });
            }
            // The command continues in the next line.
            (None, Some(typed)) if typed.text.ends_with('\\') && typed.expected.is_empty() => {
                typed.text = format!(
                    "{} {}",
                    typed.text.trim_end_matches('\\').trim(),
                    line.trim()
                );
            }
            (None, Some(typed)) => typed.expected.push(line.to_owned()),
            (None, None) => panic!("output before the first command: '{line}'"),
        }
    }
    all
}

/// A machine with the programs of the tutorial.
struct Machine {
    host: Host,
    directory: tempfile::TempDir,
    serving: Option<Child>,
}

impl Machine {
    fn new(lan: &Lan) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["run", "run/raddle", "bin"] {
            std::fs::DirBuilder::new()
                .mode(0o700)
                .create(directory.path().join(name))
                .unwrap();
        }
        for (name, program) in [("raddle", "raddle"), ("machines", "examples/machines")] {
            symlink(built(program), directory.path().join("bin").join(name)).unwrap();
        }
        Self {
            host: lan.host(),
            directory,
            serving: None,
        }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn shell(&self, text: &str) -> Command {
        let mut command = self.host.command("sh");
        let path = format!(
            "{}:{}",
            self.path().join("bin").display(),
            std::env::var("PATH").unwrap()
        );
        command
            .args(["-c", &format!("exec 2>&1; {text}")])
            .env("PATH", path)
            .current_dir(self.path());
        command
            .env("XDG_RUNTIME_DIR", self.path().join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
    }

    /// The output of a command that ends.
    fn run(&self, text: &str) -> Vec<String> {
        let output = self.shell(text).output().unwrap();
        let expected = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}: {expected}");
        expected.lines().map(str::to_owned).collect()
    }

    /// The first line of a command that keeps running.
    fn serve(&mut self, text: &str) -> Vec<String> {
        let mut child = self.shell(&format!("exec {text}")).spawn().unwrap();
        let line = first_line(&mut child);
        self.serving = Some(child);
        vec![line.trim_end().to_owned()]
    }

    /// Sends `SIGINT` and waits for the end.
    fn interrupt(&mut self) {
        let mut serving = self.serving.take().unwrap();
        // SAFETY: the child was not waited for, so the pid is its own; the signal has no memory
        // effects here.
        unsafe { libc::kill(serving.id() as i32, libc::SIGINT) };
        wait_until("the server exits", 30, || {
            serving.try_wait().unwrap().is_some()
        });
        assert_eq!(serving.wait().unwrap().code(), Some(0));
    }
}

/// The path of a program that Cargo builds beside the tests.
fn built(program: &str) -> PathBuf {
    let program = std::env::current_exe()
        .unwrap()
        .ancestors()
        .nth(2)
        .unwrap()
        .join(program);
    assert!(
        program.exists(),
        "{} is missing: build it with `cargo test --workspace`",
        program.display()
    );
    program
}

/// Whether a word is equal to the word in the tutorial, or of the same kind where values differ
/// between runs.
fn is_same_word(written: &str, expected: &str) -> bool {
    let kinds: [fn(&str) -> bool; 5] = [
        |word| word.parse::<WorkerUid>().is_ok(),
        // A date, a time, a duration.
        |word| word.len() == 10 && word.split('-').map(str::len).eq([4, 2, 2]),
        |word| word.trim_end_matches(';').ends_with('Z') && word.matches(':').count() == 2,
        |word| {
            word.strip_suffix('s')
                .is_some_and(|number| number.parse::<u32>().is_ok())
        },
        |word| NAMES.contains(&word),
    ];
    // A port at the same address.
    let port = |word: &str| -> Option<(String, u16)> {
        let (host, port) = word.trim_end_matches(',').rsplit_once(':')?;
        Some((host.to_owned(), port.parse().ok()?))
    };
    let same_place = matches!((port(written), port(expected)), (Some((one, _)), Some((other, _))) if one == other);
    written == expected || same_place || kinds.iter().any(|is| is(written) && is(expected))
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn executes_the_tutorial_on_two_machines() {
    if !raddle_testnet::can_create_hosts() {
        return;
    }
    let lan = Lan::new();
    let mut machines = [Machine::new(&lan), Machine::new(&lan)];
    let addresses = [&machines[0], &machines[1]].map(|machine| machine.host.ipv4().to_string());
    let names = [&machines[0], &machines[1]].map(|machine| machine.host.name().to_owned());
    let exchange = |text: &str, from: [&str; 2], to: [&str; 2]| {
        text.replace(from[0], to[0]).replace(from[1], to[1])
    };
    let localize = |text: &str| exchange(text, ADDRESSES, [&addresses[0], &addresses[1]]);
    let normalize = |text: &str| {
        let text = exchange(text, [&names[0], &names[1]], NAMES);
        exchange(&text, [&addresses[0], &addresses[1]], ADDRESSES)
    };
    let typed = parse_commands();
    assert!(typed.len() >= 5, "the section has its commands");
    let (mut called, mut transcript, mut matches) = (Vec::new(), String::new(), true);
    for TypedCommand {
        machine,
        text,
        expected,
    } in &typed
    {
        let run = localize(text);
        let serves = run.contains("pool serve");
        let machine = &mut machines[*machine];
        let real = if serves {
            machine.serve(&run)
        } else {
            machine.run(&run)
        };
        let real: Vec<String> = real.iter().map(|line| normalize(line)).collect();
        if run.starts_with("machines") && !serves {
            called = real
                .iter()
                .filter_map(|line| line.rsplit_once(' ').map(|(_, host)| host.to_owned()))
                .collect();
        }
        // Pids differ between runs.
        let is_table = run.contains("pool workers");
        let is_number = |word: &str| is_table && word.parse::<u32>().is_ok();
        let alike = |(written, real): (&String, &String)| {
            let (written, real) = (words(written), words(real));
            let same =
                |(a, b): (&&str, &&str)| is_same_word(a, b) || (is_number(a) && is_number(b));
            written.len() == real.len() && written.iter().zip(&real).all(same)
        };
        matches &= expected.len() == real.len() && expected.iter().zip(&real).all(alike);
        transcript.push_str(&format!("$ {text}\n{}\n", real.join("\n")));
        // The tutorial tells users to copy these files to the machines.
        if run.contains("cert issue") {
            let issued_for = run
                .split_whitespace()
                .find(|word| addresses.iter().any(|address| address == word))
                .unwrap();
            let to = addresses
                .iter()
                .position(|address| address == issued_for)
                .unwrap();
            let certs = machines[0].path().join("certs");
            for (from, name) in [
                ("ca-cert.pem".to_owned(), "ca-cert.pem"),
                (format!("{issued_for}-cert.pem"), "own-cert.pem"),
                (format!("{issued_for}-key.pem"), "own-key.pem"),
            ] {
                std::fs::copy(certs.join(from), machines[to].path().join(name)).unwrap();
            }
        }
    }
    machines[1].interrupt();
    assert!(matches, "the tutorial differs from\n{transcript}");
    called.sort();
    called.dedup();
    assert_eq!(called, NAMES, "both machines were called");
}
