//! What a container says, on its way to people. Pure.
//!
//! A task can write to its worker's standard error, so whatever comes from there may be a task's: each line says which container it is from,
//! moves nobody's cursor, and there is an end to it.

/// What has come of a line.
#[derive(Debug, Default)]
pub(super) struct OutputLine(Vec<u8>);

/// What one container says on its standard error.
#[derive(Debug)]
pub(super) struct ContainerOutput {
    line: OutputLine,
    /// How many bytes of it people are still shown.
    left: usize,
}

/// A line that is longer is passed on in pieces.
const LONGEST_LINE: usize = 16 << 10;
/// Workers say a few lines in their lives.
const BUDGET: usize = 1 << 20;

impl OutputLine {
    /// Adds what has come, and passes on the lines that are whole.
    pub(super) fn take(&mut self, bytes: &[u8], mut to: impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.0.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.0.len() >= LONGEST_LINE {
                to(&std::mem::take(&mut self.0));
            }
        }
    }

    fn rest(&mut self, mut to: impl FnMut(&[u8])) {
        if !self.0.is_empty() {
            to(&std::mem::take(&mut self.0));
        }
    }
}

impl Default for ContainerOutput {
    fn default() -> Self {
        Self {
            line: OutputLine::default(),
            left: BUDGET,
        }
    }
}

impl ContainerOutput {
    /// Adds what has come from the container `name`, and gives `to` what people are shown of it, a line each.
    pub(super) fn take(&mut self, name: &str, bytes: &[u8], mut to: impl FnMut(String)) {
        let Self { line, left } = self;
        line.take(bytes, |line| {
            shown(name, line, left).into_iter().for_each(&mut to)
        });
    }

    /// A line that will not be ended any more.
    pub(super) fn rest(&mut self, name: &str, mut to: impl FnMut(String)) {
        let Self { line, left } = self;
        line.rest(|line| shown(name, line, left).into_iter().for_each(&mut to));
    }
}

/// What is shown of a line, and once that the rest is not.
fn shown(name: &str, line: &[u8], left: &mut usize) -> Option<String> {
    if *left == 0 {
        return None;
    }
    let text = tame(String::from_utf8_lossy(line).trim_end_matches(['\n', '\r']));
    // Counted as it is shown: what is escaped is longer, and an empty line has its name.
    let shown = format!("{name}: {text}");
    match left.checked_sub(shown.len() + 1) {
        Some(now) => {
            *left = now;
            Some(shown)
        }
        None => {
            *left = 0;
            Some(format!(
                "{name}: has said more than {} MiB: the rest is left out",
                BUDGET >> 20
            ))
        }
    }
}

/// Without what a terminal would take for an order, or would show in another place.
fn tame(text: &str) -> String {
    let mut tame = String::with_capacity(text.len());
    for c in text.chars() {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        match c {
            '\t' => tame.push(c),
            c if c.is_control() || turns => tame.extend(c.escape_default()),
            c => tame.push(c),
        }
    }
    tame
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(heard: &mut ContainerOutput, bytes: &[u8]) -> Vec<String> {
        let mut seen = Vec::new();
        heard.take("raddle-x", bytes, |line| seen.push(line));
        seen
    }

    #[test]
    fn lines_are_put_together() {
        let (mut line, mut seen) = (OutputLine::default(), Vec::new());
        for piece in ["ab", "c\nd", "e\n\n", "rest"] {
            line.take(piece.as_bytes(), |whole| {
                seen.push(String::from_utf8_lossy(whole).into_owned())
            });
        }
        line.rest(|whole| seen.push(String::from_utf8_lossy(whole).into_owned()));
        assert_eq!(seen, ["abc\n", "de\n", "\n", "rest"]);
        line.take(&[b'x'; LONGEST_LINE], |_| seen.clear());
        assert_eq!(
            seen, [""; 0],
            "one that does not end is passed on all the same"
        );
    }

    #[test]
    fn every_line_says_whose_it_is() {
        let mut heard = ContainerOutput::default();
        assert_eq!(
            hear(&mut heard, b"one\r\n\ntwo\nthr"),
            ["raddle-x: one", "raddle-x: ", "raddle-x: two"]
        );
        heard.rest("raddle-x", |line| assert_eq!(line, "raddle-x: thr"));
        // Whatever a terminal would take for the end of a line, or an order.
        let forged = "a\rERROR\u{1b}[2K\u{85}\u{2028}\u{202e}b\tc\u{fc}\n";
        let tame = "raddle-x: a\\rERROR\\u{1b}[2K\\u{85}\\u{2028}\\u{202e}b\tc\u{fc}";
        assert_eq!(hear(&mut heard, forged.as_bytes()), [tame]);
    }

    #[test]
    fn there_is_an_end_to_it() {
        for line in [&b"\n"[..], b"\x1b\x1b\x1b\n", &[b'x'; LONGEST_LINE]] {
            let mut heard = ContainerOutput::default();
            let flood = line.repeat(2 * BUDGET / line.len());
            let seen = hear(&mut heard, &flood);
            let bytes: usize = seen.iter().map(|line| line.len() + 1).sum();
            assert!(bytes <= BUDGET + 100, "{bytes}");
            assert_eq!(
                seen.last().unwrap(),
                "raddle-x: has said more than 1 MiB: the rest is left out"
            );
            assert_eq!(
                seen.iter().filter(|line| line.contains("left out")).count(),
                1
            );
            assert_eq!(hear(&mut heard, &flood), [""; 0]);
        }
    }
}
