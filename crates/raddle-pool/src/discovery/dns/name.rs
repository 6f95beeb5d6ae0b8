//! Names, as they travel. Pure.

use std::{fmt, str::FromStr};

/// Bytes of a name with the lengths of its labels, but for the zero at its end.
const LONGEST: usize = 254;
const LONGEST_LABEL: usize = 63;

/// A name: its labels, each after its length, in small letters. The one without labels is the root.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Name(Vec<u8>);

/// No name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotAName;

impl Name {
    /// Adds a label at the end.
    pub(super) fn push(&mut self, label: &[u8]) -> Result<(), NotAName> {
        if !(1..=LONGEST_LABEL).contains(&label.len()) || self.0.len() + 1 + label.len() > LONGEST {
            return Err(NotAName);
        }
        self.0.push(label.len() as u8);
        self.0.extend(label.iter().map(u8::to_ascii_lowercase));
        Ok(())
    }

    pub(super) fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = self.0.as_slice();
        std::iter::from_fn(move || {
            let (length, rest) = left.split_first()?;
            let (label, rest) = rest.split_at_checked(usize::from(*length))?;
            left = rest;
            Some(label)
        })
    }

    pub(super) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// This name below another one, unless that is too long.
    pub(super) fn below(&self, above: &Self) -> Option<Self> {
        let joined = [self.0.as_slice(), &above.0].concat();
        (joined.len() <= LONGEST).then_some(Self(joined))
    }

    /// As it is sent.
    pub(super) fn write(&self, packet: &mut Vec<u8>) {
        packet.extend(&self.0);
        packet.push(0);
    }
}

/// As people write it, without a dot at its end. What would have to be escaped is no name of a host.
impl FromStr for Name {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let mut name = Self::default();
        for label in text.split('.').map(str::as_bytes) {
            if !label.iter().copied().all(is_usual) {
                return Err(NotAName);
            }
            name.push(label)?;
        }
        Ok(name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            return f.write_str(".");
        }
        for (place, label) in self.labels().enumerate() {
            if place > 0 {
                f.write_str(".")?;
            }
            for byte in label {
                match byte {
                    b'.' | b'\\' => write!(f, "\\{}", char::from(*byte))?,
                    b'!'..=b'~' => write!(f, "{}", char::from(*byte))?,
                    _ => write!(f, "\\{byte:03}")?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_shown_alike() {
        for text in ["a", "workers.ns.svc.cluster.local", "_raddle._tcp.x", &vec!["x".repeat(63); 3].join(".")] {
            assert_eq!(text.parse::<Name>().unwrap().to_string(), text);
        }
        let long = vec!["x"; 127].join(".");
        assert_eq!(long.parse::<Name>().unwrap().labels().count(), 127);
        assert_eq!("ABC.De".parse::<Name>(), "abc.dE".parse());
        for wrong in ["", ".", "a.", ".a", "a..b", "a b", "ä", &"x".repeat(64), &format!("{long}.x")] {
            assert_eq!(wrong.parse::<Name>(), Err(NotAName), "{wrong}");
        }
        let mut odd = Name::default();
        assert_eq!(odd.to_string(), ".");
        odd.push(b"a.b\\\x1b\xff").unwrap();
        assert_eq!(odd.to_string(), "a\\.b\\\\\\027\\255");
    }

    #[test]
    fn a_name_below_another_is_no_longer_than_any() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        assert_eq!(name("a.b").below(&name("c")), Some(name("a.b.c")));
        assert_eq!(name("a").below(&Name::default()), Some(name("a")));
        assert_eq!(name(&vec!["x"; 100].join(".")).below(&name(&vec!["x"; 28].join("."))), None);
    }
}
