//! README.md in its one minute: what it has people type is typed, and what it shows is what comes of it.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use crate::world::{Started, World, until};

const README: &str = include_str!("../../../../README.md");
const SECTION: &str = "## One minute";
/// The directory there.
const DIRECTORY: &str = "/tmp/tour";
/// What only looks, and can be typed again until it sees what README.md shows.
const LOOKS: [&str; 4] = [
    "ps ",
    "raddle status",
    "raddle task explain ",
    "raddle task list",
];
const PATIENCE: Duration = Duration::from_secs(60);
/// A shell that says when a command is over, and leaves its exit code to the next.
const SHELL: &str = "exec 9<&0 </dev/null
    while read -ru 9 line; do (exit $code); eval \"$line\" 9<&-; code=$?; printf '\\0'; printf '\\0' >&2; done";

/// All that is typed, and what is shown then.
fn typed() -> Vec<(String, Vec<String>)> {
    let section = README
        .split_once(SECTION)
        .expect("README.md has that section")
        .1;
    let section = section
        .split_once("\n## ")
        .map_or(section, |(section, _)| section);
    // On a busy machine a second can be over before anybody has looked.
    let section = section
        .replace("sleep 1", "sleep 3")
        .replace("[s]leep 1", "[s]leep 3");
    let blocks = section
        .split("```console\n")
        .skip(1)
        .map(|block| block.split_once("```").unwrap().0);
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    for line in blocks.flat_map(str::lines) {
        match (line.strip_prefix("$ "), all.last_mut()) {
            (Some(text), _) => all.push((text.to_owned(), Vec::new())),
            (None, Some((_, shown))) => shown.push(line.to_owned()),
            (None, None) => panic!("nobody has typed anything before '{line}'"),
        }
    }
    all
}

/// A shell, and how many commands it was given.
struct Shell {
    started: Started,
    typed: usize,
}

impl Shell {
    /// What a command shows: its data and then what it says, because which of them comes first is left to chance.
    fn run(&mut self, text: &str) -> Vec<String> {
        self.started.types(text);
        self.typed += 1;
        let said = |all: String| all.matches('\0').count() == self.typed;
        until(text, || {
            said(self.started.stdout()) && said(self.started.stderr())
        });
        let last = |all: String| all.split('\0').nth(self.typed - 1).unwrap().to_owned();
        let shown = last(self.started.stdout()) + &last(self.started.stderr());
        shown.lines().map(str::to_owned).collect()
    }
}

/// Ids in README.md, and what they are here.
type Ids = Vec<(String, String)>;

/// The text with the ids that are known by now, whole or as their last ten digits.
fn here(ids: &Ids, text: &str) -> String {
    ids.iter().fold(text.to_owned(), |text, (there, here)| {
        text.replace(there, here).replace(&there[9..], &here[9..])
    })
}

/// Takes ids that are new for those in whose places they stand.
fn learn(ids: &mut Ids, written: &str, real: &str) {
    let all =
        |line| str::split(line, |c: char| !c.is_ascii_digit()).filter(|digits| digits.len() == 19);
    for (there, here) in all(written).zip(all(real)) {
        if ids.iter().all(|known| known.0 != there && known.1 != here) {
            ids.push((there.to_owned(), here.to_owned()));
        }
    }
}

/// The lines that a command shows without what is another each time.
fn lasting(command: &str, lines: &[String]) -> Vec<String> {
    if command.starts_with("ps ") {
        return family(lines);
    }
    let is_time = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_digit()) && word.ends_with(['s', 'm', 'h'])
    };
    let is_table = command == "raddle task list";
    let word = |word| {
        if is_table && is_time(word) {
            "[time]"
        } else {
            word
        }
    };
    // On a busy machine a task may wait for so long that its waiter says why.
    let says_why =
        |line: &&String| command.contains(" --wait ") && line.starts_with("raddle: task ");
    lines
        .iter()
        .filter(|line| !says_why(line))
        .map(|line| {
            line.split_whitespace()
                .map(word)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect()
}

/// The processes in a listing, each with those above it, instead of their numbers.
fn family(lines: &[String]) -> Vec<String> {
    let process = |line: &String| {
        let (pid, rest) = line.trim_start().split_once(' ').unwrap();
        let (parent, args) = rest.trim_start().split_once(' ').unwrap();
        (pid.to_owned(), (parent.to_owned(), args.to_owned()))
    };
    let processes: BTreeMap<String, (String, String)> = lines.iter().map(process).collect();
    let line = |(mut parent, mut line): (String, String)| {
        while let Some((above, args)) = processes.get(&parent) {
            line = format!("{line} < {args}");
            parent = above.clone();
        }
        line
    };
    let mut shown: Vec<String> = processes.values().cloned().map(line).collect();
    shown.sort();
    shown
}

/// Keeps what this thread starts to two cores, as many as where README.md was written. Whether there are so many.
fn on_two_cores() -> bool {
    // SAFETY: the set is plain bits, for which zero is a value, and as large as is said; 0 is this thread.
    unsafe {
        let mut cores: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(
            libc::sched_getaffinity(0, size_of_val(&cores), &mut cores),
            0
        );
        let more = (0..libc::CPU_SETSIZE as usize)
            .filter(|core| libc::CPU_ISSET(*core, &cores))
            .skip(2);
        more.collect::<Vec<_>>()
            .into_iter()
            .for_each(|core| libc::CPU_CLR(core, &mut cores));
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&cores), &cores), 0);
    }
    thread::available_parallelism().unwrap().get() == 2
}

#[test]
fn what_the_readme_shows_in_one_minute_is_what_happens() {
    if !on_two_cores() {
        return raddle_testnet::skip(
            "there is no second core: README.md shows two tasks at a time",
        );
    }
    let (world, typed) = (World::new(), typed());
    assert!(typed.len() >= 10, "the section has its commands");
    let directory = world.path().canonicalize().unwrap();
    let mut shell = Shell {
        started: world.start_bash_apart(SHELL),
        typed: 0,
    };
    let (mut ids, mut transcript) = (Ids::new(), String::new());
    for (text, shown) in &typed {
        let mut is_true = || {
            let real = shell.run(&here(&ids, text));
            let real: Vec<String> = real
                .iter()
                .map(|line| line.replace(directory.to_str().unwrap(), DIRECTORY))
                .collect();
            let mut learnt = ids.clone();
            shown
                .iter()
                .zip(&real)
                .for_each(|(written, real)| learn(&mut learnt, written, real));
            let written: Vec<String> = shown.iter().map(|line| here(&learnt, line)).collect();
            transcript = format!("$ {text}\n{}", real.join("\n"));
            let is_true = lasting(text, &written) == lasting(text, &real);
            if is_true {
                ids = learnt;
            }
            is_true
        };
        let (begun, looks) = (
            Instant::now(),
            LOOKS.iter().any(|look| text.starts_with(look)),
        );
        while !is_true() {
            let may_come = looks && begun.elapsed() < PATIENCE;
            assert!(
                may_come,
                "README.md shows {shown:#?}, but it is\n{transcript}"
            );
        }
    }
    shell.started.finish().ok();
}
