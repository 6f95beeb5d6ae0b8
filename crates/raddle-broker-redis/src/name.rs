//! Names of tasks as they are stored: as one word.

use raddle_model::TaskSpec;

/// The most bytes of a stored name: room for every valid one.
const MAX_NAME: usize = 400;

/// A display name as it is stored: without blanks, not empty and not long. Outcomes are counted
/// under it.
pub(super) fn name_of(spec: &TaskSpec) -> String {
    encode_name(spec.display_name())
}

/// See [`name_of`].
pub(super) fn encode_name(name: &str) -> String {
    let mut stored = String::with_capacity(name.len());
    for c in name.chars() {
        if stored.len() >= MAX_NAME {
            break;
        }
        match c {
            '%' | '\0'..=' ' | '\x7f' => stored.push_str(&format!("%{:02x}", c as u32)),
            c => stored.push(c),
        }
    }
    if stored.is_empty() {
        stored.push_str("%20");
    }
    stored
}

/// The name that was stored as this.
pub(super) fn decode_name(stored: &str) -> String {
    let mut parts = stored.split('%');
    let mut name = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part
            .get(..2)
            .and_then(|code| u8::from_str_radix(code, 16).ok());
        name.push(code.map_or(char::REPLACEMENT_CHARACTER, char::from));
        name.push_str(part.get(2..).unwrap_or_default());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_stored_as_one_word() {
        for name in ["frame 12", "100% sure", "%20", "ä b", "a\tb"] {
            let stored = encode_name(name);
            assert!(!stored.contains(' ') && !stored.is_empty(), "{stored}");
            assert_eq!(decode_name(&stored), name);
        }
        assert_eq!(encode_name(""), "%20");
        assert!(encode_name(&"ä".repeat(500)).len() < 2 * MAX_NAME);
    }
}
