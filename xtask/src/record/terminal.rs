//! The recorded terminal: commands that are really run, and their output, as an animated SVG.

use std::{
    env,
    fmt::Write,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use super::svg::{STYLE, escape};

/// The commands, in a directory of their own.
const COMMANDS: [&str; 7] = [
    "raddle run --memory 100 -- python3 -c 'bytearray(300 << 20)'",
    "raddle submit --array 1-1000 --batch demo -- sh -c 'echo rendered {}' | tail -n 1",
    "raddle status",
    "raddle worker start",
    "raddle batch wait demo",
    "raddle logs last",
    "raddle worker stop --all",
];
/// The directory that the image shows.
const SHOWN: &str = "/tmp/tour";
const COLUMNS: usize = 84;
const LINE: f64 = 20.0;
const MARGIN: f64 = 16.0;
const BAR: f64 = 30.0;
/// How long a command stays alone on the screen before its output, and the output before the next
/// command, in seconds.
const TYPING: f64 = 0.9;
const READING: f64 = 1.1;

/// A line, whether it was typed, and when it appears.
struct Line {
    text: String,
    is_typed: bool,
    at: f64,
}

/// Runs the commands with this program as `raddle`.
pub(super) fn record(program: &Path) -> Result<String, String> {
    let directory = env::temp_dir().join(format!("raddle-record-{}", std::process::id()));
    let tour = directory.join("tour");
    fs::create_dir_all(&tour)
        .map_err(|error| format!("cannot make {}: {error}", tour.display()))?;
    let bin = program.parent().ok_or("the program has no directory")?;
    let path = format!("{}:{}", bin.display(), env::var("PATH").unwrap_or_default());
    let (mut lines, mut at) = (Vec::new(), 0.5);
    for command in COMMANDS {
        let output = Command::new("bash")
            .args(["-c", &format!("exec 2>&1; {command}")])
            .current_dir(&tour)
            .env("PATH", &path)
            .env_remove("QUEUE_URL")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("cannot run bash: {error}"))?;
        lines.push(Line {
            text: format!("$ {command}"),
            is_typed: true,
            at,
        });
        at += TYPING;
        let text = String::from_utf8_lossy(&output.stdout).replace(&*tour.to_string_lossy(), SHOWN);
        for text in text.lines() {
            lines.push(Line {
                text: text.to_owned(),
                is_typed: false,
                at,
            });
        }
        at += READING;
    }
    let _ = fs::remove_dir_all(&directory);
    Ok(draw(&lines))
}

fn draw(lines: &[Line]) -> String {
    let (width, height) = (
        2.0 * MARGIN + 8.43 * COLUMNS as f64,
        BAR + 2.0 * MARGIN + LINE * lines.len() as f64,
    );
    // Without support for animations every line is there from the beginning.
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" xml:space=\"preserve\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"A terminal session with Raddle\">\n<style>{STYLE}text{{fill:#e6edf3}}.c{{fill:#7ee787}}.e{{fill:#ffa198}}@keyframes s{{from{{opacity:0}}to{{opacity:1}}}}.l{{animation:s .05s backwards}}@media(prefers-reduced-motion:reduce){{.l{{animation:none}}}}</style>\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>\n"
    );
    for (index, colour) in ["#ff5f57", "#febc2e", "#28c840"].iter().enumerate() {
        let x = 20 + 20 * index;
        let _ = writeln!(
            svg,
            "<circle cx=\"{x}\" cy=\"18\" r=\"6\" fill=\"{colour}\"/>"
        );
    }
    for (index, line) in lines.iter().enumerate() {
        let y = BAR + MARGIN + LINE * (index as f64 + 0.7);
        let class = match line {
            Line { is_typed: true, .. } => "l c",
            Line { text, .. } if text.starts_with("raddle: task ") => "l e",
            _ => "l",
        };
        let text: String = line.text.chars().take(COLUMNS).collect();
        let _ = writeln!(
            svg,
            "<text class=\"{class}\" style=\"animation-delay:{:.1}s\" x=\"{MARGIN}\" y=\"{y:.0}\">{}</text>",
            line.at,
            escape(&text)
        );
    }
    svg.push_str("</svg>\n");
    svg
}
