//! The parts of an error text that are the same each time.

use raddle_model::ExitStatus;

/// The longest line, in characters.
const MAX_LINE: usize = 200;
/// Hexadecimal words from this length on are ids.
const MIN_HEX: usize = 8;
/// Directories in which each program has a name of its own.
const TEMPORARY: [&str; 3] = ["/tmp/", "/var/tmp/", "/run/user/"];

/// How an attempt ended, without variable parts. Exit codes and signals are not variable.
pub(super) fn normalize_exit(exit: &ExitStatus) -> String {
    match exit {
        ExitStatus::Code { .. } | ExitStatus::Signal { .. } => exit.to_string(),
        other => normalize_line(&other.to_string()),
    }
}

/// The last line of an output that is not empty, as text that a terminal can show.
pub(super) fn last_line(output: &[u8]) -> String {
    let text = strip_escapes(&String::from_utf8_lossy(output));
    let line = text
        .split(['\n', '\r'])
        .map(str::trim)
        .rfind(|line| !line.is_empty());
    line.unwrap_or_default().chars().take(MAX_LINE).collect()
}

/// Removes escape sequences of terminals, and control characters except line ends.
fn strip_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        if char == '\u{1b}' {
            if chars.next_if_eq(&'[').is_some() {
                // Parameters and intermediates end at a letter or one of @[\]^_`{|}~.
                while chars
                    .next()
                    .is_some_and(|char| !('@'..='~').contains(&char))
                {}
            } else {
                chars.next();
            }
        } else if !char.is_control() || ['\n', '\r'].contains(&char) {
            plain.push(char);
        }
    }
    plain
}

/// The line without numbers, ids and names in temporary directories: each becomes `#`.
pub fn normalize_line(line: &str) -> String {
    let line = mask_temporary_names(line);
    let mut normal = String::with_capacity(line.len());
    let mut rest = line.as_str();
    while let Some(first) = rest.chars().next() {
        let is_word = |char: char| char.is_alphanumeric();
        let end = rest
            .find(|char| is_word(char) != is_word(first))
            .unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        if is_word(first) {
            push_word(&mut normal, run);
        } else {
            normal.push_str(run);
        }
        rest = after;
    }
    // 1.5, 12:30:00 and the parts of a UUID are one value each.
    for separator in [".", ":", "-", ","] {
        let pair = format!("#{separator}#");
        while normal.contains(&pair) {
            normal = normal.replace(&pair, "#");
        }
    }
    normal
}

/// Appends a word with `#` for its digits, or for all of it if it is an id.
fn push_word(normal: &mut String, word: &str) {
    let has_digit = word.chars().any(|char| char.is_ascii_digit());
    let is_hex = word.chars().all(|char| char.is_ascii_hexdigit());
    let is_hex_number = word.starts_with("0x") && word.len() > 2;
    if has_digit && (is_hex && word.len() >= MIN_HEX || is_hex_number) {
        normal.push('#');
        return;
    }
    let mut was_digit = false;
    for char in word.chars() {
        let is_digit = char.is_ascii_digit();
        match is_digit {
            true if was_digit => {}
            true => normal.push('#'),
            false => normal.push(char),
        }
        was_digit = is_digit;
    }
}

/// Replaces the first name below each temporary directory.
fn mask_temporary_names(line: &str) -> String {
    let mut masked = line.to_owned();
    for directory in TEMPORARY {
        let mut from = 0;
        while let Some(found) = masked[from..].find(directory) {
            let start = from + found + directory.len();
            let is_end = |char: char| char.is_whitespace() || "/:'\"),;".contains(char);
            let length = masked[start..].find(is_end).unwrap_or(masked.len() - start);
            masked.replace_range(start..start + length, "#");
            from = start + 1;
        }
    }
    masked
}
