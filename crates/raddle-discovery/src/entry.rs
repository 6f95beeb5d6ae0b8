//! Files of workers: their form, and how they are read and written.
//!
//! An object is one worker, a list is any number of them. Keys that are not known are passed over, so that others may add their own; what is known
//! has to be of its type. Documented in `docs/how-to/discovery.md`, for programs that write their own.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::OFlags;
use serde_json::Value;

use crate::{WorkerMetadata, WorkerUid};

/// What is longer is no file of workers.
pub(super) const LONGEST: usize = 1024 * 1024;
/// More workers than that are not taken, in all files together; nor more files of a directory.
pub(super) const MOST: usize = 4096;
/// Grows when those who only know the old form could misunderstand the new one.
const FORMAT: u32 = 1;
/// How much is said of what is wrong.
const LONGEST_REASON: usize = 200;
/// What the name of an entry ends with, in a directory.
pub(super) const ENDING: &str = ".json";
/// What the name of an entry ends with while it is written.
const DRAFT: &str = ".json.draft";
/// A draft that is older belongs to no publisher.
const OLDEST_DRAFT: Duration = Duration::from_secs(60);

/// The files of a directory that are named like entries: not those that are being written, which begin with a dot.
pub(super) fn list(directory: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut files = BTreeSet::new();
    for file in fs::read_dir(directory)? {
        let name = file?.file_name();
        let bytes = name.as_encoded_bytes();
        if !bytes.starts_with(b".") && bytes.ends_with(ENDING.as_bytes()) {
            files.insert(directory.join(name));
        }
        if files.len() > MOST {
            files.pop_last();
        }
    }
    Ok(files)
}

/// Opens a file of workers. A FIFO is not waited for.
pub(super) fn open(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)
}

/// The workers in a file: all of them, or none if one is wrong.
pub(super) fn read(file: File) -> io::Result<Vec<WorkerMetadata>> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "neither a file nor a directory",
        ));
    }
    let mut text = Vec::new();
    file.take(LONGEST as u64 + 1).read_to_end(&mut text)?;
    if text.len() > LONGEST {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {LONGEST} bytes"),
        ));
    }
    parse(&text).map_err(|mut reason| {
        // It may be all of the file.
        reason.truncate(reason.floor_char_boundary(LONGEST_REASON));
        io::Error::new(io::ErrorKind::InvalidData, reason)
    })
}

/// Writes a worker to a file of this name, in one step. The file is locked before it has its name, if that is asked for: the lock holds as long as what is
/// returned is open.
pub(super) fn write(
    directory: &Path,
    name: &str,
    worker: &WorkerMetadata,
    mode: u32,
    lock: bool,
) -> io::Result<File> {
    worker
        .check()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let text = [serde_json::to_vec(worker)?, vec![b'\n']].concat();
    let draft = directory.join(format!(".{}{DRAFT}", name.trim_end_matches(ENDING)));
    // One that a publisher left there that was killed, and no link that leads elsewhere.
    remove(&draft)?;
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&draft)?;
    let mut put = || {
        if lock {
            file.lock()?;
        }
        file.write_all(&text)?;
        fs::rename(&draft, directory.join(name))
    };
    if let Err(error) = put() {
        let _ = fs::remove_file(&draft);
        return Err(error);
    }
    Ok(file)
}

/// Removes drafts of publishers that were killed while they wrote: none takes this long.
pub(super) fn remove_old_drafts(directory: &Path) {
    for file in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = file.file_name();
        let is_draft = name.as_encoded_bytes().starts_with(b".")
            && name.as_encoded_bytes().ends_with(DRAFT.as_bytes());
        let age = file
            .metadata()
            .and_then(|found| found.modified())
            .ok()
            .and_then(|at| at.elapsed().ok());
        if is_draft && age.is_some_and(|age| age > OLDEST_DRAFT) {
            let _ = fs::remove_file(file.path());
        }
    }
}

/// Removes a file, if it is there.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path).or_else(|error| {
        if is_absence(&error) {
            Ok(())
        } else {
            Err(error)
        }
    })
}

/// Whether an error says that something is not there.
pub(super) fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn parse(text: &[u8]) -> Result<Vec<WorkerMetadata>, String> {
    let entries = match serde_json::from_slice(text)
        .map_err(|error| format!("half-written, or no JSON: {error}"))?
    {
        Value::Array(entries) => entries,
        entry @ Value::Object(_) => vec![entry],
        _ => return Err("neither an object nor a list of objects".into()),
    };
    if entries.len() > MOST {
        return Err(format!("more than {MOST} workers"));
    }
    let workers = entries.into_iter().enumerate();
    workers
        .map(|(place, entry)| {
            worker(entry).map_err(|reason| format!("worker {}: {reason}", place + 1))
        })
        .collect()
}

fn worker(entry: Value) -> Result<WorkerMetadata, String> {
    let Value::Object(mut entry) = entry else {
        return Err("no object".into());
    };
    // Before all else, which may have another form.
    if let Some(format) = entry.get("format").filter(|format| **format != FORMAT) {
        return Err(format!("of format {format}, and only {FORMAT} is known"));
    }
    let address = entry
        .get("address")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let uid = WorkerUid::of_address(address).to_string();
    entry.entry("uid").or_insert_with(|| uid.into());
    let worker: WorkerMetadata = serde_path_to_error::deserialize(Value::Object(entry))
        .map_err(|error| error.to_string())?;
    worker.check().map_err(|error| error.to_string())?;
    Ok(worker)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Encoding, Encodings};

    fn sample() -> WorkerMetadata {
        WorkerMetadata {
            uid: WorkerUid::new(),
            address: "10.0.0.7:7070".into(),
            pid: 5,
            version: "1.2.3".into(),
            tags: ["gpu".into()].into(),
            extra: [("a".into(), "b".into())].into(),
            secure: true,
            encodings: [Encoding::Json].into(),
        }
    }

    fn text_of(worker: &WorkerMetadata) -> Vec<u8> {
        serde_json::to_vec(worker).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let worker = sample();
        let text = text_of(&worker);
        assert_eq!(parse(&text), Ok(vec![worker.clone()]));
        let list = [b"[", text.as_slice(), b"]"].concat();
        assert_eq!(parse(&list), Ok(vec![worker]));
        assert_eq!(parse(b"[]"), Ok(vec![]));
    }

    #[test]
    fn an_address_is_enough_and_what_is_not_known_is_passed_over() {
        let text = br#" [{"address": "h:1"}, {"address": "h:2", "weight": [3], "comment": null}] "#;
        let read = parse(text).unwrap();
        assert_eq!(
            read.iter()
                .map(|worker| worker.address.as_str())
                .collect::<Vec<_>>(),
            ["h:1", "h:2"]
        );
        let WorkerMetadata {
            uid,
            pid,
            version,
            tags,
            extra,
            secure,
            ..
        } = &read[0];
        assert_eq!(
            (*uid, *pid, version.as_str(), *secure),
            (WorkerUid::of_address("h:1"), 0, "", false)
        );
        assert!(tags.is_empty() && extra.is_empty());
    }

    #[test]
    fn encodings_that_are_not_known_are_passed_over() {
        let text = br#"[{"address": "h:1", "encodings": ["json", "cbor"]}, {"address": "h:2"}]"#;
        let encodings: Vec<_> = parse(text)
            .unwrap()
            .into_iter()
            .map(|worker| worker.encodings)
            .collect();
        assert_eq!(encodings, [[Encoding::Json].into(), Encodings::new()]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, reason) in [
            ("", "half-written, or no JSON: EOF"),
            ("{\"address\": \"h:1\"", "half-written, or no JSON: EOF"),
            (
                "{\"address\": \"h:1\"} {}",
                "half-written, or no JSON: trailing characters",
            ),
            ("\"h:1\"", "neither an object nor a list of objects"),
            ("[[\"h:1\"]]", "worker 1: no object"),
            ("{}", "worker 1: missing field `address`"),
            (
                "[{\"address\": \"h:1\"}, {\"address\": 1}]",
                "worker 2: address: invalid type: integer `1`",
            ),
            ("{\"address\": \"h\"}", "worker 1: 'h' is no address"),
            (
                "{\"address\": \"h:1\", \"pid\": \"5\"}",
                "worker 1: pid: invalid type: string \"5\"",
            ),
            (
                "{\"address\": \"h:1\", \"pid\": -5}",
                "worker 1: pid: invalid value: integer `-5`",
            ),
            (
                "{\"address\": \"h:1\", \"uid\": \"x\"}",
                "worker 1: uid: UUID parsing failed",
            ),
            (
                "{\"address\": \"h:1\", \"tags\": \"gpu\"}",
                "worker 1: tags: invalid type",
            ),
            (
                "{\"address\": \"h:1\", \"extra\": {\"a\": 1}}",
                "worker 1: extra.a: invalid type",
            ),
            (
                "{\"address\": \"h:1\", \"encodings\": \"json\"}",
                "worker 1: encodings: invalid type",
            ),
            (
                "{\"address\": \"h:1\", \"secure\": \"no\"}",
                "worker 1: secure: invalid type",
            ),
            (
                "{\"address\": \"h:1\", \"tags\": [\"\\u001b[2J\"]}",
                "worker 1: tags: has control characters in it",
            ),
            (
                "{\"format\": 2, \"place\": []}",
                "worker 1: of format 2, and only 1 is known",
            ),
        ] {
            let said = parse(text.as_bytes()).unwrap_err();
            assert!(said.starts_with(reason), "{text}: {said}");
        }
        let many = format!("[{}]", vec!["{\"address\":\"h:1\"}"; MOST + 1].join(","));
        assert_eq!(
            parse(many.as_bytes()),
            Err(format!("more than {MOST} workers"))
        );
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("long.json");
        fs::write(
            &path,
            format!(
                "{{\"address\": \"h:1\", \"pid\": \"{}\"}}",
                "ä".repeat(10_000)
            ),
        )
        .unwrap();
        assert!(read(open(&path).unwrap()).unwrap_err().to_string().len() <= LONGEST_REASON);
        let wrong = WorkerMetadata {
            address: "nowhere".into(),
            ..sample()
        };
        assert!(write(directory.path(), "wrong.json", &wrong, 0o600, false).is_err());
    }

    proptest! {
        #[test]
        fn a_part_of_an_entry_is_none(cut in 0.0..1.0_f64) {
            let text = text_of(&sample());
            let part = &text[..(text.len() as f64 * cut) as usize];
            prop_assert!(parse(part).unwrap_err().starts_with("half-written"));
        }

        #[test]
        fn anything_else_is_no_entry(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(parse(&bytes).is_err() || bytes.iter().any(|byte| b"[]".contains(byte)));
        }

        #[test]
        fn whatever_stands_there_is_within_bounds(text in r#"\[?\{("address|"uid|"pid|"tags|h:1|[":,\[\]{}0-9]){0,30}\}?\]?"#) {
            for worker in parse(text.as_bytes()).unwrap_or_default() {
                prop_assert_eq!(worker.check(), Ok(()));
            }
        }
    }
}
