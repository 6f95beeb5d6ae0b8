//! `ContainerOutput`: forwards the stderr of a container to the log. Pure.
//!
//! A task can write to its worker's stderr, so the text is untrusted: each line names its
//! container, control characters are escaped, and the total size is limited.

/// An incomplete line.
#[derive(Debug, Default)]
pub(super) struct OutputLine(Vec<u8>);

/// The stderr of one container.
#[derive(Debug)]
pub(super) struct ContainerOutput {
    line: OutputLine,
    /// How many bytes may still be shown.
    left: usize,
}

/// Longer lines are split.
const MAX_LINE: usize = 16 << 10;
/// Most bytes per container. A worker itself logs a few lines.
const MAX_BYTES: usize = 1 << 20;

impl OutputLine {
    /// Adds bytes, and passes on complete lines.
    pub(super) fn push(&mut self, bytes: &[u8], mut to: impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.0.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.0.len() >= MAX_LINE {
                to(&std::mem::take(&mut self.0));
            }
        }
    }

    fn finish(&mut self, mut to: impl FnMut(&[u8])) {
        if !self.0.is_empty() {
            to(&std::mem::take(&mut self.0));
        }
    }
}

impl Default for ContainerOutput {
    fn default() -> Self {
        Self {
            line: OutputLine::default(),
            left: MAX_BYTES,
        }
    }
}

impl ContainerOutput {
    /// Adds bytes of the container `name`, and passes on lines to show.
    pub(super) fn push(&mut self, name: &str, bytes: &[u8], mut to: impl FnMut(String)) {
        let Self { line, left } = self;
        line.push(bytes, |line| {
            format_line(name, line, left).into_iter().for_each(&mut to)
        });
    }

    /// Passes on an incomplete last line.
    pub(super) fn finish(&mut self, name: &str, mut to: impl FnMut(String)) {
        let Self { line, left } = self;
        line.finish(|line| format_line(name, line, left).into_iter().for_each(&mut to));
    }
}

/// The text to show for a line. When the limit is reached, one last notice.
fn format_line(name: &str, line: &[u8], left: &mut usize) -> Option<String> {
    if *left == 0 {
        return None;
    }
    let text = escape(String::from_utf8_lossy(line).trim_end_matches(['\n', '\r']));
    // Counted as shown: escapes make lines longer, and empty lines have a name too.
    let shown = format!("{name}: {text}");
    match left.checked_sub(shown.len() + 1) {
        Some(now) => {
            *left = now;
            Some(shown)
        }
        None => {
            *left = 0;
            Some(format!(
                "{name}: wrote more than {} MiB: the rest is dropped",
                MAX_BYTES >> 20
            ))
        }
    }
}

/// Escapes characters that control a terminal or change the text direction.
fn escape(text: &str) -> String {
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

    fn push(output: &mut ContainerOutput, bytes: &[u8]) -> Vec<String> {
        let mut seen = Vec::new();
        output.push("raddle-x", bytes, |line| seen.push(line));
        seen
    }

    #[test]
    fn joins_pieces_to_lines() {
        let (mut line, mut seen) = (OutputLine::default(), Vec::new());
        for piece in ["ab", "c\nd", "e\n\n", "rest"] {
            line.push(piece.as_bytes(), |whole| {
                seen.push(String::from_utf8_lossy(whole).into_owned())
            });
        }
        line.finish(|whole| seen.push(String::from_utf8_lossy(whole).into_owned()));
        assert_eq!(seen, ["abc\n", "de\n", "\n", "rest"]);
        line.push(&[b'x'; MAX_LINE], |_| seen.clear());
        assert_eq!(seen, [""; 0], "a line without end is passed on too");
    }

    #[test]
    fn prefixes_and_escapes_every_line() {
        let mut output = ContainerOutput::default();
        assert_eq!(
            push(&mut output, b"one\r\n\ntwo\nthr"),
            ["raddle-x: one", "raddle-x: ", "raddle-x: two"]
        );
        output.finish("raddle-x", |line| assert_eq!(line, "raddle-x: thr"));
        // Characters that a terminal takes for a line end or a command.
        let forged = "a\rERROR\u{1b}[2K\u{85}\u{2028}\u{202e}b\tc\u{fc}\n";
        let tame = "raddle-x: a\\rERROR\\u{1b}[2K\\u{85}\\u{2028}\\u{202e}b\tc\u{fc}";
        assert_eq!(push(&mut output, forged.as_bytes()), [tame]);
    }

    #[test]
    fn limits_the_total_size() {
        for line in [&b"\n"[..], b"\x1b\x1b\x1b\n", &[b'x'; MAX_LINE]] {
            let mut output = ContainerOutput::default();
            let flood = line.repeat(2 * MAX_BYTES / line.len());
            let seen = push(&mut output, &flood);
            let bytes: usize = seen.iter().map(|line| line.len() + 1).sum();
            assert!(bytes <= MAX_BYTES + 100, "{bytes}");
            assert_eq!(
                seen.last().unwrap(),
                "raddle-x: wrote more than 1 MiB: the rest is dropped"
            );
            assert_eq!(
                seen.iter().filter(|line| line.contains("dropped")).count(),
                1
            );
            assert_eq!(push(&mut output, &flood), [""; 0]);
        }
    }
}
