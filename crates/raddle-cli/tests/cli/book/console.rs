//! Executes the console blocks of README.md, of Getting started and of the tutorials: each command
//! is typed into a shell, and its output must be the one that the page shows.
//!
//! `BOOK_UPDATE=1` writes the output of this run into the pages instead.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use super::{
    EXECUTED,
    alike::{Ids, compare},
    page::{Step, steps},
    pages, read, root,
};
use crate::world::{RunningCommand, World, wait_until};

/// The directory of the reader, as pages show it.
const DIRECTORY: &str = "/tmp/tour";
/// The name of the machine, as pages show it.
const HOST: &str = "vm";
/// Commands that change nothing, and are repeated until they show what the page shows.
const READ_ONLY: [&str; 15] = [
    "cat ",
    "curl ",
    "ps ",
    "raddle batch ",
    "raddle group list",
    "raddle manager list",
    "raddle pool ",
    "raddle queue list",
    "raddle queue peek ",
    "raddle schedule list",
    "raddle status",
    "raddle task explain ",
    "raddle task list",
    "raddle worker list",
    "sort ",
];
/// How long such a command is repeated, and how long output of a process in the background may
/// take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long output may take that a process in the background writes because of a command.
const AFTERTHOUGHT: Duration = Duration::from_secs(5);
/// A shell that marks the end of each command in both streams, and leaves the exit code to the
/// next. A line break within a command arrives as `\x01`.
const SHELL: &str = "exec 9<&0 </dev/null
    ip link set lo up
    while read -ru 9 line; do
        line=${line//$'\\1'/$'\\n'}
        (exit $code); eval \"$line\" 9<&-; code=$?; printf '\\0'; printf '\\0' >&2
    done";
/// Stands for cargo, because a page cannot wait for a build: it starts the example that the page
/// prints as `src/main.rs`.
const CARGO: &str = r#"#!/bin/sh
example() { cat .example 2>/dev/null || { echo "no example is printed as src/main.rs" >&2; exit 101; }; }
case $1 in
    new) for name; do :; done; mkdir -p "$name/src" && touch "$name/Cargo.toml" ;;
    add) ;;
    build) mkdir -p target/release && ln -sf "$EXAMPLES/$(example)" "target/release/$(basename "$PWD")" ;;
    run) while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done; [ $# = 0 ] || shift; exec "$EXAMPLES/$(example)" "$@" ;;
esac
"#;

/// A shell in the directory of the reader.
struct Shell {
    world: World,
    started: RunningCommand,
    typed: usize,
    /// How much of the two streams has been compared.
    seen: [usize; 2],
}

impl Shell {
    fn new() -> Self {
        let world = World::new();
        let tools = world.path().join(".tools");
        fs::create_dir(&tools).unwrap();
        let cargo = tools.join("cargo");
        fs::write(&cargo, CARGO).unwrap();
        fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
        // Only the programs that a reader has after the installation.
        symlink(env!("CARGO_BIN_EXE_raddle"), tools.join("raddle")).unwrap();
        let tour = world.path().join("tour");
        fs::create_dir(&tour).unwrap();
        let script = world.file("script.sh", SHELL);
        let mut command = world.command("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        // Pages use fixed ports, and list all processes.
        let apart = [
            "--mount",
            "--pid",
            "--net",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ];
        command
            .args(apart)
            .arg("bash")
            .arg(script)
            .current_dir(&tour)
            .env(
                "PATH",
                format!("{}:{}", tools.display(), std::env::var("PATH").unwrap()),
            )
            .env("EXAMPLES", examples())
            .env("HOME", world.path())
            .env("LC_ALL", "C.UTF-8")
            .stdin(Stdio::piped());
        let started = world.spawn(command);
        Self {
            world,
            started,
            typed: 0,
            seen: [0; 2],
        }
    }

    /// Types a command, and waits for its end.
    fn run(&mut self, text: &str) {
        self.started.type_line(&text.replace('\n', "\x01"));
        self.typed += 1;
        let is_over = |stream: String| stream.matches('\0').count() >= self.typed;
        wait_until(text, || {
            is_over(self.started.stdout()) && is_over(self.started.stderr())
        });
    }

    /// The output that has not been compared: data first, because which stream is first is left to
    /// chance.
    fn output(&self) -> (Vec<String>, [usize; 2]) {
        let streams = [self.started.stdout(), self.started.stderr()];
        let lengths = [streams[0].len(), streams[1].len()];
        let new: String = streams
            .iter()
            .zip(self.seen)
            .map(|(stream, seen)| stream[seen..].replace('\0', ""))
            .collect();
        let directory = self.world.path().canonicalize().unwrap();
        let host = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let lines = new
            .lines()
            .map(|line| line.replace(directory.join("tour").to_str().unwrap(), DIRECTORY))
            .map(|line| line.replace(&format!(" {host} "), &format!(" {HOST} ")))
            .collect();
        (lines, lengths)
    }

    /// Writes a file into the directory where the shell is.
    fn write(&mut self, path: &str, content: &str) {
        let parent = Path::new(path).parent().unwrap().display().to_string();
        let source = self.world.file(".content", content);
        let parent = if parent.is_empty() { "." } else { &parent };
        self.run(&format!(
            "mkdir -p {parent} && cp {} {path}",
            source.display()
        ));
        self.seen = self.output().1;
    }
}

/// Cargo builds examples with the tests, beside them.
fn examples() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_raddle"))
        .parent()
        .unwrap()
        .join("examples")
}

/// Limits what this thread starts to two processors, as many as pages show. Returns whether there
/// are so many.
fn use_two_processors() -> bool {
    // SAFETY: a `cpu_set_t` is plain bits, for which zero is a value; its size is passed; 0 is this
    // thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        let more: Vec<usize> = (0..libc::CPU_SETSIZE as usize)
            .filter(|processor| libc::CPU_ISSET(*processor, &set))
            .skip(2)
            .collect();
        more.into_iter()
            .for_each(|processor| libc::CPU_CLR(processor, &mut set));
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
    thread::available_parallelism().unwrap().get() == 2
}

/// A command with which a test on a busy machine has time to look.
fn slowed(text: &str) -> String {
    let text = text
        .replace("sleep 1;", "sleep 3;")
        .replace("[s]leep 1", "[s]leep 3");
    match text.strip_suffix("sleep 1") {
        Some(before) => format!("{before}sleep 3"),
        None => text,
    }
}

/// Executes a page from its first command to its last.
fn execute(page: &str) {
    if !use_two_processors() {
        return raddle_testnet::skip("there is no second processor: pages show two slots");
    }
    let text = read(page);
    let updates = std::env::var_os("BOOK_UPDATE").is_some();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    // Replaced from the end, so that the indexes before stay right.
    let mut replaced = Vec::new();
    let (mut shell, mut ids) = (Shell::new(), Ids::default());
    let mut transcript = String::new();
    for step in steps(&text) {
        match step {
            Step::File {
                path,
                content,
                example,
            } => {
                if let Some(example) = example {
                    let program = examples().join(&example);
                    assert!(
                        program.exists(),
                        "build the examples: {}",
                        program.display()
                    );
                    shell.write(".example", &example);
                }
                shell.write(&path, &content);
            }
            Step::Typed { text, shown, lines } => {
                let shown: Vec<String> = shown.iter().map(|line| slowed(line)).collect();
                match attempt(&mut shell, &slowed(&text), &shown, &mut ids, updates) {
                    Ok(real) => transcript.push_str(&format!("$ {text}\n{}\n", real.join("\n"))),
                    Err(real) if updates => replaced.push((lines, real)),
                    Err(real) => panic!(
                        "{page} shows after '{text}'\n{}\nbut it is\n{}\nafter\n{transcript}",
                        shown.join("\n"),
                        real.join("\n")
                    ),
                }
            }
        }
    }
    if updates {
        for (range, real) in replaced.into_iter().rev() {
            lines.splice(
                range,
                real.into_iter()
                    .map(|line| line.replace("leep 3", "leep 1")),
            );
        }
        fs::write(root().join(page), lines.join("\n") + "\n").unwrap();
    }
    let Shell { world, started, .. } = shell;
    started.finish().ok();
    drop(world);
}

/// Types a command until it shows what the page shows. Returns what it showed last.
fn attempt(
    shell: &mut Shell,
    text: &str,
    shown: &[String],
    ids: &mut Ids,
    updates: bool,
) -> Result<Vec<String>, Vec<String>> {
    let is_background = text.trim_end().ends_with('&');
    let is_read_only = READ_ONLY.iter().any(|command| text.starts_with(command));
    let begun = Instant::now();
    loop {
        shell.run(&ids.to_run(text));
        let typed = Instant::now();
        let patience = match is_background {
            true if !updates => PATIENCE,
            _ => AFTERTHOUGHT,
        };
        let real = loop {
            let (real, lengths) = shell.output();
            if let Some(learnt) = compare(text, ids, shown, &real) {
                *ids = learnt;
                shell.seen = lengths;
                return Ok(real);
            }
            // A command that is repeated shows the rest of its output by then.
            if typed.elapsed()
                > if is_read_only && !updates {
                    Duration::ZERO
                } else {
                    patience
                }
            {
                shell.seen = lengths;
                break real;
            }
            thread::sleep(Duration::from_millis(20));
        };
        if !is_read_only || updates || begun.elapsed() > PATIENCE {
            return Err(real);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn executes_the_readme() {
    execute("README.md");
}

macro_rules! executes {
    ($($name:ident $page:literal)*) => {
        $(
            #[test]
            fn $name() {
                execute($page);
            }
        )*

        #[test]
        fn executes_every_page_of_these_parts() {
            let named = [$($page),*];
            for page in pages() {
                let is_executed = EXECUTED.iter().any(|part| page.starts_with(part));
                assert!(!is_executed || named.contains(&page.as_str()), "{page} has no test here");
            }
        }
    };
}

executes! {
    executes_getting_started_install "docs/start/install.md"
    executes_getting_started_first_task "docs/start/first-task.md"
    executes_getting_started_first_function "docs/start/first-function.md"
    executes_getting_started_python "docs/start/python.md"
    executes_getting_started_first_pool "docs/start/first-pool.md"
    executes_getting_started_first_group "docs/start/first-group.md"
    executes_tutorial_shell_jobs "docs/tutorials/shell-jobs.md"
    executes_tutorial_rust_service "docs/tutorials/rust-service.md"
    executes_tutorial_supervised_group "docs/tutorials/supervised-group.md"
    executes_tutorial_untrusted_code "docs/tutorials/untrusted-code.md"
    executes_tutorial_many_machines "docs/tutorials/many-machines.md"
}
