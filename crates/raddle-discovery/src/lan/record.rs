//! What the TXT record of a worker says, and what of it is believed. Pure.
//!
//! A record comes from anybody on the network: it is a list of texts in a form that is known, of a length that is bounded, or it is no record.

use std::{collections::BTreeMap, net::SocketAddr, str, time::Duration};

use crate::{WorkerMetadata, WorkerUid, encoding};

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

/// What a record says of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceRecord {
    /// Without an address: where it is is said by other records.
    pub(super) worker: WorkerMetadata,
    /// Where it is reached, if that is not where its host is.
    pub(super) address: Option<SocketAddr>,
    pub(super) beat: Option<LivenessRecord>,
}

/// A sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LivenessRecord {
    /// Which one it is. Each is another.
    pub(super) count: u64,
    /// Without another within this time, the worker is gone.
    pub(super) ttl: Duration,
}

/// What is to be said of a worker, as the texts of a record: a key, and a value. An error says why they are none.
pub(super) fn write(
    worker: &WorkerMetadata,
    namespace: &str,
    address: Option<SocketAddr>,
    beat: &LivenessRecord,
) -> Result<Vec<(String, String)>, String> {
    worker.check().map_err(|error| error.to_string())?;
    let WorkerMetadata {
        uid: _,
        address: _,
        pid,
        version,
        tags,
        extra,
        secure,
        encodings,
    } = worker;
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
    texts.extend(
        tags.iter()
            .enumerate()
            .map(|(place, tag)| (format!("tag{place}"), tag.clone())),
    );
    for (place, (name, value)) in extra.iter().enumerate() {
        if name.is_empty() || name.contains('=') {
            return Err(format!(
                "'{name}' cannot be the name of an extra value on the network: it is empty, or has a '='"
            ));
        }
        texts.push((format!("extra{place}"), format!("{name}={value}")));
    }
    let lengths = || texts.iter().map(|(key, value)| key.len() + 1 + value.len());
    if let Some(((key, value), length)) = texts
        .iter()
        .zip(lengths())
        .find(|(_, length)| *length > LONGEST)
    {
        let begin = shown(value);
        return Err(format!(
            "'{key}={begin}…' takes {length} bytes, and a record has room for {LONGEST} in one place"
        ));
    }
    let whole: usize = lengths().map(|length| 1 + length).sum();
    if whole > WHOLE {
        let (tags, extra) = (tags.len(), extra.len());
        return Err(format!(
            "all that is to be said of it takes {whole} bytes, and a record has room for {WHOLE}: it has {tags} tags, and {extra} extra values"
        ));
    }
    Ok(texts)
}

/// The name of a worker among the services of the network.
pub(super) fn name(uid: WorkerUid) -> String {
    format!("{uid}.{SERVICE}")
}

/// Whose name this is.
pub(super) fn uid(name: &str) -> Option<WorkerUid> {
    let uid = name
        .strip_suffix(SERVICE)?
        .strip_suffix('.')?
        .parse::<WorkerUid>()
        .ok()?;
    // A UUID can be written in several ways; one of them is ours.
    (self::name(uid) == name).then_some(uid)
}

/// What is said under this name: `None` if it is said in another namespace, and an error if it is not believed. Of each key there is one text: the first.
pub(super) fn read<'a>(
    name: &str,
    namespace: &str,
    texts: impl IntoIterator<Item = (&'a str, Option<&'a [u8]>)>,
) -> Result<Option<ServiceRecord>, String> {
    let uid = uid(name).ok_or("its name is no uid")?;
    let texts = &collect(texts)?;
    let maybe = |key: &str| texts.get(key).map(String::as_str);
    let get = |key: &str| maybe(key).ok_or_else(|| format!("'{key}' is missing"));
    let wrong = |key: &str| format!("'{key}' is not what it should be");
    let number = |key: &str| {
        let digits = Some(get(key)?).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        digits
            .and_then(|text| text.parse::<u64>().ok())
            .ok_or_else(|| wrong(key))
    };
    // The texts of keys that are counted: `tag0`, `tag1` and so on.
    let listed = |kind: &'static str| {
        (0..MANY).filter_map(move |place| texts.get(&format!("{kind}{place}")))
    };
    // Before all else, which may have another form.
    let version = get("txtvers")?;
    if version != VERSION {
        return Err(format!(
            "of version '{}', and only {VERSION} is known",
            shown(version)
        ));
    }
    if get("ns")? != namespace {
        return Ok(None);
    }
    let beat = match (maybe("ttl"), maybe("beat")) {
        (None, None) => None,
        _ => {
            let ttl = Some(Duration::from_secs(number("ttl")?))
                .filter(|ttl| !ttl.is_zero() && *ttl <= PATIENCE);
            Some(LivenessRecord {
                count: number("beat")?,
                ttl: ttl.ok_or_else(|| wrong("ttl"))?,
            })
        }
    };
    let extra =
        listed("extra").map(|text| text.split_once('=').filter(|(name, _)| !name.is_empty()));
    let extra = extra.map(|pair| pair.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let worker = WorkerMetadata {
        uid,
        address: String::new(),
        pid: number("pid")?.try_into().map_err(|_| wrong("pid"))?,
        version: get("version")?.to_owned(),
        tags: listed("tag").cloned().collect(),
        extra: extra.collect::<Option<_>>().ok_or_else(|| wrong("extra"))?,
        secure: match get("secure")? {
            "0" => false,
            "1" => true,
            _ => return Err(wrong("secure")),
        },
        encodings: maybe("encodings")
            .map(encoding::of_names)
            .unwrap_or_default(),
    };
    let address = maybe("address")
        .map(str::parse)
        .transpose()
        .map_err(|_| wrong("address"))?;
    Ok(Some(ServiceRecord {
        worker,
        address,
        beat,
    }))
}

/// The texts of a record, by their keys in lower case.
fn collect<'a>(
    texts: impl IntoIterator<Item = (&'a str, Option<&'a [u8]>)>,
) -> Result<BTreeMap<String, String>, String> {
    let (mut read, mut whole) = (BTreeMap::new(), 0);
    for (key, value) in texts {
        let value = value.unwrap_or_default();
        whole += 2 + key.len() + value.len();
        if whole > WHOLE || key.len() + value.len() > LONGEST {
            return Err("it says too much".into());
        }
        let value = str::from_utf8(value).map_err(|_| format!("'{}' is no text", shown(key)))?;
        read.entry(key.to_ascii_lowercase())
            .or_insert_with(|| value.to_owned());
    }
    Ok(read)
}

/// A part of what others have written, for the log.
fn shown(text: &str) -> String {
    text.chars()
        .take(20)
        .flat_map(char::escape_default)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn beat() -> LivenessRecord {
        LivenessRecord {
            count: 7,
            ttl: Duration::from_secs(15),
        }
    }

    fn sample() -> WorkerMetadata {
        WorkerMetadata {
            uid: WorkerUid::new(),
            address: "0.0.0.0:7000".into(),
            pid: 5,
            version: "1.2.3".into(),
            tags: ["gpu".into(), "größer".into()].into(),
            extra: [
                ("zone".into(), "b=c".into()),
                ("empty".into(), String::new()),
            ]
            .into(),
            secure: true,
            encodings: [].into(),
        }
    }

    fn read_again(name: &str, texts: &[(String, String)]) -> Result<Option<ServiceRecord>, String> {
        read(
            name,
            "math",
            texts
                .iter()
                .map(|(key, value)| (key.as_str(), Some(value.as_bytes()))),
        )
    }

    #[test]
    fn what_is_written_is_read() {
        let worker = WorkerMetadata {
            encodings: [encoding::Encoding::Json].into(),
            ..sample()
        };
        let address = Some("10.0.0.1:80".parse().unwrap());
        let texts = write(&worker, "math", address, &beat()).unwrap();
        let said = read_again(&name(worker.uid), &texts).unwrap();
        let worker = WorkerMetadata {
            address: String::new(),
            ..worker
        };
        assert_eq!(
            said,
            Some(ServiceRecord {
                worker,
                address,
                beat: Some(beat())
            })
        );
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let said = |change: fn(&mut WorkerMetadata)| {
            let mut worker = sample();
            change(&mut worker);
            write(&worker, "math", None, &beat()).unwrap_err()
        };
        let many =
            |worker: &mut WorkerMetadata| worker.tags = (0..65).map(|n| n.to_string()).collect();
        let whole = |worker: &mut WorkerMetadata| {
            worker.tags = (10..18)
                .map(|n| format!("{n}{}", "x".repeat(120)))
                .collect()
        };
        for (said, reason) in [
            (
                said(|worker| worker.tags = ["x".repeat(300)].into()),
                "tags: longer than 128 bytes",
            ),
            (
                said(|worker| worker.extra = [("k".into(), "v".repeat(300))].into()),
                "'extra0=k=vvvvvvvvvvvvvvvvvv…' takes 309 bytes",
            ),
            (
                said(|worker| worker.extra = [("a=b".into(), String::new())].into()),
                "'a=b' cannot be the name",
            ),
            (
                said(|worker| worker.tags = ["a\nb".into()].into()),
                "tags: has control characters",
            ),
            (said(many), "tags: 65 are more than 64"),
            (
                said(whole),
                "all that is to be said of it takes 1115 bytes, and a record has room for 1000: it has 8 tags",
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
        let wrong = |key: &str| Err(format!("'{key}' is not what it should be"));
        assert_eq!(
            with("txtvers", "2"),
            Err("of version '2', and only 1 is known".into())
        );
        assert_eq!(with("ns", "other"), Ok(None));
        assert_eq!(with("secure", "yes"), wrong("secure"));
        assert_eq!(with("pid", "4294967296"), wrong("pid"));
        assert_eq!(with("pid", "+5"), wrong("pid"));
        assert_eq!(with("ttl", "0"), wrong("ttl"));
        assert_eq!(with("ttl", "999999999"), wrong("ttl"));
        assert_eq!(with("beat", "x"), wrong("beat"));
        assert_eq!(with("address", "unix:/run/docker.sock"), wrong("address"));
        assert_eq!(
            with("address", "localhost:80"),
            wrong("address"),
            "a name may mean anything"
        );
        assert_eq!(with("extra0", "=x"), wrong("extra"));
        assert_eq!(
            with("more", "of it").map(drop),
            Ok(()),
            "what a later one has to say besides does not matter"
        );
        for (key, _) in &texts {
            let without: Vec<_> = texts.iter().filter(|(k, _)| k != key).cloned().collect();
            let optional = key.starts_with("tag") || key.starts_with("extra");
            assert_eq!(read_again(&name, &without).is_ok(), optional, "{key}");
        }
        let silent: Vec<_> = texts
            .iter()
            .filter(|(key, _)| key != "ttl" && key != "beat")
            .cloned()
            .collect();
        assert_eq!(read_again(&name, &silent).unwrap().unwrap().beat, None);
        for name in [
            "x._raddle._tcp.local.",
            &name.to_uppercase(),
            &format!("a.{name}"),
            SERVICE,
            "",
            &name[1..],
        ] {
            assert_eq!(
                read_again(name, &texts),
                Err("its name is no uid".into()),
                "{name}"
            );
        }
        let bytes: Vec<_> = texts
            .iter()
            .map(|(key, value)| (key.as_str(), Some(value.as_bytes())))
            .collect();
        let and = |more: (&'static str, Option<&'static [u8]>)| {
            read(&name, "math", bytes.iter().copied().chain([more]))
        };
        assert_eq!(
            and(("tag9", Some(b"\xff\xfe"))),
            Err("'tag9' is no text".into())
        );
        assert_eq!(and(("tag9", None)).map(drop), Ok(()));
        assert_eq!(
            and(("tag9", Some(&[b'x'; 300]))),
            Err("it says too much".into())
        );
        let flood = (0..100).map(|_| ("more", Some(&[b'x'; 200][..])));
        assert_eq!(
            read(&name, "math", bytes.iter().copied().chain(flood)),
            Err("it says too much".into())
        );
    }

    proptest! {
        #[test]
        fn nothing_that_others_write_does_harm(texts in prop::collection::vec(
            ("(ns|txtvers|pid|tag[0-9]|extra[0-9]|ttl|beat|secure|address|.{0,20})", prop::option::of(prop::collection::vec(any::<u8>(), 0..300))),
            0..20,
        )) {
            let texts = texts.iter().map(|(key, value)| (key.as_str(), value.as_deref()));
            if let Ok(Some(ServiceRecord { worker, .. })) = read(&name(WorkerUid::new()), "math", texts) {
                prop_assert!(worker.tags.len() <= MANY && worker.version.len() <= LONGEST);
            }
        }
    }
}
