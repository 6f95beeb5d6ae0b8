//! Name patterns with stars. Pure.
//!
//! What a star matches depends on the kind of name, because names are delegated from different
//! ends. The owner of a DNS domain owns everything in front of it, so a star never matches beyond
//! one label. The owner of a URI's host owns everything behind it, so a star at the end matches any
//! rest, one before it matches within a path segment, and none is allowed in the host itself.

use std::fmt;

use super::identity::{CertificateName, Identity};

/// A name pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pattern {
    text: String,
    tokens: Vec<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Token {
    /// Matches this byte.
    Byte(u8),
    /// Matches any number of bytes other than the given one.
    Star(Option<u8>),
}

/// A pattern for certificate names: a URI or a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NamePattern {
    Uri(Pattern),
    Host(Pattern),
}

/// Longest pattern.
const LONGEST: usize = 1024;

/// Why a pattern is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// It is empty.
    #[error("the name is empty")]
    Empty,
    /// It is too long, or has other than printable ASCII characters.
    #[error("a name has at most {LONGEST} characters, all of them printable ASCII without spaces")]
    Characters,
    /// A star in the host of a URI would match hosts of other owners.
    #[error("a * in a URI must come after the slash that ends the host, as in spiffe://prod/*")]
    StarInHost,
    /// A URI without a host.
    #[error("a URI needs a scheme and a host, as in spiffe://prod/web")]
    NoHost,
    /// Not a host name.
    #[error("a host name consists of letters, digits, dots and hyphens, and * within a label")]
    HostName,
    /// An IP address, which does not identify a caller.
    #[error(
        "callers are identified by name, not by address: give a name in the certificate, as web.internal or spiffe://prod/web"
    )]
    Address,
    /// Not a routine name.
    #[error("a routine name consists of letters, digits, and . _ - : @ /, and * for any of them")]
    Routine,
}

impl Pattern {
    /// A pattern for URIs.
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

    /// A pattern for host names, which are case-insensitive.
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

    /// A pattern for routine names.
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

    /// Whether the pattern matches the name.
    pub(super) fn matches(&self, name: &str) -> bool {
        match self.text.find('*') {
            None => self.text == name,
            // Fast path for the common prefix pattern: this is checked on each call.
            Some(at) if at + 1 == self.text.len() && self.tokens[at] == Token::Star(None) => {
                name.starts_with(&self.text[..at])
            }
            Some(_) => self.walk(name.as_bytes()),
        }
    }

    /// Simulates the automaton, with all reachable states at once: the time is bounded by the
    /// product of both lengths, whatever name a caller has.
    fn walk(&self, name: &[u8]) -> bool {
        let end = self.tokens.len();
        let mut states = vec![false; end + 1];
        states[0] = true;
        self.pass_stars(&mut states);
        for &byte in name {
            let mut next = vec![false; end + 1];
            for (at, token) in self.tokens.iter().enumerate().filter(|(at, _)| states[*at]) {
                match token {
                    Token::Byte(wanted) => next[at + 1] |= *wanted == byte,
                    Token::Star(stop) => next[at] |= *stop != Some(byte),
                }
            }
            self.pass_stars(&mut next);
            states = next;
        }
        states[end]
    }

    /// Advances over stars, which also match the empty string.
    fn pass_stars(&self, states: &mut [bool]) {
        for (at, token) in self.tokens.iter().enumerate() {
            if states[at] && matches!(token, Token::Star(_)) {
                states[at + 1] = true;
            }
        }
    }
}

impl NamePattern {
    /// Parses a pattern. With `://`, it is a URI.
    pub(super) fn new(text: &str) -> Result<Self, PatternError> {
        if text.contains("://") {
            Pattern::uri(text).map(Self::Uri)
        } else {
            Pattern::host(text).map(Self::Host)
        }
    }

    /// Whether one of the names matches.
    pub(super) fn matches(&self, identity: &Identity) -> bool {
        identity.names().iter().any(|name| match (self, name) {
            (Self::Uri(pattern), CertificateName::Uri(name))
            | (Self::Host(pattern), CertificateName::Dns(name)) => pattern.matches(name),
            _ => false,
        })
    }
}

/// Whether this is an IP address, or becomes one with digits for stars. It cannot be a host name.
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
    fn stars_match_only_names_of_the_same_owner() {
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
    fn invalid_patterns_are_refused() {
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

    /// The definition, as a slow recursion.
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
        fn uri_matches_follow_the_definition(pattern in "[ab/*]{0,8}", name in "[ab/]{0,10}") {
            let pattern = Pattern::uri(&format!("s://h/{pattern}")).unwrap();
            let name = format!("s://h/{name}");
            prop_assert_eq!(pattern.matches(&name), means(&pattern.tokens, name.as_bytes()));
        }

        #[test]
        fn host_and_routine_matches_follow_the_definition(pattern in "[ab*]{1,3}(\\.[ab*]{1,3}){0,2}", name in "[ab.]{0,10}") {
            for pattern in [Pattern::host(&pattern).unwrap(), Pattern::routine(&pattern).unwrap()] {
                prop_assert_eq!(pattern.matches(&name), means(&pattern.tokens, name.as_bytes()));
            }
        }

        #[test]
        fn pattern_without_stars_matches_only_itself(name in "[a-z]{1,9}(/[a-z]{1,9}){0,3}", other in "[a-z/]{1,20}") {
            let pattern = Pattern::uri(&format!("spiffe://h/{name}")).unwrap();
            let matches = |path: &str| pattern.matches(&format!("spiffe://h/{path}"));
            prop_assert!(matches(&name));
            prop_assert_eq!(matches(&other), name == other);
        }

        /// A caller cannot slow a worker down with its name.
        #[test]
        fn long_names_match_quickly(name in "a{2000}") {
            let pattern = Pattern::host(&("*a".repeat(60) + "b")).unwrap();
            prop_assert!(!pattern.matches(&name));
        }
    }
}
