//! `cargo xtask lint-words`: the rules of `docs/glossary.md` that a program can check. It reads
//! files as text and changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::{Command, ExitCode},
};

/// Words that the project does not use, with the words to use instead.
const BANNED: &[(&str, &str)] = &[
    ("whoever", "name the component"),
    ("nobody", "name the component"),
    ("somebody", "name the component"),
    ("anybody", "name the component"),
    ("himself", "name the component"),
    ("shall", "must"),
    ("heed", "obey, or name what happens"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("amiss", "wrong"),
    ("for want of", "without"),
    ("the way of", "lifecycle"),
    ("is told", "receives"),
    ("folder", "directory"),
    ("folders", "directories"),
    ("a directory of its own", "its own directory"),
    ("heart", "lease renewer, or heartbeat"),
    ("pulse", "heartbeat"),
    ("pacemaker", "lease renewer"),
    ("bell", "notifier"),
    ("tether", "liveness lock"),
    ("ward", "child"),
    ("wards", "children"),
    ("guest", "client"),
    ("guests", "clients"),
    ("door", "acceptor, or entry point"),
    ("gate", "authorizer, or check"),
    ("cradle", "fork server"),
    ("nursery", "fork server"),
    ("leash", "parent link"),
    ("herald", "launch command"),
    ("grief", "launch failure"),
    ("heir", "successor"),
    ("forsake", "abandon"),
    ("bequeath", "hand over"),
    ("bequest", "state that is handed over"),
    ("vitals", "worker stats"),
    ("newborn", "forked process"),
    ("mourn", "drain"),
    ("whosoever", "name the component"),
];

/// Names of types that the vocabulary has replaced, with the names to use instead.
const BANNED_TYPES: &[(&str, &str)] = &[
    ("Fence", "AttemptId"),
    ("Tally", "AttemptCounters"),
    ("Heart", "LeaseRenewer"),
    ("Pulse", "LeaseStatus"),
    ("Pacemaker", "LeaseRenewer"),
    ("Chest", "RenewerCache"),
    ("Beats", "Heartbeat"),
    ("Vitals", "WorkerStats"),
    ("Bell", "Notifier"),
    ("Sweep", "Reaper"),
    ("Scribe", "DbWriter"),
    ("Errand", "DetachedJob"),
    ("Demand", "QueueStats"),
    ("Agenda", "DueItems"),
    ("Doubts", "UnconfirmedCompletions"),
    ("Equipment", "SlotContext"),
    ("Occupant", "SlotTask"),
    ("News", "SlotEvent"),
    ("Dialogue", "reply parser"),
    ("Heard", "ParsedOutput"),
    ("Heeded", "AckedOffset"),
    ("Ledger", "CompletionBatcher"),
    ("Haste", "ShutdownDeadline"),
    ("Forsake", "Abandon"),
    ("Standstill", "SuspendGuard"),
    ("Standing", "EndpointHealth, or another noun"),
    ("Cradle", "ForkServer"),
    ("Nursery", "ForkServer"),
    ("Nest", "ForkServer"),
    ("Newborn", "StartParams"),
    ("Ward", "OneShotRunner"),
    ("Legacy", "StartParams"),
    ("Leash", "ParentLink"),
    ("Roster", "WorkerTable"),
    ("Seat", "IdleRunner"),
    ("Said", "WorkerEvent"),
    ("Parting", "ExitKind"),
    ("Grief", "LaunchFailure"),
    ("Brake", "CrashLoopBackoff"),
    ("Charter", "SpawnPolicy"),
    ("Ceiling", "ResourceLimits"),
    ("Herald", "ManagerCommand"),
    ("Wish", "SpawnRequest"),
    ("Misfit", "ParamError"),
    ("Happening", "HealthEvent"),
    ("Blame", "ErrorClass"),
    ("Unmet", "Unconnected"),
    ("Manner", "Transport"),
    ("Parcel", "CallRequest"),
    ("Door", "Acceptor"),
    ("Gate", "Authorizer"),
    ("Guests", "ConnectionLimiter"),
    ("Visit", "GrpcConnection"),
    ("Crew", "RoutineThreads"),
    ("Announced", "MessageLimits"),
    ("Recipe", "CredentialSource"),
    ("Trail", "SymlinkChain"),
    ("Stamp", "FileFingerprint"),
    ("Told", "Snapshot"),
    ("Seen", "Cache"),
    ("Crosses", "RoutineValue"),
    ("Tells", "RoutineError"),
    ("Facets", "GeneratedFns"),
    ("Given", "RoutineInput"),
    ("Deed", "a noun of the mechanism"),
    ("Place", "a noun of the mechanism"),
];

/// Parts of file and module names that say nothing, besides the banned words.
const BANNED_FILES: &[&str] = &[
    "brake",
    "charter",
    "chest",
    "departure",
    "errand",
    "estate",
    "hearsay",
    "legacy",
    "life",
    "nest",
    "roster",
    "scribe",
    "seat",
    "standing",
    "way",
];

/// Bare verbs and prepositions that say nothing as the name of a function.
const BARE_NAMES: &[&str] = &[
    "of", "look", "hear", "tell", "ask", "leave", "at", "here", "own", "settle",
];

/// Words that must not begin a sentence, because its subject is a named component.
const BANNED_STARTS: &[(&str, &str)] = &[
    ("Who ", "name the component"),
    ("What ", "name the component, or describe the item"),
    ("Else ", "Otherwise"),
    ("Else,", "Otherwise"),
];

/// Beginnings of function names that are half a sentence.
const BANNED_NAME_STARTS: &[&str] = &["what_", "who_", "whoever_", "nobody_", "somebody_"];

/// Type names that may occur once per module instead of once per crate.
const SHARED_TYPE_NAMES: &[&str] = &["Error", "Result", "Config", "Builder", "State", "Options"];

/// Files that quote the words: this list, its documentation, and third-party texts.
const EXEMPT: &[&str] = &["xtask/src/lint_words.rs", "docs/glossary.md", "Cargo.lock"];
/// File endings that are checked.
const ENDINGS: &[&str] = &[
    ".rs",
    ".lua",
    ".md",
    ".toml",
    ".snap",
    ".py",
    ".sh",
    ".yaml",
    ".yml",
    ".proto",
    ".service",
    "Dockerfile",
];

/// Runs the check as the command `lint-words`.
pub(crate) fn run() -> ExitCode {
    if check() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Checks all tracked files and prints every finding. Returns whether there is none.
pub(crate) fn check() -> bool {
    println!("\n==> words");
    let listed = match Command::new("git").args(["ls-files"]).output() {
        Ok(output) if output.status.success() => output.stdout,
        _ => {
            eprintln!("xtask: cannot list the files of the repository with git");
            return false;
        }
    };
    let mut findings = Vec::new();
    let mut types = BTreeMap::<(String, String), BTreeSet<String>>::new();
    for path in String::from_utf8_lossy(&listed).lines() {
        if EXEMPT.contains(&path) || !ENDINGS.iter().any(|ending| path.ends_with(ending)) {
            continue;
        }
        // A deleted file is listed until the deletion is committed.
        let Ok(text) = fs::read_to_string(Path::new(path)) else {
            continue;
        };
        findings.extend(banned_file_name(path));
        findings.extend(banned_words(path, &text));
        findings.extend(banned_starts(path, &text));
        findings.extend(banned_message_starts(path, &text));
        findings.extend(bare_names(path, &text));
        findings.extend(banned_types(path, &text));
        if let Some(package) = package_of_source(path) {
            for name in defined_types(&text) {
                let key = (package.to_owned(), name.to_owned());
                types.entry(key).or_default().insert(path.to_owned());
            }
        }
    }
    for ((package, name), files) in types {
        if files.len() > 1 && !SHARED_TYPE_NAMES.contains(&name.as_str()) {
            let files = files.into_iter().collect::<Vec<_>>().join(", ");
            findings.push(format!("{package}: type {name} is defined in {files}"));
        }
    }
    findings.iter().for_each(|finding| println!("{finding}"));
    println!("{} findings", findings.len());
    findings.is_empty()
}

/// A finding if a file or one of its directories has a banned name.
fn banned_file_name(path: &str) -> Option<String> {
    let is_banned = |part: &str| {
        let words = part.split(['_', '-']).collect::<Vec<_>>();
        BANNED.iter().any(|(word, _)| words.contains(word)) || BANNED_FILES.contains(&part)
    };
    let stem = path.split('.').next().unwrap_or(path);
    let part = stem.split('/').find(|part| is_banned(part))?;
    path.ends_with(".rs")
        .then(|| format!("{path}: {part} (use: a name that says what the file holds)"))
}

/// Every line with a banned word, as `path:line: word (use: other)`.
fn banned_words(path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.to_lowercase();
        for (word, instead) in BANNED {
            if has_word(&line, word) && !is_quoted_user(&line, word) {
                findings.push(format!("{path}:{}: {word} (use: {instead})", index + 1));
            }
        }
    }
    findings
}

/// Every comment or paragraph with a sentence that begins with a pronoun for a component. Questions
/// are allowed.
fn banned_starts(path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let is_prose = path.ends_with(".md");
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let comment = ["//! ", "/// ", "// ", "-- ", "# "]
            .iter()
            .find_map(|start| line.strip_prefix(start));
        let Some(prose) = comment.or(is_prose.then_some(line)) else {
            continue;
        };
        if prose.contains('?') {
            continue;
        }
        for (start, instead) in BANNED_STARTS {
            let is_later = [". ", ": "]
                .iter()
                .any(|end| prose.contains(&format!("{end}{start}")));
            if prose.starts_with(start) || is_later {
                let start = start.trim_end();
                findings.push(format!("{path}:{}: {start} … (use: {instead})", index + 1));
            }
        }
    }
    findings
}

/// Every message in a string literal that begins with a pronoun for a component.
fn banned_message_starts(path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    if !path.ends_with(".rs") && !path.ends_with(".py") {
        return findings;
    }
    for (index, line) in text.lines().enumerate() {
        if line.contains('?') {
            continue;
        }
        for (start, instead) in BANNED_STARTS {
            let capitalized = format!("\"{start}");
            if line.contains(&capitalized) || line.contains(&capitalized.to_lowercase()) {
                let start = start.trim_end();
                findings.push(format!(
                    "{path}:{}: \"{start} … (use: {instead})",
                    index + 1
                ));
            }
        }
    }
    findings
}

/// Every function with a bare verb or half a sentence as its name.
fn bare_names(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some((_, rest)) = line.split_once("fn ") else {
            continue;
        };
        let end = rest.find(|character: char| !character.is_alphanumeric() && character != '_');
        let name = &rest[..end.unwrap_or(0)];
        let is_half_sentence = BANNED_NAME_STARTS
            .iter()
            .any(|start| name.starts_with(start));
        if BARE_NAMES.contains(&name) || is_half_sentence {
            findings.push(format!(
                "{path}:{}: fn {name} (use: verb and object; for a test, its behaviour)",
                index + 1
            ));
        }
    }
    findings
}

/// Every definition of a type under a name that the vocabulary has replaced.
fn banned_types(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    let banned = |name: &str| BANNED_TYPES.iter().find(|(banned, _)| *banned == name);
    defined_types(text)
        .filter_map(banned)
        .map(|(name, instead)| format!("{path}: type {name} (use: {instead})"))
        .collect()
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let is_part = |character: char| character.is_alphanumeric();
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// `nobody` is also the name of a user.
fn is_quoted_user(line: &str, word: &str) -> bool {
    word == "nobody"
        && ["\"nobody\"", "`nobody`", "nobody:", "nobody's id"]
            .iter()
            .any(|user| line.contains(user))
}

/// The crate of a source file that is not a test. The programs of `xtask` are crates too.
fn package_of_source(path: &str) -> Option<&str> {
    let is_source = |rest: &str| rest.ends_with(".rs") && !rest.contains("tests");
    if let Some(rest) = path.strip_prefix("xtask/src/") {
        let program = rest.split_once('/').map_or("xtask", |(program, _)| program);
        return is_source(rest).then_some(program);
    }
    let (package, rest) = path.strip_prefix("crates/")?.split_once("/src/")?;
    is_source(rest).then_some(package)
}

/// The names behind `struct`, `enum`, `trait` and `union` at the start of a line.
fn defined_types(text: &str) -> impl Iterator<Item = &str> {
    // Unit tests come last in a file.
    let code = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(text);
    code.lines().filter_map(|line| {
        let item = match line.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1.trim_start(),
            Some(rest) => rest.trim_start(),
            None => line,
        };
        let (keyword, rest) = item.split_once(' ')?;
        matches!(keyword, "struct" | "enum" | "trait" | "union").then_some(())?;
        let end = rest.find(|character: char| !character.is_alphanumeric());
        Some(&rest[..end.unwrap_or(rest.len())])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_banned_words_and_not_parts_of_others() {
        let text = "a heedless commender\nNobody knows.\nuser \"nobody\"\n";
        assert_eq!(
            banned_words("a.md", text),
            ["a.md:2: nobody (use: name the component)"]
        );
    }

    #[test]
    fn finds_pronouns_that_begin_a_sentence() {
        let text =
            "/// What it holds.\nlet a = 1; // none\n// One. Who waits?\n// One. Else, two.\n";
        assert_eq!(
            banned_starts("a.rs", text),
            [
                "a.rs:1: What … (use: name the component, or describe the item)",
                "a.rs:4: Else, … (use: Otherwise)"
            ]
        );
    }

    #[test]
    fn finds_pronouns_that_begin_a_message() {
        let text = "println!(\"who waits\");\nlet a = \"What now?\";\nlet b = \"no one\";\n";
        assert_eq!(
            banned_message_starts("a.rs", text),
            ["a.rs:1: \"Who … (use: name the component)"]
        );
    }

    #[test]
    fn finds_banned_file_names() {
        assert!(banned_file_name("crates/a/src/leash.rs").is_some());
        assert!(banned_file_name("crates/a/src/bell/mod.rs").is_some());
        assert_eq!(banned_file_name("crates/a/src/notify.rs"), None);
    }

    #[test]
    fn finds_banned_types() {
        let text = "pub(crate) struct Leash {\n}\nenum Notifier {}\n";
        assert_eq!(
            banned_types("a.rs", text),
            ["a.rs: type Leash (use: ParentLink)"]
        );
    }

    #[test]
    fn finds_names_that_say_nothing() {
        let text = "pub(super) fn of(a: A) {}\nfn what_is_left() {}\nfn claim() {}\n";
        assert_eq!(bare_names("a.rs", text).len(), 2);
    }

    #[test]
    fn finds_types_outside_of_unit_tests() {
        let text = "pub struct A;\npub(crate) enum B {\n}\ntrait C<T> {}\n#[cfg(test)]\nmod tests {\nstruct D;\n}";
        assert_eq!(defined_types(text).collect::<Vec<_>>(), ["A", "B", "C"]);
    }

    #[test]
    fn knows_the_package_of_a_file() {
        let package = package_of_source("crates/raddle-model/src/spec/mod.rs");
        assert_eq!(package, Some("raddle-model"));
        assert_eq!(
            package_of_source("crates/raddle-model/src/spec/tests.rs"),
            None
        );
        assert_eq!(package_of_source("xtask/src/bench/run.rs"), Some("bench"));
        assert_eq!(package_of_source("xtask/src/main.rs"), Some("xtask"));
    }
}
