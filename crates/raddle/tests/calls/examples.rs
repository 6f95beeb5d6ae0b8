//! Runs the examples.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Programs that the documentation prints, and the examples that they must equal.
const PRINTED: [(&str, &str); 6] = [
    ("docs/how-to/calls.md", "countdown"),
    ("docs/how-to/handlers.md", "add"),
    ("docs/start/first-function.md", "sum"),
    ("docs/start/first-pool.md", "call"),
    ("docs/tutorials/many-machines.md", "machines"),
    ("docs/tutorials/rust-service.md", "primes"),
];

fn program(example: &str) -> PathBuf {
    // Cargo builds the examples beside the tests.
    std::env::current_exe()
        .unwrap()
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples")
        .join(example)
}

/// The output of an example that succeeds.
fn run_example(example: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    run_example_in(directory.path(), example, &[])
}

fn run_example_in(directory: &Path, example: &str, args: &[&str]) -> String {
    let output = Command::new(program(example))
        .args(args)
        .current_dir(directory)
        .output();
    let output = output.expect("the example is built: run `cargo test --examples`");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}{stderr}");
    stdout
}

#[test]
fn resilient_example_restarts_its_worker() {
    let stdout = run_example("resilient");
    assert_eq!(stdout.lines().next(), Some("the call is lost"), "{stdout}");
    let end = "the same worker is there again, in another process\nit is found as that process\n";
    assert!(stdout.ends_with(end), "{stdout}");
}

#[test]
fn by_hand_example_joins_a_pool() {
    assert_eq!(
        run_example("by_hand"),
        "9 bytes\ntwo\nwords\n-42\n'many' is no number\n"
    );
}

/// The code without comments and white space.
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

/// Other programs of the documentation are only compiled, as doctests.
#[test]
fn printed_programs_are_the_examples() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    for (document, example) in PRINTED {
        let text = read(root.join(document));
        let source = code(&read(
            root.join(format!("crates/raddle/examples/{example}.rs")),
        ));
        let mut blocks = text
            .split("```rust")
            .skip(1)
            .filter_map(|block| block.split_once('\n')?.1.split_once("```"));
        assert!(
            blocks.any(|(block, _)| code(block) == source),
            "{document} does not print the example {example}"
        );
    }
}

/// `machines` is run by the tutorial test with two hosts.
#[test]
fn documented_examples_run() {
    let sums = |stdout: String| {
        stdout
            .lines()
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(sums(run_example("call")), ["55", "5050", "500500"]);
    assert_eq!(run_example("countdown"), "3\n2\n1\n");
    for (example, results) in [("sum", &["55", "5050", "500500"][..]), ("add", &["3"])] {
        let directory = tempfile::tempdir().unwrap();
        run_example_in(directory.path(), example, &["worker", "start"]);
        assert_eq!(
            sums(run_example_in(directory.path(), example, &[])),
            results
        );
        run_example_in(directory.path(), example, &["worker", "stop", "--all"]);
    }
}
