//! The subject names of certificates. Pure.

use std::{fmt, net::IpAddr, str::FromStr};

use rustls::pki_types::DnsName;

/// A name that a certificate can be issued for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SubjectName {
    /// A host name; with `*.` in front, all hosts of a domain.
    Dns(String),
    /// An IP address.
    Ip(IpAddr),
    /// A URI, such as a SPIFFE id.
    Uri(String),
}

/// The name is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid certificate name '{name}': {reason}")]
pub struct SubjectNameError {
    name: String,
    reason: &'static str,
}

/// Limit of the SPIFFE standard.
const LONGEST_URI: usize = 2048;

impl SubjectName {
    /// Whether it is a SPIFFE id, of which a certificate has at most one.
    pub fn is_spiffe(&self) -> bool {
        matches!(self, Self::Uri(uri) if uri.starts_with("spiffe://"))
    }

    /// A file name stem for this name.
    pub fn file_stem(&self) -> String {
        let text = self.to_string();
        let bare = text
            .split_once("://")
            .map_or(&*text, |(_, rest)| rest)
            .replacen("*.", "any.", 1);
        let tame = |c: char| {
            if c.is_ascii_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '-'
            }
        };
        let stem: String = bare.chars().map(tame).take(100).collect();
        // Neither a hidden file, nor one that looks like an option.
        let stem = stem.trim_matches(['.', '-']);
        if stem.is_empty() {
            "certificate".into()
        } else {
            stem.into()
        }
    }
}

impl FromStr for SubjectName {
    type Err = SubjectNameError;

    fn from_str(name: &str) -> Result<Self, SubjectNameError> {
        let wrong = |reason| SubjectNameError {
            name: name.to_owned(),
            reason,
        };
        if name.contains("://") {
            return check_uri(name)
                .map(|()| Self::Uri(name.to_owned()))
                .map_err(wrong);
        }
        let bare = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .unwrap_or(name);
        if let Ok(address) = bare.parse() {
            return Ok(Self::Ip(address));
        }
        let domain = name.strip_prefix("*.");
        if domain.is_some_and(|domain| !domain.contains('.')) {
            return Err(wrong(
                "a wildcard for a whole top-level domain is refused by peers: add a label after the star",
            ));
        }
        match DnsName::try_from(domain.unwrap_or(name)) {
            Ok(_) if !name.ends_with('.') => Ok(Self::Dns(name.to_ascii_lowercase())),
            _ => Err(wrong(
                "give a host name, an address without a port, or a URI such as spiffe://prod/web",
            )),
        }
    }
}

fn check_uri(uri: &str) -> Result<(), &'static str> {
    if uri.len() > LONGEST_URI || !uri.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(
            "a URI has at most 2048 characters, all of them printable ASCII without spaces",
        );
    }
    let (scheme, rest) = uri
        .split_once("://")
        .ok_or("a URI needs a scheme, as in spiffe://prod/web")?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    if !is_scheme || rest.is_empty() || rest.starts_with('/') {
        return Err("a URI needs a scheme and a host, as in spiffe://prod/web");
    }
    if uri.contains('*') {
        return Err("a certificate is for one URI, without stars");
    }
    if scheme.eq_ignore_ascii_case("spiffe") {
        check_spiffe(uri)
    } else {
        Ok(())
    }
}

/// Strict, as in the standard: other programs that read the certificate are strict too.
fn check_spiffe(uri: &str) -> Result<(), &'static str> {
    let rest = uri
        .strip_prefix("spiffe://")
        .ok_or("the scheme of a SPIFFE id is lower case")?;
    let (domain, path) = rest
        .split_once('/')
        .map_or((rest, None), |(domain, path)| (domain, Some(path)));
    let is_of_domain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    if domain.is_empty() || domain.len() > 255 || !domain.bytes().all(is_of_domain) {
        return Err(
            "the trust domain of a SPIFFE id consists of lower case letters, digits, and . - _",
        );
    }
    let is_of_path = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(is_of_path);
    if path.is_some_and(|path| !path.split('/').all(is_part)) {
        return Err(
            "the path of a SPIFFE id consists of segments of letters, digits, and . - _, without a slash at the end",
        );
    }
    Ok(())
}

impl fmt::Display for SubjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) | Self::Uri(name) => f.write_str(name),
            Self::Ip(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(name: &str) -> SubjectName {
        name.parse().unwrap()
    }

    #[test]
    fn kinds_of_names_are_recognised() {
        assert_eq!(
            read("Worker.Internal"),
            SubjectName::Dns("worker.internal".into())
        );
        assert_eq!(
            read("*.pool.internal"),
            SubjectName::Dns("*.pool.internal".into())
        );
        assert_eq!(read("127.0.0.1"), SubjectName::Ip([127, 0, 0, 1].into()));
        assert_eq!(read("[::1]"), read("::1"));
        assert!(read("spiffe://prod/ns/a/sa/web").is_spiffe() && read("spiffe://prod").is_spiffe());
        assert!(!read("https://example.invalid/a?b=c").is_spiffe());
    }

    #[test]
    fn invalid_names_are_refused_with_a_hint() {
        for (name, words) in [
            ("", "a host name"),
            ("a b", "a host name"),
            ("host:80", "without a port"),
            ("a.*.b", "a host name"),
            ("host.", "a host name"),
            ("*.internal", "after the star"),
            ("-x", "a host name"),
            ("spiffe://", "a scheme and a host"),
            ("spiffe:///web", "a scheme and a host"),
            ("spiffe://Prod/web", "trust domain"),
            ("SPIFFE://prod/web", "lower case"),
            ("spiffe://prod/", "without a slash at the end"),
            ("spiffe://prod/a//b", "without a slash"),
            ("spiffe://prod/../b", "path"),
            ("spiffe://prod/a?b", "path"),
            ("spiffe://prod/*", "one URI"),
            ("spiffe://prod/\u{e9}", "ASCII"),
        ] {
            let error = name.parse::<SubjectName>().unwrap_err().to_string();
            assert!(
                error.contains(words) && error.contains(&format!("'{name}'")),
                "{name}: {error}"
            );
        }
    }

    #[test]
    fn file_stems_follow_the_names() {
        for (name, stem) in [
            ("worker.internal", "worker.internal"),
            ("spiffe://prod/ns/web", "prod-ns-web"),
            ("*.pool.internal", "any.pool.internal"),
            ("::1", "1"),
            ("x://..", "certificate"),
        ] {
            assert_eq!(read(name).file_stem(), stem);
        }
    }

    proptest! {
        #[test]
        fn valid_names_round_trip_and_make_file_stems(name in "[a-z0-9:/.*-]{1,40}") {
            if let Ok(read) = name.parse::<SubjectName>() {
                prop_assert_eq!(&read.to_string().parse::<SubjectName>().unwrap(), &read);
                let stem = read.file_stem();
                prop_assert!(!stem.contains('/') && !stem.starts_with(['.', '-']) && !stem.is_empty());
            }
        }
    }
}
