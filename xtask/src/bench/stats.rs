//! Medians, ratios and requirements.

use std::{fmt, time::Duration};

/// A requirement and its measured value.
pub(crate) struct Requirement {
    name: &'static str,
    measured: f64,
    bound: Bound,
}

enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Requirement {
    pub(crate) fn at_least(name: &'static str, measured: f64, bound: f64) -> Self {
        Self {
            name,
            measured,
            bound: Bound::AtLeast(bound),
        }
    }

    pub(crate) fn at_most(name: &'static str, measured: f64, bound: f64) -> Self {
        Self {
            name,
            measured,
            bound: Bound::AtMost(bound),
        }
    }

    pub(crate) fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(bound) => self.measured >= bound,
            Bound::AtMost(bound) => self.measured <= bound,
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, bound) = match self.bound {
            Bound::AtLeast(bound) => ("at least", bound),
            Bound::AtMost(bound) => ("at most", bound),
        };
        let mark = if self.is_met() { "ok   " } else { "SHORT" };
        write!(
            f,
            "{mark} {:<64} {:>9.3}  ({word} {bound})",
            self.name, self.measured
        )
    }
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Prints the rounds of one measurement and returns their median.
pub(crate) fn print_rounds(name: &str, unit: &str, rounds: &[f64]) -> f64 {
    let list: Vec<String> = rounds.iter().map(|value| format!("{value:.2}")).collect();
    let middle = median(rounds);
    println!("{name:<52} {middle:>12.2} {unit:<6} [{}]", list.join(" "));
    middle
}

/// The median of the rounds' ratios.
pub(crate) fn ratio(ours: &[f64], floor: &[f64]) -> f64 {
    median(
        &ours
            .iter()
            .zip(floor)
            .map(|(ours, floor)| ours / floor)
            .collect::<Vec<_>>(),
    )
}

/// The number per second.
pub(crate) fn rate(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

pub(crate) fn micros(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}
