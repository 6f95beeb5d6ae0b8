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
