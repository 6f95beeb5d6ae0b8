//! The number of crates of others that a user compiles. Each one delays the first task.

use std::collections::BTreeSet;

use crate::step;

/// A build, its maximum number of crates, and a crate that it must not contain.
const BUILDS: [(&str, &[&str], usize, Option<&str>); 2] = [
    // Thirty of them draw the screens of `raddle top`, three the pages of `raddle web`.
    ("the command line", &["--package", "raddle-cli"], 235, None),
    (
        "a program that calls pools",
        &[
            "--package",
            "raddle",
            "--no-default-features",
            "--features",
            "pool",
        ],
        115,
        Some("libsqlite3-sys"),
    ),
];

/// Checks the bound of every build, and prints the numbers.
pub(crate) fn check_number() -> bool {
    println!("\n==> number of crates");
    BUILDS
        .iter()
        .fold(true, |all, (name, args, most, without)| {
            let mut tree = step::cargo(&[
                "tree",
                "--locked",
                "--edges",
                "normal,build",
                "--prefix",
                "none",
            ]);
            let Ok(output) = tree.args(*args).output() else {
                return false;
            };
            let crates = distinct_crates(&String::from_utf8_lossy(&output.stdout));
            println!("{name}: {} of at most {most}", crates.len());
            let unwanted = without.filter(|name| {
                crates
                    .iter()
                    .any(|found| found.starts_with(&format!("{name} ")))
            });
            if let Some(name) = unwanted {
                println!("it compiles {name}, which it must not contain");
            }
            all && output.status.success() && crates.len() <= *most && unwanted.is_none()
        })
}

/// The distinct crates of others in the output of `cargo tree`, which prints `NAME VERSION …` per
/// line and may repeat a crate. Ours do not count: a split adds one, and costs nothing.
fn distinct_crates(tree: &str) -> BTreeSet<String> {
    let words = tree.lines().map(|line| {
        line.split_whitespace()
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    });
    words
        .filter(|name| !name.is_empty() && !name.starts_with("raddle"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_a_crate_of_others_once_for_each_version() {
        let tree = "raddle v0.1.0 (/far)\nsyn v2.0.1\nsyn v3.0.9\nsyn v3.0.9 (*)\n\nserde_derive v1.0.2 (proc-macro)\n";
        assert_eq!(distinct_crates(tree).len(), 3);
    }
}
