//! The chart of the benchmarks: each measured ratio beside its floor, which is 1.

use std::fmt::Write;

use super::svg::{STYLE, escape};

/// A row of the table of results, by the beginning of its first cell, and its name in the chart.
const ROWS: [(&str, &str); 7] = [
    (
        "calls 100 at a time",
        "calls, 100 at a time vs. gRPC (tonic)",
    ),
    ("1 MiB echo", "calls with 1 MiB vs. gRPC (tonic)"),
    (
        "calls one after the other",
        "calls, one after the other vs. gRPC (tonic)",
    ),
    (
        "redis: claim + finish",
        "Redis: claim + finish vs. a bare consumer loop",
    ),
    ("redis: submit", "Redis: submit vs. pipelined XADD"),
    (
        "tasks through a worker",
        "SQLite: tasks run vs. bare process spawns",
    ),
    (
        "durable submit",
        "SQLite: durable submit vs. bare synced inserts",
    ),
];
const LEFT: f64 = 430.0;
const WIDTH: f64 = 860.0;
const ROW: f64 = 34.0;
const TOP: f64 = 58.0;

/// Draws the results of `docs/explanation/benchmarks.md`.
pub(super) fn draw(page: &str) -> Result<String, String> {
    let results = page
        .split_once("\n## Results")
        .ok_or("the page of benchmarks has no section on results")?
        .1;
    let mut bars = Vec::new();
    for (row, name) in ROWS {
        let measured = results
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.split_once(" | "))
            .find(|(cell, _)| cell.starts_with(row))
            .and_then(|(_, rest)| rest.split(" | ").nth(1))
            .ok_or_else(|| format!("no result begins with '{row}'"))?;
        let number = measured.trim_start_matches('*');
        let end = number.find(|c: char| !c.is_ascii_digit() && c != '.');
        let ratio: f64 = number[..end.unwrap_or(number.len())]
            .parse()
            .map_err(|_| format!("the result '{measured}' does not begin with a ratio"))?;
        bars.push((name, ratio));
    }
    let most = bars
        .iter()
        .fold(1.0_f64, |most, (_, ratio)| most.max(*ratio));
    let scale = (WIDTH - LEFT - 70.0) / most;
    let height = TOP + ROW * bars.len() as f64 + 34.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" xml:space=\"preserve\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Benchmarks: throughput of Raddle relative to the floor of the machine\">\n<style>{STYLE}text{{fill:#57606a}}.n{{font-weight:bold;fill:#0969da}}@media(prefers-color-scheme:dark){{text{{fill:#9198a1}}.n{{fill:#58a6ff}}}}</style>\n"
    );
    let _ = writeln!(
        svg,
        "<text x=\"0\" y=\"18\">Throughput relative to the floor: the same work without Raddle, measured in the same run.</text>"
    );
    let floor = LEFT + scale;
    for (index, (name, ratio)) in bars.iter().enumerate() {
        let y = TOP + ROW * index as f64;
        let (text_y, width) = (y + 15.0, ratio * scale);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{text_y}\" text-anchor=\"end\">{}</text><rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"20\" rx=\"3\" fill=\"#1f6feb\"/><text class=\"n\" x=\"{:.1}\" y=\"{text_y}\">{ratio} ×</text>",
            LEFT - 12.0,
            escape(name),
            (LEFT + width).max(floor) + 8.0
        );
    }
    let _ = write!(
        svg,
        "<line x1=\"{floor:.1}\" x2=\"{floor:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"#d1242f\" stroke-width=\"2\" stroke-dasharray=\"4 3\"/>\n<text x=\"{floor:.1}\" y=\"{}\" text-anchor=\"middle\">floor = 1</text>\n</svg>\n",
        TOP - 10.0,
        height - 30.0,
        height - 12.0
    );
    Ok(svg)
}
