//! The TXT record of a worker. Pure.
//!
//! A record may come from any host: it is a bounded list of texts in a known format, or it is
//! refused.

use std::{collections::BTreeMap, net::SocketAddr, str, time::Duration};

use crate::{WorkerMetadata, WorkerUid, encoding};

/// The DNS-SD service type of workers.
pub(super) const SERVICE: &str = "_raddle._tcp.local.";
/// Format version. It increases when a reader of the old format could misunderstand the new one.
const VERSION: &str = "1";
/// Longest text of a record, including its key: DNS has a length byte.
const MAX_TEXT: usize = 255;
/// Longest record. With the other records of a service, it fits into an Ethernet frame.
pub(super) const MAX_RECORD: usize = 1000;
/// Largest number of tags, and of extra values.
const MAX_LIST: usize = 64;
/// Longest TTL of a liveness record.
const MAX_TTL: Duration = Duration::from_secs(3600);

/// A decoded record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceRecord {
    /// Without its address, which is in other records.
    pub(super) worker: WorkerMetadata,
    /// The worker's address, if it is not that of its host.
    pub(super) address: Option<SocketAddr>,
    pub(super) liveness: Option<LivenessRecord>,
}

/// The part of a TXT record that shows that the worker is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LivenessRecord {
    /// Differs in each announcement.
    pub(super) count: u64,
    /// Without a further announcement within this time, the worker is gone.
    pub(super) ttl: Duration,
}

/// Encodes a worker as key-value texts.
pub(super) fn encode(
    worker: &WorkerMetadata,
    namespace: &str,
    address: Option<SocketAddr>,
    liveness: &LivenessRecord,
) -> Result<Vec<(String, String)>, String> {
    worker.validate().map_err(|error| error.to_string())?;
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
        ("ttl".to_owned(), liveness.ttl.as_secs().to_string()),
        ("beat".to_owned(), liveness.count.to_string()),
    ];
    if !encodings.is_empty() {
        texts.push(("encodings".to_owned(), encoding::to_names(encodings)));
    }
    texts.extend(address.map(|address| ("address".to_owned(), address.to_string())));
    texts.extend(
        tags.iter()
            .enumerate()
            .map(|(index, tag)| (format!("tag{index}"), tag.clone())),
    );
    for (index, (name, value)) in extra.iter().enumerate() {
        if name.is_empty() || name.contains('=') {
            return Err(format!(
                "'{name}' cannot be the name of an extra value on the network: it is empty, or contains '='"
            ));
        }
        texts.push((format!("extra{index}"), format!("{name}={value}")));
    }
    let lengths = || texts.iter().map(|(key, value)| key.len() + 1 + value.len());
    if let Some(((key, value), length)) = texts
        .iter()
        .zip(lengths())
        .find(|(_, length)| *length > MAX_TEXT)
    {
        let begin = escape_text(value);
        return Err(format!(
            "'{key}={begin}…' has {length} bytes, and the limit for a text is {MAX_TEXT}"
        ));
    }
    let total: usize = lengths().map(|length| 1 + length).sum();
    if total > MAX_RECORD {
        let (tags, extra) = (tags.len(), extra.len());
        return Err(format!(
            "the record has {total} bytes, and the limit is {MAX_RECORD}: it has {tags} tags and {extra} extra values"
        ));
    }
    Ok(texts)
}

/// The service instance name of a worker.
pub(super) fn service_name(uid: WorkerUid) -> String {
    format!("{uid}.{SERVICE}")
}

/// The worker with this service instance name.
pub(super) fn parse_service_name(name: &str) -> Option<WorkerUid> {
    let uid = name
        .strip_suffix(SERVICE)?
        .strip_suffix('.')?
        .parse::<WorkerUid>()
        .ok()?;
    // Only the canonical form of the UUID is accepted.
    (service_name(uid) == name).then_some(uid)
}

/// Decodes the record of a service. `None` if it is of another namespace. If a key occurs twice,
/// the first one counts.
pub(super) fn decode<'a>(
    name: &str,
    namespace: &str,
    texts: impl IntoIterator<Item = (&'a str, Option<&'a [u8]>)>,
) -> Result<Option<ServiceRecord>, String> {
    let uid = parse_service_name(name).ok_or("its name is not a uid")?;
    let texts = &collect_texts(texts)?;
    let maybe = |key: &str| texts.get(key).map(String::as_str);
    let get = |key: &str| maybe(key).ok_or_else(|| format!("'{key}' is missing"));
    let wrong = |key: &str| format!("'{key}' is invalid");
    let number = |key: &str| {
        let digits = Some(get(key)?).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        digits
            .and_then(|text| text.parse::<u64>().ok())
            .ok_or_else(|| wrong(key))
    };
    // The texts of numbered keys: `tag0`, `tag1` and so on.
    let listed = |kind: &'static str| {
        (0..MAX_LIST).filter_map(move |index| texts.get(&format!("{kind}{index}")))
    };
    // Check this first: another format may differ in everything else.
    let version = get("txtvers")?;
    if version != VERSION {
        return Err(format!(
            "unknown version '{}': only {VERSION} is supported",
            escape_text(version)
        ));
    }
    if get("ns")? != namespace {
        return Ok(None);
    }
    let liveness = match (maybe("ttl"), maybe("beat")) {
        (None, None) => None,
        _ => {
            let ttl = Some(Duration::from_secs(number("ttl")?))
                .filter(|ttl| !ttl.is_zero() && *ttl <= MAX_TTL);
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
            .map(encoding::from_names)
            .unwrap_or_default(),
    };
    let address = maybe("address")
        .map(str::parse)
        .transpose()
        .map_err(|_| wrong("address"))?;
    Ok(Some(ServiceRecord {
        worker,
        address,
        liveness,
    }))
}

/// The texts by lower-case key.
fn collect_texts<'a>(
    texts: impl IntoIterator<Item = (&'a str, Option<&'a [u8]>)>,
) -> Result<BTreeMap<String, String>, String> {
    let (mut read, mut total) = (BTreeMap::new(), 0);
    for (key, value) in texts {
        let value = value.unwrap_or_default();
        total += 2 + key.len() + value.len();
        if total > MAX_RECORD || key.len() + value.len() > MAX_TEXT {
            return Err("it is too long".into());
        }
        let value =
            str::from_utf8(value).map_err(|_| format!("'{}' is not UTF-8", escape_text(key)))?;
        read.entry(key.to_ascii_lowercase())
            .or_insert_with(|| value.to_owned());
    }
    Ok(read)
}

/// Escapes and shortens text of others, for messages.
fn escape_text(text: &str) -> String {
    text.chars()
        .take(20)
        .flat_map(char::escape_default)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample_liveness() -> LivenessRecord {
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

    fn decode_texts(
        name: &str,
        texts: &[(String, String)],
    ) -> Result<Option<ServiceRecord>, String> {
        decode(
            name,
            "math",
            texts
                .iter()
                .map(|(key, value)| (key.as_str(), Some(value.as_bytes()))),
        )
    }

    #[test]
    fn encoded_record_can_be_decoded() {
        let worker = WorkerMetadata {
            encodings: [encoding::Encoding::Json].into(),
            ..sample()
        };
        let address = Some("10.0.0.1:80".parse().unwrap());
        let texts = encode(&worker, "math", address, &sample_liveness()).unwrap();
        let record = decode_texts(&service_name(worker.uid), &texts).unwrap();
        let worker = WorkerMetadata {
            address: String::new(),
            ..worker
        };
        assert_eq!(
            record,
            Some(ServiceRecord {
                worker,
                address,
                liveness: Some(sample_liveness())
            })
        );
    }

    #[test]
    fn oversized_values_are_named() {
        let error_of = |change: fn(&mut WorkerMetadata)| {
            let mut worker = sample();
            change(&mut worker);
            encode(&worker, "math", None, &sample_liveness()).unwrap_err()
        };
        let many =
            |worker: &mut WorkerMetadata| worker.tags = (0..65).map(|n| n.to_string()).collect();
        let total = |worker: &mut WorkerMetadata| {
            worker.tags = (10..18)
                .map(|n| format!("{n}{}", "x".repeat(120)))
                .collect()
        };
        for (error, reason) in [
            (
                error_of(|worker| worker.tags = ["x".repeat(300)].into()),
                "tags: longer than 128 bytes",
            ),
            (
                error_of(|worker| worker.extra = [("k".into(), "v".repeat(300))].into()),
                "'extra0=k=vvvvvvvvvvvvvvvvvv…' has 309 bytes",
            ),
            (
                error_of(|worker| worker.extra = [("a=b".into(), String::new())].into()),
                "'a=b' cannot be the name",
            ),
            (
                error_of(|worker| worker.tags = ["a\nb".into()].into()),
                "tags: has control characters",
            ),
            (error_of(many), "tags: 65 are more than 64"),
            (
                error_of(total),
                "the record has 1115 bytes, and the limit is 1000: it has 8 tags",
            ),
        ] {
            assert!(error.starts_with(reason), "{error}, and not {reason}");
        }
    }

    #[test]
    fn invalid_records_are_refused() {
        let worker = sample();
        let name = service_name(worker.uid);
        let texts = encode(&worker, "math", None, &sample_liveness()).unwrap();
        let with = |key: &str, value: &str| {
            let mut texts = texts.clone();
            texts.retain(|(k, _)| k != key);
            texts.push((key.into(), value.into()));
            decode_texts(&name, &texts)
        };
        let wrong = |key: &str| Err(format!("'{key}' is invalid"));
        assert_eq!(
            with("txtvers", "2"),
            Err("unknown version '2': only 1 is supported".into())
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
            "a host name could resolve to anything"
        );
        assert_eq!(with("extra0", "=x"), wrong("extra"));
        assert_eq!(
            with("more", "of it").map(drop),
            Ok(()),
            "unknown keys are ignored"
        );
        for (key, _) in &texts {
            let without: Vec<_> = texts.iter().filter(|(k, _)| k != key).cloned().collect();
            let optional = key.starts_with("tag") || key.starts_with("extra");
            assert_eq!(decode_texts(&name, &without).is_ok(), optional, "{key}");
        }
        let silent: Vec<_> = texts
            .iter()
            .filter(|(key, _)| key != "ttl" && key != "beat")
            .cloned()
            .collect();
        assert_eq!(
            decode_texts(&name, &silent).unwrap().unwrap().liveness,
            None
        );
        for name in [
            "x._raddle._tcp.local.",
            &name.to_uppercase(),
            &format!("a.{name}"),
            SERVICE,
            "",
            &name[1..],
        ] {
            assert_eq!(
                decode_texts(name, &texts),
                Err("its name is not a uid".into()),
                "{name}"
            );
        }
        let bytes: Vec<_> = texts
            .iter()
            .map(|(key, value)| (key.as_str(), Some(value.as_bytes())))
            .collect();
        let and = |more: (&'static str, Option<&'static [u8]>)| {
            decode(&name, "math", bytes.iter().copied().chain([more]))
        };
        assert_eq!(
            and(("tag9", Some(b"\xff\xfe"))),
            Err("'tag9' is not UTF-8".into())
        );
        assert_eq!(and(("tag9", None)).map(drop), Ok(()));
        assert_eq!(
            and(("tag9", Some(&[b'x'; 300]))),
            Err("it is too long".into())
        );
        let flood = (0..100).map(|_| ("more", Some(&[b'x'; 200][..])));
        assert_eq!(
            decode(&name, "math", bytes.iter().copied().chain(flood)),
            Err("it is too long".into())
        );
    }

    proptest! {
        #[test]
        fn decoder_never_panics(texts in prop::collection::vec(
            ("(ns|txtvers|pid|tag[0-9]|extra[0-9]|ttl|beat|secure|address|.{0,20})", prop::option::of(prop::collection::vec(any::<u8>(), 0..300))),
            0..20,
        )) {
            let texts = texts.iter().map(|(key, value)| (key.as_str(), value.as_deref()));
            if let Ok(Some(ServiceRecord { worker, .. })) = decode(&service_name(WorkerUid::new()), "math", texts) {
                prop_assert!(worker.tags.len() <= MAX_LIST && worker.version.len() <= MAX_TEXT);
            }
        }
    }
}
