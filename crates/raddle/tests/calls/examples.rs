//! The examples do what they say.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The programs that a document prints as a whole, and the example that each is.
const PRINTED: [(&str, &str); 6] = [
    ("docs/how-to/calls.md", "countdown"),
    ("docs/how-to/handlers.md", "add"),
    ("docs/start/first-function.md", "sum"),
    ("docs/start/first-pool.md", "call"),
    ("docs/tutorials/many-machines.md", "machines"),
    ("docs/tutorials/rust-service.md", "primes"),
];

fn program(example: &str) -> PathBuf {
    // Cargo builds examples with the tests, beside them.
    std::env::current_exe()
        .unwrap()
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples")
        .join(example)
}

/// What an example says, if it comes to a good end.
fn said_by(example: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    said_in(directory.path(), example, &[])
}

fn said_in(directory: &Path, example: &str, args: &[&str]) -> String {
    let output = Command::new(program(example))
        .args(args)
        .current_dir(directory)
        .output();
    let output = output.expect("`cargo test --examples` has built it");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{words}");
    said
}

#[test]
fn a_worker_that_looks_after_itself_is_there_again() {
    let said = said_by("resilient");
    assert_eq!(said.lines().next(), Some("the call is lost"), "{said}");
    let end = "the same worker is there again, in another process\nit is found as that process\n";
    assert!(said.ends_with(end), "{said}");
}

#[test]
fn a_worker_that_is_made_by_hand_joins_a_pool() {
    assert_eq!(
        said_by("by_hand"),
        "9 bytes\ntwo\nwords\n-42\n'many' is no number\n"
    );
}

/// A program without its comments, and without what is only layout.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| {
        if line.trim_start().starts_with("//") {
            ""
        } else {
            line
        }
    });
    let lines = lines.map(|line| line.split_once("  // ").map_or(line, |(code, _)| code));
    lines
        .flat_map(str::chars)
        .filter(|letter| !letter.is_whitespace())
        .collect()
}

#[test]
fn every_program_that_is_printed_as_a_whole_is_an_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let mut documents = vec!["README.md".to_owned()];
    for part in ["start", "tutorials", "how-to", "reference", "explanation"] {
        let Ok(entries) = std::fs::read_dir(root.join("docs").join(part)) else {
            continue;
        };
        for entry in entries {
            let name = entry.unwrap().file_name().into_string().unwrap();
            documents.extend(name.ends_with(".md").then(|| format!("docs/{part}/{name}")));
        }
    }
    let mut found = Vec::new();
    for document in &documents {
        let text = read(root.join(document));
        let blocks = text
            .split("```rust")
            .skip(1)
            .filter_map(|block| block.split_once('\n')?.1.split_once("```"));
        for (block, _) in blocks.filter(|(block, _)| block.contains("fn main()")) {
            let is_it = |example: &&str| {
                code(&read(
                    root.join("crates/raddle/examples")
                        .join(format!("{example}.rs")),
                )) == code(block)
            };
            let examples = PRINTED
                .iter()
                .filter(|(of, _)| of == document)
                .map(|(_, example)| *example);
            let example = examples.into_iter().find(|example| is_it(example));
            found.push((
                document.as_str(),
                example.unwrap_or_else(|| panic!("{document} prints what is no example:\n{block}")),
            ));
        }
    }
    found.sort_unstable();
    let mut printed = PRINTED;
    printed.sort_unstable();
    assert_eq!(found, printed);
}

/// `machines` is run on two machines, by what README.md shows of it.
#[test]
fn programs_that_are_printed_run() {
    let sums = |said: String| {
        said.lines()
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(sums(said_by("call")), ["55", "5050", "500500"]);
    assert_eq!(said_by("countdown"), "3\n2\n1\n");
    for (example, results) in [("sum", &["55", "5050", "500500"][..]), ("add", &["3"])] {
        let directory = tempfile::tempdir().unwrap();
        said_in(directory.path(), example, &["worker", "start"]);
        assert_eq!(sums(said_in(directory.path(), example, &[])), results);
        said_in(directory.path(), example, &["worker", "stop", "--all"]);
    }
}
