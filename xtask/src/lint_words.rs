//! `cargo xtask lint-words`: the rules of `docs/glossary.md` that a program can check. It reads
//! files as text and changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::{Command, ExitCode},
};

/// Words of a register that the project does not use, with the word to use instead.
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
];

/// Bare verbs and prepositions that say nothing as the name of a function.
const BARE_NAMES: &[&str] = &[
    "of", "look", "hear", "tell", "ask", "leave", "at", "here", "own", "settle",
];

/// Words that begin no sentence: the subject of a sentence is a named component.
const BANNED_STARTS: &[(&str, &str)] = &[
    ("Who ", "name the component"),
    ("What ", "name the component, or describe the item"),
    ("Else ", "Otherwise"),
    ("Else,", "Otherwise"),
];

/// Type names that may occur once per module instead of once per crate.
const SHARED_TYPE_NAMES: &[&str] = &["Error", "Result", "Config", "Builder", "State", "Options"];

/// Files that quote the words: this list, its documentation, and third-party texts.
const EXEMPT: &[&str] = &["xtask/src/lint_words.rs", "docs/glossary.md", "Cargo.lock"];
const ENDINGS: &[&str] = &[".rs", ".lua", ".md", ".toml", ".snap"];

/// Prints every finding. Fails if there is one.
pub(crate) fn run() -> ExitCode {
    if check() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Returns whether all tracked files keep the rules. Prints what does not.
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
        // A file that was deleted and not committed yet is still listed.
        let Ok(text) = fs::read_to_string(Path::new(path)) else {
            continue;
        };
        findings.extend(banned_words(path, &text));
        findings.extend(banned_starts(path, &text));
        findings.extend(bare_names(path, &text));
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
/// may begin so.
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

/// Every function with a name that says nothing, or a name that is half a sentence.
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
        if BARE_NAMES.contains(&name) || name.starts_with("what_") || name.starts_with("who_") {
            findings.push(format!(
                "{path}:{}: fn {name} (use: verb and object; for a test, its behaviour)",
                index + 1
            ));
        }
    }
    findings
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

/// The package of a source file that is not a test.
fn package_of_source(path: &str) -> Option<&str> {
    let (package, rest) = path.strip_prefix("crates/")?.split_once("/src/")?;
    (rest.ends_with(".rs") && !rest.contains("tests")).then_some(package)
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
    }
}
