//! The numbers of passed and failed tests, from the summaries of the test runners.

use std::{iter::Sum, ops::Add};

/// Numbers of tests that ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed, timed out, or could not be started.
    pub(crate) failed: u64,
}

/// Reads `Summary [ 0.6s] 77 tests run: 75 passed (1 slow), 1 failed, 1 timed out, 0 skipped`.
pub(crate) fn nextest(output: &str) -> Count {
    let summary = |line: &str| {
        line.trim_start()
            .starts_with("Summary [")
            .then(|| line.rsplit_once(" run: "))?
            .map(|r| r.1.to_owned())
    };
    output
        .lines()
        .map(strip_colours)
        .filter_map(|line| summary(&line))
        .map(|items| parse_counts(&items, ','))
        .sum()
}

/// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; …`, one line per crate.
pub(crate) fn libtest(output: &str) -> Count {
    let result = |line: &str| {
        line.strip_prefix("test result: ")?
            .split_once(". ")
            .map(|r| r.1.to_owned())
    };
    output
        .lines()
        .map(strip_colours)
        .filter_map(|line| result(&line))
        .map(|items| parse_counts(&items, ';'))
        .sum()
}

/// Reads `12 passed, 1 failed, 2 errors in 3.21s`, the last line of pytest.
pub(crate) fn pytest(output: &str) -> Count {
    let summary = output.lines().rev().map(strip_colours).find_map(|line| {
        let line = line.trim_matches(['=', ' ']).to_owned();
        let (items, time) = line.rsplit_once(" in ")?;
        let is_summary = time.starts_with(|first: char| first.is_ascii_digit());
        is_summary.then(|| items.to_owned())
    });
    parse_counts(&summary.unwrap_or_default(), ',')
}

fn parse_counts(items: &str, separator: char) -> Count {
    let mut count = Count::default();
    for item in strip_parentheses(items).split(separator) {
        let Some((number, result)) = item.trim().split_once(' ') else {
            continue;
        };
        let Ok(number) = number.parse::<u64>() else {
            continue;
        };
        match result.trim() {
            "passed" => count.passed += number,
            "failed" | "exec failed" | "timed out" | "error" | "errors" => count.failed += number,
            _ => {}
        }
    }
    count
}

/// The text without its parentheses: `5 passed (1 slow, 1 leaky)` counts five tests.
fn strip_parentheses(text: &str) -> String {
    let mut depth = 0u32;
    text.chars()
        .filter(|c| match c {
            '(' => {
                depth += 1;
                false
            }
            ')' => {
                depth = depth.saturating_sub(1);
                false
            }
            _ => depth == 0,
        })
        .collect()
}

/// The line without ANSI escape sequences.
fn strip_colours(line: &str) -> String {
    let mut rest = line;
    let mut plain = String::with_capacity(line.len());
    while let Some((before, escape)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = escape
            .split_once(|c: char| c.is_ascii_alphabetic())
            .map_or("", |parts| parts.1);
    }
    plain + rest
}

impl Add for Count {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
        }
    }
}

impl Sum for Count {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Self::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(passed: u64, failed: u64) -> Count {
        Count { passed, failed }
    }

    #[test]
    fn reads_nextest_summaries() {
        for (line, expected) in [
            (
                "     Summary [   0.626s] 77 tests run: 77 passed, 0 skipped",
                count(77, 0),
            ),
            (
                "     Summary [   0.626s] 77 tests run: 75 passed, 2 failed, 0 skipped",
                count(75, 2),
            ),
            (
                "     Summary [   1.0s] 1 test run: 1 passed (1 slow, 1 leaky), 3 skipped",
                count(1, 0),
            ),
            (
                "     Summary [ 1.0s] 5/9 tests run: 2 passed (1 flaky), 1 failed, 1 timed out, 1 exec failed, 4 skipped",
                count(2, 3),
            ),
            (
                "\u{1b}[31;1m     Summary\u{1b}[0m [ 1.0s] \u{1b}[1m2\u{1b}[0m tests run: \u{1b}[1m2\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, 0 skipped",
                count(2, 0),
            ),
            ("        PASS [   0.006s] a test run: 3 passed", count(0, 0)),
            ("", count(0, 0)),
        ] {
            assert_eq!(nextest(line), expected, "{line}");
        }
    }

    #[test]
    fn sums_doctest_results() {
        let output = "running 3 tests\n\
             test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\n\
             test result: FAILED. 1 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        assert_eq!(libtest(output), count(3, 4));
    }
}
