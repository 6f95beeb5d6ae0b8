//! Names with stars in them. Pure: text in, yes or no out.
//!
//! What a star may stand for depends on what the name is of, because names are read from different ends. Who owns the end of a DNS name owns all that
//! begins with something else, so that there a star never goes beyond a label. Who owns the front of a URI owns all that follows: a star
//! at the end takes it all, one before stays between two slashes, and none stands in the front itself.

use std::fmt;

use super::identity::{CertificateName, Identity};

/// A name that may have stars in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pattern {
    text: String,
    tokens: Vec<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Token {
    /// This one.
    Byte(u8),
    /// Any number of them, but for the one that is named.
    Star(Option<u8>),
}

/// A name of a certificate that may have stars in it: a URI, or a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NamePattern {
    Uri(Pattern),
    Host(Pattern),
}

/// The longest pattern. No name is longer that somebody has written by hand.
const LONGEST: usize = 1024;

/// What is wrong with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// There is nothing.
    #[error("there is no name")]
    Empty,
    /// It cannot be the name of anything.
    #[error(
        "a name has at most {LONGEST} characters, no blanks, and no others than those of ASCII"
    )]
    Characters,
    /// A star stands where it would take in strangers.
    #[error("in a URI a * stands behind the slash that ends the host, as in spiffe://prod/*")]
    StarInHost,
    /// A scheme and nothing else.
    #[error("a URI has a scheme and a host, as in spiffe://prod/web")]
    NoHost,
    /// Letters that no host name has.
    #[error(
        "a host name has letters, digits, dots and hyphens, and * for one label or a part of one"
    )]
    HostName,
    /// An address, which no certificate of a caller is asked for.
    #[error(
        "a caller is known by a name in his certificate, and not by an address: give that, as web.internal or spiffe://prod/web"
    )]
    Address,
    /// Letters that no routine has in its name.
    #[error("a routine's name has letters, digits, and . _ - : @ /, and * for any of them")]
    Routine,
}

impl Pattern {
    /// Of URIs.
    fn uri(text: &str) -> Result<Self, PatternError> {
        check(text)?;
        let (scheme, rest) = text.split_once("://").ok_or(PatternError::NoHost)?;
        let host = rest.split('/').next().unwrap_or_default();
        if scheme.contains('*') || host.contains('*') {
            return Err(PatternError::StarInHost);
        }
        if scheme.is_empty() || host.is_empty() {
            return Err(PatternError::NoHost);
        }
        let last = text.len() - 1;
        Ok(Self::new(text.to_owned(), |at| {
            if at == last { None } else { Some(b'/') }
        }))
    }

    /// Of host names, which are the same in capitals.
    fn host(text: &str) -> Result<Self, PatternError> {
        check(text)?;
        if is_address(text) {
            return Err(PatternError::Address);
        }
        let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_*".contains(&byte);
        if !text.bytes().all(is_of_host) || text.split('.').any(str::is_empty) {
            return Err(PatternError::HostName);
        }
        Ok(Self::new(text.to_ascii_lowercase(), |_| Some(b'.')))
    }

    /// Of routines.
    pub(super) fn routine(text: &str) -> Result<Self, PatternError> {
        check(text)?;
        let is_of_routine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:@/*".contains(&byte);
        if !text.bytes().all(is_of_routine) {
            return Err(PatternError::Routine);
        }
        Ok(Self::new(text.to_owned(), |_| None))
    }

    fn new(text: String, stops_at: impl Fn(usize) -> Option<u8>) -> Self {
        let token = |(at, byte)| {
            if byte == b'*' {
                Token::Star(stops_at(at))
            } else {
                Token::Byte(byte)
            }
        };
        let tokens = text.bytes().enumerate().map(token).collect();
        Self { text, tokens }
    }

    /// Whether this name is meant.
    pub(super) fn matches(&self, name: &str) -> bool {
        match self.text.find('*') {
            None => self.text == name,
            // The most frequent ones are quick: each call is asked about.
            Some(at) if at + 1 == self.text.len() && self.tokens[at] == Token::Star(None) => {
                name.starts_with(&self.text[..at])
            }
            Some(_) => self.walk(name.as_bytes()),
        }
    }

    /// Goes through the name once, with all the places in the pattern where that may have led: the time is bounded by the product of both lengths,
    /// whatever a caller calls himself.
    fn walk(&self, name: &[u8]) -> bool {
        let end = self.tokens.len();
        let mut here = vec![false; end + 1];
        here[0] = true;
        self.pass_stars(&mut here);
        for &byte in name {
            let mut next = vec![false; end + 1];
            for (at, token) in self.tokens.iter().enumerate().filter(|(at, _)| here[*at]) {
                match token {
                    Token::Byte(wanted) => next[at + 1] |= *wanted == byte,
                    Token::Star(stop) => next[at] |= *stop != Some(byte),
                }
            }
            self.pass_stars(&mut next);
            here = next;
        }
        here[end]
    }

    /// A star may stand for nothing.
    fn pass_stars(&self, places: &mut [bool]) {
        for (at, token) in self.tokens.iter().enumerate() {
            if places[at] && matches!(token, Token::Star(_)) {
                places[at + 1] = true;
            }
        }
    }
}

impl NamePattern {
    /// Reads one. What has `://` in it is a URI.
    pub(super) fn new(text: &str) -> Result<Self, PatternError> {
        if text.contains("://") {
            Pattern::uri(text).map(Self::Uri)
        } else {
            Pattern::host(text).map(Self::Host)
        }
    }

    /// Whether one of the names of this identity is meant.
    pub(super) fn matches(&self, identity: &Identity) -> bool {
        identity.names().iter().any(|name| match (self, name) {
            (Self::Uri(pattern), CertificateName::Uri(name))
            | (Self::Host(pattern), CertificateName::Dns(name)) => pattern.matches(name),
            _ => false,
        })
    }
}

/// Whether this is an IP address, or would be one with numbers for its stars. No host is called so.
fn is_address(text: &str) -> bool {
    let has_number = text.bytes().any(|byte| byte.is_ascii_digit());
    let is_ipv4 = has_number
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || b".*".contains(&byte));
    is_ipv4
        || text
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<std::net::IpAddr>()
            .is_ok()
}

fn check(text: &str) -> Result<(), PatternError> {
    if text.is_empty() {
        return Err(PatternError::Empty);
    }
    let is_sound = text.len() <= LONGEST && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_sound {
        Ok(())
    } else {
        Err(PatternError::Characters)
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri(pattern) | Self::Host(pattern) => pattern.fmt(f),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stars_stay_where_strangers_cannot_get_in() {
        let uri = |pattern: &str, name: &str| Pattern::uri(pattern).unwrap().matches(name);
        assert!(uri("spiffe://prod/*", "spiffe://prod/ns/a/sa/b"));
        assert!(!uri("spiffe://prod/*", "spiffe://prod.evil/a"));
        assert!(uri(
            "spiffe://prod/ns/*/sa/web",
            "spiffe://prod/ns/a/sa/web"
        ));
        assert!(!uri(
            "spiffe://prod/ns/*/sa/web",
            "spiffe://prod/ns/a/sa/x/sa/web"
        ));
        assert!(
            uri("spiffe://prod/web-*", "spiffe://prod/web-1")
                && !uri("spiffe://prod/web-*", "spiffe://prod/db")
        );
        assert!(
            uri("spiffe://prod/a*b*", "spiffe://prod/axbc/d")
                && !uri("spiffe://prod/a*b*", "spiffe://prod/a/b")
        );
        let host = |pattern: &str, name: &str| Pattern::host(pattern).unwrap().matches(name);
        assert!(host("*.Internal", "web.internal") && !host("*.internal", "a.web.internal"));
        assert!(!host("web*", "web.evil.example") && host("web*", "web1"));
        assert!(host("w-*.internal", "w-1.internal") && !host("w-*.internal", "w-1.x.internal"));
        let routine = |pattern: &str, name: &str| Pattern::routine(pattern).unwrap().matches(name);
        assert!(
            routine("math.*", "math.add")
                && !routine("math.*", "maths.add")
                && routine("*::add", "app::math::add")
        );
    }

    #[test]
    fn what_is_no_name_is_refused() {
        use PatternError::{Characters, Empty, HostName, NoHost, Routine, StarInHost};
        for (text, error) in [
            ("spiffe://prod*", StarInHost),
            ("spiffe://*/web", StarInHost),
            ("*://prod/web", StarInHost),
            ("spiffe://", NoHost),
            ("://prod", NoHost),
            ("prod", NoHost),
            ("", Empty),
            ("spiffe://prod/a b", Characters),
            ("spiffe://prod/\u{e9}", Characters),
        ] {
            assert_eq!(Pattern::uri(text), Err(error), "{text}");
        }
        for text in ["a..b", ".a", "a.", "a/b", "a:1"] {
            assert_eq!(Pattern::host(text), Err(HostName), "{text}");
        }
        assert_eq!(Pattern::routine("a,b"), Err(Routine));
        assert_eq!(Pattern::routine(&"a".repeat(LONGEST + 1)), Err(Characters));
    }

    /// The definition, as slow as it is.
    fn means(tokens: &[Token], name: &[u8]) -> bool {
        match tokens.split_first() {
            None => name.is_empty(),
            Some((Token::Byte(byte), rest)) => name
                .split_first()
                .is_some_and(|(b, name)| b == byte && means(rest, name)),
            Some((Token::Star(stop), rest)) => {
                means(rest, name)
                    || name
                        .split_first()
                        .is_some_and(|(b, name)| Some(*b) != *stop && means(tokens, name))
            }
        }
    }

    proptest! {
        #[test]
        fn a_match_is_what_its_definition_says(pattern in "[ab/*]{0,8}", name in "[ab/]{0,10}") {
            let pattern = Pattern::uri(&format!("s://h/{pattern}")).unwrap();
            let name = format!("s://h/{name}");
            prop_assert_eq!(pattern.matches(&name), means(&pattern.tokens, name.as_bytes()));
        }

        #[test]
        fn hosts_and_routines_match_by_their_definitions(pattern in "[ab*]{1,3}(\\.[ab*]{1,3}){0,2}", name in "[ab.]{0,10}") {
            for pattern in [Pattern::host(&pattern).unwrap(), Pattern::routine(&pattern).unwrap()] {
                prop_assert_eq!(pattern.matches(&name), means(&pattern.tokens, name.as_bytes()));
            }
        }

        #[test]
        fn without_a_star_a_name_means_itself(name in "[a-z]{1,9}(/[a-z]{1,9}){0,3}", other in "[a-z/]{1,20}") {
            let pattern = Pattern::uri(&format!("spiffe://h/{name}")).unwrap();
            let matches = |path: &str| pattern.matches(&format!("spiffe://h/{path}"));
            prop_assert!(matches(&name));
            prop_assert_eq!(matches(&other), name == other);
        }

        /// A caller cannot keep a worker busy with his name.
        #[test]
        fn long_names_do_not_take_long(name in "a{2000}") {
            let pattern = Pattern::host(&("*a".repeat(60) + "b")).unwrap();
            prop_assert!(!pattern.matches(&name));
        }
    }
}
