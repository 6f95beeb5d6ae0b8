//! What stands in a file of workers. Pure.
//!
//! An object is one worker, a list is any number of them. Keys that are not known are passed over, so that others may add their own; what is known
//! has to be of its type. Documented in `docs/discovery.md`, for whoever writes one by hand or by a program of his own.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    MetadataError, Uid, WorkerMetadata,
    encoding::{self, Encodings},
};

/// What is longer is no file of workers. So many of them have room there as anybody could call.
pub(super) const LONGEST: usize = 1024 * 1024;
/// More workers than that are not taken, in all files together.
pub(super) const MOST: usize = 4096;
/// Grows when those who only know the old form could misunderstand the new one.
const FORMAT: u32 = 1;
/// How much is said of what is wrong. It may be all of a file.
const LONGEST_REASON: usize = 200;

/// A worker, as it is written down.
#[derive(Serialize, Deserialize)]
struct Entry {
    #[serde(default = "format")]
    format: u32,
    address: String,
    /// If none is said, it follows from the address.
    uid: Option<Uid>,
    #[serde(default)]
    pid: u32,
    #[serde(default)]
    version: String,
    #[serde(default)]
    tags: BTreeSet<String>,
    #[serde(default)]
    extra: BTreeMap<String, String>,
    #[serde(default)]
    secure: bool,
    #[serde(default, deserialize_with = "encoding::deserialize", skip_serializing_if = "Encodings::is_empty")]
    encodings: Encodings,
}

fn format() -> u32 {
    FORMAT
}

/// Why a file is none of workers.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("half-written, or no JSON: {0}")]
    Torn(String),
    #[error("neither an object nor a list of objects")]
    Shape,
    #[error("worker {place}: {reason}")]
    Entry { place: usize, reason: String },
    #[error("more than {MOST} workers")]
    Many,
}

/// What is written of a worker.
pub(super) fn write(worker: &WorkerMetadata) -> Result<Vec<u8>, MetadataError> {
    worker.check()?;
    let WorkerMetadata { uid, address, pid, version, tags, extra, secure, encodings } = worker.clone();
    let entry = Entry { format: FORMAT, address, uid: Some(uid), pid, version, tags, extra, secure, encodings };
    let mut text = serde_json::to_vec(&entry).expect("texts and numbers can be written down");
    text.push(b'\n');
    Ok(text)
}

/// The workers in a file: all of them, or none if one is wrong.
pub(super) fn read(text: &[u8]) -> Result<Vec<WorkerMetadata>, Unreadable> {
    let torn = |error: serde_json::Error| Unreadable::Torn(shortened(error.to_string()));
    let entries = match serde_json::from_slice(text).map_err(torn)? {
        Value::Array(entries) => entries,
        entry @ Value::Object(_) => vec![entry],
        _ => return Err(Unreadable::Shape),
    };
    if entries.len() > MOST {
        return Err(Unreadable::Many);
    }
    let wrong = |place, reason: String| Unreadable::Entry { place: place + 1, reason: shortened(reason) };
    let workers = entries.into_iter().enumerate();
    workers.map(|(place, entry)| worker(entry).map_err(|reason| wrong(place, reason))).collect()
}

fn worker(entry: Value) -> Result<WorkerMetadata, String> {
    #[derive(Deserialize)]
    struct Format {
        #[serde(default = "format")]
        format: u32,
    }
    if !entry.is_object() {
        return Err("no object".into());
    }
    // Before all else, which may have another form.
    let Format { format } = serde_path_to_error::deserialize(&entry).map_err(|error| error.to_string())?;
    if format != FORMAT {
        return Err(format!("of format {format}, and only {FORMAT} is known"));
    }
    let entry: Entry = serde_path_to_error::deserialize(entry).map_err(|error| error.to_string())?;
    let Entry { format: _, address, uid, pid, version, tags, extra, secure, encodings } = entry;
    let uid = uid.unwrap_or_else(|| Uid::of_address(&address));
    let worker = WorkerMetadata { uid, address, pid, version, tags, extra, secure, encodings };
    worker.check().map_err(|error| error.to_string())?;
    Ok(worker)
}

fn shortened(mut reason: String) -> String {
    if reason.len() > LONGEST_REASON {
        reason.truncate(reason.floor_char_boundary(LONGEST_REASON));
        reason.push('…');
    }
    reason
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Encoding;

    fn sample() -> WorkerMetadata {
        WorkerMetadata {
            uid: Uid::new(),
            address: "10.0.0.7:7070".into(),
            pid: 5,
            version: "1.2.3".into(),
            tags: ["gpu".into()].into(),
            extra: [("a".into(), "b".into())].into(),
            secure: true,
            encodings: [Encoding::Json].into(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let worker = sample();
        let text = write(&worker).unwrap();
        assert_eq!(read(&text), Ok(vec![worker.clone()]));
        let list = [b"[", text.as_slice(), b"]"].concat();
        assert_eq!(read(&list), Ok(vec![worker]));
        assert_eq!(read(b"[]"), Ok(vec![]));
    }

    #[test]
    fn an_address_is_enough_and_what_is_not_known_is_passed_over() {
        let text = br#" [{"address": "h:1"}, {"address": "h:2", "weight": [3], "comment": null}] "#;
        let read = read(text).unwrap();
        assert_eq!(read.iter().map(|worker| worker.address.as_str()).collect::<Vec<_>>(), ["h:1", "h:2"]);
        let WorkerMetadata { uid, pid, version, tags, extra, secure, .. } = &read[0];
        assert_eq!((*uid, *pid, version.as_str(), *secure), (Uid::of_address("h:1"), 0, "", false));
        assert!(tags.is_empty() && extra.is_empty());
    }

    #[test]
    fn encodings_that_are_not_known_are_passed_over() {
        let text = br#"[{"address": "h:1", "encodings": ["json", "cbor"]}, {"address": "h:2"}]"#;
        let encodings: Vec<_> = read(text).unwrap().into_iter().map(|worker| worker.encodings).collect();
        assert_eq!(encodings, [[Encoding::Json].into(), Encodings::new()]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, reason) in [
            ("", "half-written, or no JSON: EOF"),
            ("{\"address\": \"h:1\"", "half-written, or no JSON: EOF"),
            ("{\"address\": \"h:1\"} {}", "half-written, or no JSON: trailing characters"),
            ("\"h:1\"", "neither an object nor a list of objects"),
            ("[[\"h:1\"]]", "worker 1: no object"),
            ("{}", "worker 1: missing field `address`"),
            ("[{\"address\": \"h:1\"}, {\"address\": 1}]", "worker 2: address: invalid type: integer `1`"),
            ("{\"address\": \"h\"}", "worker 1: 'h' is no address"),
            ("{\"address\": \"h:1\", \"pid\": \"5\"}", "worker 1: pid: invalid type: string \"5\""),
            ("{\"address\": \"h:1\", \"pid\": -5}", "worker 1: pid: invalid value: integer `-5`"),
            ("{\"address\": \"h:1\", \"uid\": \"x\"}", "worker 1: uid: UUID parsing failed"),
            ("{\"address\": \"h:1\", \"tags\": \"gpu\"}", "worker 1: tags: invalid type"),
            ("{\"address\": \"h:1\", \"extra\": {\"a\": 1}}", "worker 1: extra.a: invalid type"),
            ("{\"address\": \"h:1\", \"encodings\": \"json\"}", "worker 1: encodings: invalid type"),
            ("{\"address\": \"h:1\", \"secure\": \"no\"}", "worker 1: secure: invalid type"),
            ("{\"address\": \"h:1\", \"tags\": [\"\\u001b[2J\"]}", "worker 1: tags: has control characters in it"),
            ("{\"format\": 2, \"place\": []}", "worker 1: of format 2, and only 1 is known"),
        ] {
            let said = read(text.as_bytes()).unwrap_err().to_string();
            assert!(said.starts_with(reason), "{text}: {said}");
        }
        let many = format!("[{}]", vec!["{\"address\":\"h:1\"}"; MOST + 1].join(","));
        assert_eq!(read(many.as_bytes()), Err(Unreadable::Many));
        let long = format!("{{\"address\": \"h:1\", \"pid\": \"{}\"}}", "ä".repeat(10_000));
        assert!(read(long.as_bytes()).unwrap_err().to_string().len() < LONGEST_REASON + 20);
        assert!(write(&WorkerMetadata { address: "nowhere".into(), ..sample() }).is_err());
    }

    proptest! {
        #[test]
        fn a_part_of_an_entry_is_none(cut in 0.0..1.0_f64) {
            let text = write(&sample()).unwrap();
            // All but the end of the line.
            let part = &text[..((text.len() - 1) as f64 * cut) as usize];
            prop_assert!(matches!(read(part), Err(Unreadable::Torn(_))));
        }

        #[test]
        fn anything_else_is_no_entry(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read(&bytes).is_err() || bytes.iter().any(|byte| b"[]".contains(byte)));
        }

        #[test]
        fn whatever_stands_there_is_within_bounds(text in r#"\[?\{("address|"uid|"pid|"tags|h:1|[":,\[\]{}0-9]){0,30}\}?\]?"#) {
            for worker in read(text.as_bytes()).unwrap_or_default() {
                prop_assert_eq!(worker.check(), Ok(()));
            }
        }
    }
}
