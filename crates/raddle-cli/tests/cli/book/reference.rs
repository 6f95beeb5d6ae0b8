//! The reference of the command line is generated, and is the one of this program.

#[path = "../../../examples/reference/markdown.rs"]
mod markdown;

use super::read;

/// With fewer features the program has fewer commands.
#[cfg(all(feature = "kubernetes", feature = "otlp", feature = "tls"))]
#[test]
fn the_reference_is_that_of_this_program() {
    let is_current = read("docs/reference/cli.md") == markdown::page(raddle_cli::command());
    assert!(
        is_current,
        "docs/reference/cli.md is out of date: run 'cargo xtask reference'"
    );
}

#[test]
fn the_reference_lists_exit_codes_and_variables_that_help_names() {
    let (codes, variables) = (
        read("docs/reference/exit-codes.md"),
        read("docs/reference/environment.md"),
    );
    for code in [
        "0", "1", "2", "101", "124", "125", "126", "127", "130", "137",
    ] {
        assert!(
            codes.contains(&format!("| {code} ")),
            "exit code {code} is not listed"
        );
    }
    let page = markdown::page(raddle_cli::command());
    for row in page.lines().filter(|line| line.starts_with("| `-")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        if let [_, variable, _] = cells[..]
            && variable.starts_with('`')
        {
            assert!(variables.contains(variable), "{variable} is not listed");
        }
    }
}

/// The names in code font in the first cells of the tables below a heading.
fn names_below(page: &str, heading: &str) -> Vec<String> {
    let text = read(page);
    let (_, section) = text.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let cells = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once(" |"));
    let names: Vec<String> = cells
        .flat_map(|(cell, _)| {
            cell.split('`')
                .step_by(2)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .map(|name| name.split('{').next().unwrap().to_owned())
        .filter(|name| !name.trim_matches([',', ' ']).is_empty())
        .collect();
    assert!(!names.is_empty(), "{page} has no table below {heading}");
    names
}

#[test]
fn how_an_attempt_ends_is_named_as_in_the_program() {
    let code = read("crates/raddle-model/src/exit.rs");
    for kind in names_below("docs/reference/tasks.md", "How an attempt ends") {
        let variant: String = kind
            .split('_')
            .map(|word| word[..1].to_uppercase() + &word[1..])
            .collect();
        let is_known = code.lines().any(|line| {
            line.trim_start()
                .strip_prefix(&variant)
                .is_some_and(|rest| [",", " {"].contains(&rest))
        });
        assert!(
            kind == "report.exit.kind" || is_known,
            "there is no exit '{kind}'"
        );
    }
}

#[test]
fn metrics_are_named_as_in_the_program() {
    let grep = std::process::Command::new("git")
        .args([
            "grep",
            "-hoE",
            "\"(raddle|warm_spawner|worker|queue)_[a-z_]+\"",
            "--",
            "crates/*/src/*",
        ])
        .current_dir(super::root())
        .output()
        .unwrap();
    let code = String::from_utf8(grep.stdout).unwrap();
    for part in [
        "Workers",
        "Spawners",
        "Groups",
        "Pool workers",
        "Waiting tasks",
        "Traces",
    ] {
        for name in names_below("docs/reference/metrics.md", part) {
            let is_suffix = name.starts_with('_') || name.starts_with(", ");
            let is_variable = name.starts_with(|first: char| first.is_uppercase());
            let is_known = code.contains(&format!("\"{name}\""));
            assert!(
                is_suffix || is_variable || is_known,
                "there is no metric '{name}'"
            );
        }
    }
}
