//! What the TXT record of a worker says, and what of it is believed. Pure.
//!
//! A record comes from anybody on the network: it is a list of texts in a form that is known, of a length that is bounded, or it is no record.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    str,
    time::Duration,
};

use crate::{
    Uid, WorkerMetadata,
    encoding::{self, Encodings},
};

/// The service that workers are, by the rules of DNS-SD.
pub(super) const SERVICE: &str = "_raddle._tcp.local.";
/// Grows when those who only know the old form could misunderstand the new one.
const VERSION: &str = "1";
/// The longest text of a record, with its key: its length is a byte.
const LONGEST: usize = 255;
/// The longest record. With all that is said beside it, it fits into a frame of an Ethernet.
pub(super) const WHOLE: usize = 1000;
/// So many tags, and so many extra values, are read.
const MANY: usize = 64;
/// How long a worker may be silent, at most, before it is taken for gone.
const PATIENCE: Duration = Duration::from_secs(3600);

/// What is said of a worker beside where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) uid: Uid,
    pub(super) pid: u32,
    pub(super) version: String,
    pub(super) tags: BTreeSet<String>,
    pub(super) extra: BTreeMap<String, String>,
    pub(super) secure: bool,
    pub(super) encodings: Encodings,
    /// Where it is reached, if that is not where its host is.
    pub(super) address: Option<SocketAddr>,
    pub(super) beat: Option<Beat>,
}

/// A sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Beat {
    /// Which one it is. Each is another.
    pub(super) count: u64,
    /// Without another within this time, the worker is gone.
    pub(super) ttl: Duration,
}

/// Why a worker cannot be published.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unfit {
    #[error("{what} takes {length} bytes, and a record has room for {LONGEST} in one place")]
    Long { what: String, length: usize },
    #[error(
        "all that is to be said of it takes {length} bytes, and a record has room for {WHOLE}: it has {tags} tags, and {extra} extra values"
    )]
    Whole { length: usize, tags: usize, extra: usize },
    #[error("{what} are {count}, and {MANY} are read")]
    Many { what: &'static str, count: usize },
    #[error("{0} has control characters in it")]
    Control(String),
    #[error("'{0}' cannot be the name of an extra value on the network: it is empty, or has a '=' in it")]
    Name(String),
}

/// Why a record is not believed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unbelievable {
    #[error("of another namespace")]
    Elsewhere,
    #[error("of version '{0}', and only {VERSION} is known")]
    Version(String),
    #[error("its name is no uid")]
    Name,
    #[error("'{0}' is missing")]
    Missing(&'static str),
    #[error("'{0}' is not what it should be")]
    Wrong(String),
    #[error("it says too much")]
    Long,
}

/// What is to be said of a worker, as the texts of a record: a key, and a value.
pub(super) fn write(
    worker: &WorkerMetadata,
    namespace: &str,
    address: Option<SocketAddr>,
    beat: &Beat,
) -> Result<Vec<(String, String)>, Unfit> {
    let WorkerMetadata { uid: _, address: _, pid, version, tags, extra, secure, encodings } = worker;
    let mut texts = vec![
        ("txtvers".to_owned(), VERSION.to_owned()),
        ("ns".to_owned(), namespace.to_owned()),
        ("version".to_owned(), version.clone()),
        ("pid".to_owned(), pid.to_string()),
        ("secure".to_owned(), u8::from(*secure).to_string()),
        ("ttl".to_owned(), beat.ttl.as_secs().to_string()),
        ("beat".to_owned(), beat.count.to_string()),
    ];
    if !encodings.is_empty() {
        texts.push(("encodings".to_owned(), encoding::names(encodings)));
    }
    texts.extend(address.map(|address| ("address".to_owned(), address.to_string())));
    for (what, count) in [("its tags", tags.len()), ("its extra values", extra.len())] {
        if count > MANY {
            return Err(Unfit::Many { what, count });
        }
    }
    texts.extend(tags.iter().enumerate().map(|(place, tag)| (format!("tag{place}"), tag.clone())));
    for (place, (name, value)) in extra.iter().enumerate() {
        if name.is_empty() || name.contains('=') {
            return Err(Unfit::Name(name.clone()));
        }
        texts.push((format!("extra{place}"), format!("{name}={value}")));
    }
    let mut whole = 0;
    for (key, value) in &texts {
        let length = key.len() + 1 + value.len();
        if length > LONGEST {
            return Err(Unfit::Long { what: meant(key, value), length });
        }
        if value.chars().any(char::is_control) {
            return Err(Unfit::Control(meant(key, value)));
        }
        whole += 1 + length;
    }
    if whole > WHOLE {
        return Err(Unfit::Whole { length: whole, tags: tags.len(), extra: extra.len() });
    }
    Ok(texts)
}

/// What a text is of, for people.
fn meant(key: &str, value: &str) -> String {
    let begin: String = value.chars().filter(|c| !c.is_control()).take(20).collect();
    match key.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "tag" => format!("the tag '{begin}…'"),
        "extra" => format!("the extra value '{begin}…'"),
        key => format!("its {key} '{begin}…'"),
    }
}

/// The name of a worker among the services of the network.
pub(super) fn name(uid: Uid) -> String {
    format!("{uid}.{SERVICE}")
}

/// Whose name this is.
pub(super) fn uid(name: &str) -> Option<Uid> {
    let uid = name.strip_suffix(SERVICE)?.strip_suffix('.')?.parse::<Uid>().ok()?;
    // A UUID can be written in several ways; one of them is ours.
    (self::name(uid) == name).then_some(uid)
}

/// What is said under this name, if it is believed. Of each key there is one text: the first.
pub(super) fn read<'a>(
    name: &str,
    namespace: &str,
    texts: impl IntoIterator<Item = (&'a str, Option<&'a [u8]>)>,
) -> Result<Said, Unbelievable> {
    let uid = uid(name).ok_or(Unbelievable::Name)?;
    let texts = Texts::read(texts)?;
    // Before all else, which may have another form.
    match texts.get("txtvers")? {
        VERSION => {}
        other => return Err(Unbelievable::Version(shown(other))),
    }
    if texts.get("ns")? != namespace {
        return Err(Unbelievable::Elsewhere);
    }
    let beat = match (texts.maybe("ttl"), texts.maybe("beat")) {
        (None, None) => None,
        _ => {
            let ttl = Duration::from_secs(texts.number("ttl")?);
            if ttl.is_zero() || ttl > PATIENCE {
                return Err(Unbelievable::Wrong("ttl".into()));
            }
            Some(Beat { count: texts.number("beat")?, ttl })
        }
    };
    let address = texts.maybe("address").map(str::parse).transpose();
    let extra = texts.listed("extra").map(|(key, text)| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Unbelievable::Wrong(key.to_owned())),
    });
    Ok(Said {
        uid,
        pid: u32::try_from(texts.number("pid")?).map_err(|_| Unbelievable::Wrong("pid".into()))?,
        version: texts.get("version")?.to_owned(),
        tags: texts.listed("tag").map(|(_, text)| text.to_owned()).collect(),
        extra: extra.collect::<Result<_, _>>()?,
        secure: match texts.get("secure")? {
            "0" => false,
            "1" => true,
            _ => return Err(Unbelievable::Wrong("secure".into())),
        },
        encodings: texts.maybe("encodings").map(encoding::of_names).unwrap_or_default(),
        address: address.map_err(|_| Unbelievable::Wrong("address".into()))?,
        beat,
    })
}

/// The texts of a record, by their keys in lower case.
struct Texts(BTreeMap<String, String>);

impl Texts {
    fn read<'a>(texts: impl IntoIterator<Item = (&'a str, Option<&'a [u8]>)>) -> Result<Self, Unbelievable> {
        let (mut read, mut whole) = (BTreeMap::new(), 0);
        for (key, value) in texts {
            let value = value.unwrap_or_default();
            whole += 2 + key.len() + value.len();
            if whole > WHOLE || key.len() + value.len() > LONGEST {
                return Err(Unbelievable::Long);
            }
            let wrong = || Unbelievable::Wrong(shown(key));
            let value = str::from_utf8(value).map_err(|_| wrong())?;
            if value.chars().any(char::is_control) {
                return Err(wrong());
            }
            read.entry(key.to_ascii_lowercase()).or_insert_with(|| value.to_owned());
        }
        Ok(Self(read))
    }

    fn maybe(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    fn get(&self, key: &'static str) -> Result<&str, Unbelievable> {
        self.maybe(key).ok_or(Unbelievable::Missing(key))
    }

    fn number(&self, key: &'static str) -> Result<u64, Unbelievable> {
        let text = self.get(key)?;
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_plain).ok_or_else(|| Unbelievable::Wrong(key.into()))
    }

    /// The texts of keys that are counted: `tag0`, `tag1` and so on.
    fn listed<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        (0..MANY).filter_map(move |place| {
            let (key, text) = self.0.get_key_value(&format!("{kind}{place}"))?;
            Some((key.as_str(), text.as_str()))
        })
    }
}

/// A part of what others have written, for the log.
fn shown(text: &str) -> String {
    text.chars().take(20).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn beat() -> Beat {
        Beat { count: 7, ttl: Duration::from_secs(15) }
    }

    fn sample() -> WorkerMetadata {
        WorkerMetadata {
            uid: Uid::new(),
            address: "0.0.0.0:7000".into(),
            pid: 5,
            version: "1.2.3".into(),
            tags: ["gpu".into(), "größer".into()].into(),
            extra: [("zone".into(), "b=c".into()), ("empty".into(), String::new())].into(),
            secure: true,
            encodings: [].into(),
        }
    }

    fn read_again(name: &str, texts: &[(String, String)]) -> Result<Said, Unbelievable> {
        read(name, "math", texts.iter().map(|(key, value)| (key.as_str(), Some(value.as_bytes()))))
    }

    #[test]
    fn what_is_written_is_read() {
        let worker = WorkerMetadata { encodings: [encoding::Encoding::Json].into(), ..sample() };
        let address = Some("10.0.0.1:80".parse().unwrap());
        let texts = write(&worker, "math", address, &beat()).unwrap();
        let said = read_again(&name(worker.uid), &texts).unwrap();
        let WorkerMetadata { uid, address: _, pid, version, tags, extra, secure, encodings } = worker;
        assert_eq!(said, Said { uid, pid, version, tags, extra, secure, encodings, address, beat: Some(beat()) });
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let said = |change: fn(&mut WorkerMetadata)| {
            let mut worker = sample();
            change(&mut worker);
            write(&worker, "math", None, &beat()).unwrap_err().to_string()
        };
        let many = |worker: &mut WorkerMetadata| worker.tags = (0..65).map(|n| n.to_string()).collect();
        let whole =
            |worker: &mut WorkerMetadata| worker.tags = (10..15).map(|n| format!("{n}{}", "x".repeat(198))).collect();
        for (said, reason) in [
            (said(|worker| worker.tags = ["x".repeat(300)].into()), "the tag 'xxxxxxxxxxxxxxxxxxxx…' takes 305 bytes"),
            (said(|worker| worker.version = "1".repeat(300)), "its version '11111111111111111111…' takes 308 bytes"),
            (
                said(|worker| worker.extra = [("k".into(), "v".repeat(300))].into()),
                "the extra value 'k=vvvvvvvvvvvvvvvvvv…'",
            ),
            (said(|worker| worker.extra = [("a=b".into(), String::new())].into()), "'a=b' cannot be the name"),
            (said(|worker| worker.tags = ["a\nb".into()].into()), "the tag 'ab…' has control characters"),
            (said(many), "its tags are 65, and 64 are read"),
            (
                said(whole),
                "all that is to be said of it takes 1121 bytes, and a record has room for 1000: it has 5 tags",
            ),
        ] {
            assert!(said.starts_with(reason), "{said}, and not {reason}");
        }
    }

    #[test]
    fn what_is_no_record_is_said_to_be_none() {
        let worker = sample();
        let name = name(worker.uid);
        let texts = write(&worker, "math", None, &beat()).unwrap();
        let with = |key: &str, value: &str| {
            let mut texts = texts.clone();
            texts.retain(|(k, _)| k != key);
            texts.push((key.into(), value.into()));
            read_again(&name, &texts)
        };
        let wrong = |key: &str| Err(Unbelievable::Wrong(key.to_owned()));
        assert_eq!(with("txtvers", "2"), Err(Unbelievable::Version("2".into())));
        assert_eq!(with("ns", "other"), Err(Unbelievable::Elsewhere));
        assert_eq!(with("secure", "yes"), wrong("secure"));
        assert_eq!(with("pid", "4294967296"), wrong("pid"));
        assert_eq!(with("pid", "+5"), wrong("pid"));
        assert_eq!(with("ttl", "0"), wrong("ttl"));
        assert_eq!(with("ttl", "999999999"), wrong("ttl"));
        assert_eq!(with("beat", "x"), wrong("beat"));
        assert_eq!(with("address", "unix:/run/docker.sock"), wrong("address"));
        assert_eq!(with("address", "localhost:80"), wrong("address"), "a name may mean anything");
        assert_eq!(with("extra0", "=x"), wrong("extra0"));
        assert_eq!(with("version", "1\u{1b}[2J"), wrong("version"));
        assert_eq!(with("more", "of it").map(drop), Ok(()), "what a later one has to say besides does not matter");
        for (key, _) in &texts {
            let without: Vec<_> = texts.iter().filter(|(k, _)| k != key).cloned().collect();
            let optional = key.starts_with("tag") || key.starts_with("extra");
            assert_eq!(read_again(&name, &without).is_ok(), optional, "{key}");
        }
        let silent: Vec<_> = texts.iter().filter(|(key, _)| key != "ttl" && key != "beat").cloned().collect();
        assert_eq!(read_again(&name, &silent).unwrap().beat, None);
        for name in ["x._raddle._tcp.local.", &name.to_uppercase(), &format!("a.{name}"), SERVICE, "", &name[1..]] {
            assert_eq!(read_again(name, &texts), Err(Unbelievable::Name), "{name}");
        }
        let bytes: Vec<_> = texts.iter().map(|(key, value)| (key.as_str(), Some(value.as_bytes()))).collect();
        let and =
            |more: (&'static str, Option<&'static [u8]>)| read(&name, "math", bytes.iter().copied().chain([more]));
        assert_eq!(and(("tag9", Some(b"\xff\xfe"))), wrong("tag9"));
        assert_eq!(and(("tag9", None)).map(drop), Ok(()));
        assert_eq!(and(("tag9", Some(&[b'x'; 300]))), Err(Unbelievable::Long));
        let flood = (0..100).map(|_| ("more", Some(&[b'x'; 200][..])));
        assert_eq!(read(&name, "math", bytes.iter().copied().chain(flood)), Err(Unbelievable::Long));
    }

    proptest! {
        #[test]
        fn nothing_that_others_write_does_harm(texts in prop::collection::vec(
            ("(ns|txtvers|pid|tag[0-9]|extra[0-9]|ttl|beat|secure|address|.{0,20})", prop::option::of(prop::collection::vec(any::<u8>(), 0..300))),
            0..20,
        )) {
            let texts = texts.iter().map(|(key, value)| (key.as_str(), value.as_deref()));
            if let Ok(said) = read(&name(Uid::new()), "math", texts) {
                prop_assert!(said.tags.len() <= MANY && said.version.len() <= LONGEST);
            }
        }
    }
}
