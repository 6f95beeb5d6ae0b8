//! Texts in which `*` matches anything.

/// A text in which `*` matches any text. In quotes, `\*` is a star.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The texts between the stars; at least one.
    pieces: Vec<String>,
}

impl Pattern {
    /// The pattern that matches only this text.
    pub fn exact(text: impl Into<String>) -> Self {
        Self {
            pieces: vec![text.into()],
        }
    }

    /// The pattern in which each `*` matches any text.
    pub fn glob(text: &str) -> Self {
        Self::from_pieces(text.split('*').map(str::to_owned).collect())
    }

    /// The pattern of these texts, with anything between them.
    pub(super) fn from_pieces(mut pieces: Vec<String>) -> Self {
        if pieces.is_empty() {
            pieces.push(String::new());
        }
        // Two stars match what one matches.
        let last = pieces.len() - 1;
        let mut index = 0;
        pieces.retain(|piece| {
            let is_inner = index != 0 && index != last;
            index += 1;
            !(is_inner && piece.is_empty())
        });
        Self { pieces }
    }

    /// The same pattern in lower case.
    pub(super) fn to_lower_case(&self) -> Self {
        let pieces = self.pieces.iter();
        Self {
            pieces: pieces.map(|piece| piece.to_ascii_lowercase()).collect(),
        }
    }

    /// The texts between the stars; at least one.
    pub fn pieces(&self) -> &[String] {
        &self.pieces
    }

    /// The text, if the pattern has no star.
    pub fn literal(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [text] => Some(text),
            _ => None,
        }
    }

    /// Whether the whole text matches.
    pub fn matches(&self, text: &str) -> bool {
        let [head, middle @ .., tail] = self.pieces.as_slice() else {
            return self.literal() == Some(text);
        };
        let rest = text
            .strip_prefix(head.as_str())
            .and_then(|text| text.strip_suffix(tail.as_str()));
        rest.is_some_and(|rest| find_in_order(middle, rest))
    }

    /// Whether a part of the text matches.
    pub fn is_in(&self, text: &str) -> bool {
        find_in_order(&self.pieces, text)
    }
}

/// The leftmost match of each piece leaves the most for the rest, so no backtracking is needed.
fn find_in_order(pieces: &[String], text: &str) -> bool {
    let rest = pieces.iter().try_fold(text, |left, piece| {
        left.split_once(piece.as_str()).map(|(_, right)| right)
    });
    rest.is_some()
}
