//! Whether the output of a command is the one that a page shows: the same but for what differs from
//! run to run, which are ids, times, process numbers and sizes.

use std::collections::BTreeMap;

/// The ids of a page, and the ids of this run that stand for them.
#[derive(Clone, Default)]
pub(super) struct Ids(Vec<(String, String)>);

impl Ids {
    /// A text of the page with the ids of this run, whole or as their last ten digits.
    pub(super) fn to_run(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (page, run)| {
            text.replace(page, run).replace(&page[9..], &run[9..])
        })
    }

    /// Pairs the ids of two texts that are not known yet.
    fn learn(&mut self, page: &str, run: &str) {
        let ids = |line| {
            str::split(line, |c: char| !c.is_ascii_digit()).filter(|digits| digits.len() == 19)
        };
        for (page, run) in ids(page).zip(ids(run)) {
            if self.0.iter().all(|known| known.0 != page && known.1 != run) {
                self.0.push((page.to_owned(), run.to_owned()));
            }
        }
    }
}

/// Whether a command showed in this run what the page shows. Returns the ids that are known after
/// it.
pub(super) fn compare(command: &str, ids: &Ids, page: &[String], run: &[String]) -> Option<Ids> {
    let mut learnt = ids.clone();
    if command.starts_with("ps ") {
        pair(&mut learnt, page, run);
        let page: Vec<String> = page.iter().map(|line| learnt.to_run(line)).collect();
        return (ancestry(&page) == ancestry(run)).then_some(learnt);
    }
    let run: Vec<String> = run
        .iter()
        .filter(|line| !is_waiting_note(command, line))
        .cloned()
        .collect();
    pair(&mut learnt, page, &run);
    let page: Vec<String> = page.iter().map(|line| learnt.to_run(line)).collect();
    let numbers_vary = page
        .first()
        .is_some_and(|head| words(head).contains(&"PID"));
    are_alike(&page, &run, numbers_vary).then_some(learnt)
}

/// Pairs ids of lines that stand in one place, as long as no line stands for several.
fn pair(ids: &mut Ids, page: &[String], run: &[String]) {
    for (page, run) in page.iter().zip(run) {
        if page == "…" {
            break;
        }
        ids.learn(page, run);
    }
}

/// On a busy machine a command may wait for so long that it says why.
fn is_waiting_note(command: &str, line: &str) -> bool {
    let waits = command.contains("--wait") || command.contains(" wait ");
    waits && line.starts_with("raddle: task ") && line.contains(" waits")
}

/// A line `…` stands for any number of lines.
fn are_alike(page: &[String], run: &[String], numbers_vary: bool) -> bool {
    match page.split_first() {
        None => run.is_empty(),
        Some((line, rest)) if line.trim() == "…" => {
            (0..=run.len()).any(|skipped| are_alike(rest, &run[skipped..], numbers_vary))
        }
        Some((line, rest)) => run.split_first().is_some_and(|(first, run)| {
            is_alike(line, first, numbers_vary) && are_alike(rest, run, numbers_vary)
        }),
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// A word that ends in `…` stands for the rest of the line.
fn is_alike(page: &str, run: &str, numbers_vary: bool) -> bool {
    let (page, run) = (words(page), words(run));
    if let Some(open) = page.iter().position(|word| word.ends_with('…')) {
        let begins = page[open].trim_end_matches('…');
        return run.len() > open
            && run[open].starts_with(begins)
            && (0..open).all(|at| word_is_alike(&page, &run, at, numbers_vary));
    }
    page.len() == run.len()
        && (0..page.len()).all(|at| word_is_alike(&page, &run, at, numbers_vary))
}

fn word_is_alike(page: &[&str], run: &[&str], at: usize, numbers_vary: bool) -> bool {
    let (written, real) = (page[at], run[at]);
    let is_number = |word: &str| word.parse::<f64>().is_ok();
    let is_process = at > 0 && ["process", "pid"].contains(&page[at - 1]);
    let is_size = page
        .get(at + 1)
        .is_some_and(|unit| ["MiB", "KiB", "ms"].contains(unit));
    let may_vary = numbers_vary || is_process || is_size;
    written == real
        || (may_vary && is_number(written) && is_number(real))
        || KINDS.iter().any(|is| is(written) && is(real))
        || names_a_number(written, real)
}

/// Forms of words that differ from run to run.
const KINDS: [fn(&str) -> bool; 5] = [is_duration, is_date, is_time, is_uuid, is_port];

fn bare(word: &str) -> &str {
    word.trim_matches(|c: char| "(),;.".contains(c))
}

fn is_duration(word: &str) -> bool {
    let word = bare(word);
    let units = ["ms", "s", "m", "h", "d"];
    word.starts_with(|c: char| c.is_ascii_digit())
        && units.iter().any(|unit| {
            word.strip_suffix(unit)
                .is_some_and(|number| number.parse::<f64>().is_ok())
        })
}

fn is_date(word: &str) -> bool {
    let parts: Vec<&str> = bare(word).split('-').collect();
    parts.iter().map(|part| part.len()).eq([4, 2, 2])
        && parts.concat().bytes().all(|byte| byte.is_ascii_digit())
}

fn is_time(word: &str) -> bool {
    let word = bare(word).trim_end_matches('Z');
    word.split(':').map(str::len).eq([2, 2, 2])
}

fn is_uuid(word: &str) -> bool {
    bare(word).split('-').map(str::len).eq([8, 4, 4, 4, 12])
}

/// A port of the loopback that the kernel chose.
fn is_port(word: &str) -> bool {
    bare(word)
        .strip_prefix("127.0.0.1:")
        .is_some_and(|port| port.parse::<u16>().is_ok())
}

/// The same text around a number that differs: a name in an abstract namespace, a metric, a batch.
fn names_a_number(written: &str, real: &str) -> bool {
    let prefixes = ["unix-abstract:raddle-", "pid=", "b-"];
    prefixes
        .iter()
        .any(|prefix| written.starts_with(prefix) && real.starts_with(prefix))
}

/// The processes in the output of `ps -o pid,ppid,args`, each with its ancestors instead of their
/// numbers.
fn ancestry(lines: &[String]) -> Vec<String> {
    let process = |line: &String| {
        let (pid, rest) = line.trim_start().split_once(' ')?;
        let (parent, args) = rest.trim_start().split_once(' ')?;
        Some((pid.to_owned(), (parent.to_owned(), args.to_owned())))
    };
    let processes: BTreeMap<String, (String, String)> = lines.iter().filter_map(process).collect();
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

#[test]
fn ignores_what_differs_from_run_to_run_and_nothing_else() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let is_same = |page: &str, run: &str| {
        compare("raddle", &Ids::default(), &lines(page), &lines(run)).is_some()
    };
    assert!(is_same("took 1.0s", "took   340ms"));
    assert!(is_same("55 by process 12", "55 by process 99"));
    assert!(!is_same("55 by process 12", "56 by process 12"));
    assert!(is_same("a\n…\nz", "a\nb\nc\nz"));
    assert!(!is_same("a\n…\nz", "a\nb"));
    assert!(is_same("error: no such…", "error: no such file"));
    assert!(!is_same("1 completed", "2 completed"));
    let (page, run) = ("1794777747965382656", "1794777747965382999");
    let ids = compare("raddle", &Ids::default(), &lines(page), &lines(run)).unwrap();
    assert_eq!(
        ids.to_run("raddle logs 7965382656"),
        "raddle logs 7965382999"
    );
}
