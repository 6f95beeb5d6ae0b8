//! The file format of published workers.
//!
//! A JSON object is one worker, a list any number of them. Unknown keys are ignored, so that other
//! programs may add their own; known ones must have the right type. Documented in
//! `docs/how-to/discovery.md`, for programs that write their own files.

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

/// Largest file.
pub(super) const MAX_FILE_SIZE: usize = 1024 * 1024;
/// Largest number of workers in all files together, and of files in a directory.
pub(super) const MAX_WORKERS: usize = 4096;
/// Format version. It increases when a reader of the old format could misunderstand the new one.
const FORMAT: u32 = 1;
/// Longest error message, which may quote the file.
const MAX_REASON: usize = 200;
/// Suffix of entries in a directory.
pub(super) const SUFFIX: &str = ".json";
/// Suffix of an entry while it is written.
const DRAFT_SUFFIX: &str = ".json.draft";
/// An older draft was left by a publisher that was killed.
const MAX_DRAFT_AGE: Duration = Duration::from_secs(60);

/// The entries of a directory. Drafts, which start with a dot, are excluded.
pub(super) fn list_files(directory: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut files = BTreeSet::new();
    for file in fs::read_dir(directory)? {
        let name = file?.file_name();
        let bytes = name.as_encoded_bytes();
        if !bytes.starts_with(b".") && bytes.ends_with(SUFFIX.as_bytes()) {
            files.insert(directory.join(name));
        }
        if files.len() > MAX_WORKERS {
            files.pop_last();
        }
    }
    Ok(files)
}

/// Opens a file. `O_NONBLOCK`, so that a FIFO does not block.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)
}

/// Reads the workers in a file: all of them, or an error if one is invalid.
pub(super) fn read_workers(file: File) -> io::Result<Vec<WorkerMetadata>> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "neither a file nor a directory",
        ));
    }
    let mut text = Vec::new();
    file.take(MAX_FILE_SIZE as u64 + 1).read_to_end(&mut text)?;
    if text.len() > MAX_FILE_SIZE {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {MAX_FILE_SIZE} bytes"),
        ));
    }
    parse(&text).map_err(|mut reason| {
        // The message may quote the whole file.
        reason.truncate(reason.floor_char_boundary(MAX_REASON));
        io::Error::new(io::ErrorKind::InvalidData, reason)
    })
}

/// Writes a worker atomically to a file of this name. With `lock`, the file is locked before it
/// appears; the lock is held as long as the returned file is open.
pub(super) fn write_worker(
    directory: &Path,
    name: &str,
    worker: &WorkerMetadata,
    mode: u32,
    lock: bool,
) -> io::Result<File> {
    worker
        .validate()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let text = [serde_json::to_vec(worker)?, vec![b'\n']].concat();
    let draft = directory.join(format!(".{}{DRAFT_SUFFIX}", name.trim_end_matches(SUFFIX)));
    // Removes the draft of a killed publisher, or a planted symbolic link.
    remove_file(&draft)?;
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&draft)?;
    let mut write = || {
        if lock {
            file.lock()?;
        }
        file.write_all(&text)?;
        fs::rename(&draft, directory.join(name))
    };
    if let Err(error) = write() {
        let _ = fs::remove_file(&draft);
        return Err(error);
    }
    Ok(file)
}

/// Removes drafts of publishers that were killed while writing: no write takes this long.
pub(super) fn remove_old_drafts(directory: &Path) {
    for file in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = file.file_name();
        let is_draft = name.as_encoded_bytes().starts_with(b".")
            && name.as_encoded_bytes().ends_with(DRAFT_SUFFIX.as_bytes());
        let age = file
            .metadata()
            .and_then(|found| found.modified())
            .ok()
            .and_then(|at| at.elapsed().ok());
        if is_draft && age.is_some_and(|age| age > MAX_DRAFT_AGE) {
            let _ = fs::remove_file(file.path());
        }
    }
}

/// Removes a file if it exists.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    fs::remove_file(path).or_else(|error| {
        if is_missing(&error) {
            Ok(())
        } else {
            Err(error)
        }
    })
}

/// Whether the error means that the file does not exist.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn parse(text: &[u8]) -> Result<Vec<WorkerMetadata>, String> {
    let entries = match serde_json::from_slice(text)
        .map_err(|error| format!("incomplete, or not JSON: {error}"))?
    {
        Value::Array(entries) => entries,
        entry @ Value::Object(_) => vec![entry],
        _ => return Err("neither an object nor a list of objects".into()),
    };
    if entries.len() > MAX_WORKERS {
        return Err(format!("more than {MAX_WORKERS} workers"));
    }
    let workers = entries.into_iter().enumerate();
    workers
        .map(|(index, entry)| {
            parse_worker(entry).map_err(|reason| format!("worker {}: {reason}", index + 1))
        })
        .collect()
}

fn parse_worker(entry: Value) -> Result<WorkerMetadata, String> {
    let Value::Object(mut entry) = entry else {
        return Err("not an object".into());
    };
    // Check this first: another format may differ in everything else.
    if let Some(format) = entry.get("format").filter(|format| **format != FORMAT) {
        return Err(format!(
            "unknown format {format}: only {FORMAT} is supported"
        ));
    }
    let address = entry
        .get("address")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let uid = WorkerUid::from_address(address).to_string();
    entry.entry("uid").or_insert_with(|| uid.into());
    let worker: WorkerMetadata = serde_path_to_error::deserialize(Value::Object(entry))
        .map_err(|error| error.to_string())?;
    worker.validate().map_err(|error| error.to_string())?;
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
    fn written_entries_can_be_read() {
        let worker = sample();
        let text = text_of(&worker);
        assert_eq!(parse(&text), Ok(vec![worker.clone()]));
        let list = [b"[", text.as_slice(), b"]"].concat();
        assert_eq!(parse(&list), Ok(vec![worker]));
        assert_eq!(parse(b"[]"), Ok(vec![]));
    }

    #[test]
    fn address_suffices_and_unknown_keys_are_ignored() {
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
            (WorkerUid::from_address("h:1"), 0, "", false)
        );
        assert!(tags.is_empty() && extra.is_empty());
    }

    #[test]
    fn unknown_encodings_are_ignored() {
        let text = br#"[{"address": "h:1", "encodings": ["json", "cbor"]}, {"address": "h:2"}]"#;
        let encodings: Vec<_> = parse(text)
            .unwrap()
            .into_iter()
            .map(|worker| worker.encodings)
            .collect();
        assert_eq!(encodings, [[Encoding::Json].into(), Encodings::new()]);
    }

    #[test]
    fn errors_name_the_worker_and_the_field() {
        for (text, reason) in [
            ("", "incomplete, or not JSON: EOF"),
            ("{\"address\": \"h:1\"", "incomplete, or not JSON: EOF"),
            (
                "{\"address\": \"h:1\"} {}",
                "incomplete, or not JSON: trailing characters",
            ),
            ("\"h:1\"", "neither an object nor a list of objects"),
            ("[[\"h:1\"]]", "worker 1: not an object"),
            ("{}", "worker 1: missing field `address`"),
            (
                "[{\"address\": \"h:1\"}, {\"address\": 1}]",
                "worker 2: address: invalid type: integer `1`",
            ),
            ("{\"address\": \"h\"}", "worker 1: invalid address 'h'"),
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
                "worker 1: unknown format 2: only 1 is supported",
            ),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.starts_with(reason), "{text}: {error}");
        }
        let many = format!(
            "[{}]",
            vec!["{\"address\":\"h:1\"}"; MAX_WORKERS + 1].join(",")
        );
        assert_eq!(
            parse(many.as_bytes()),
            Err(format!("more than {MAX_WORKERS} workers"))
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
        assert!(
            read_workers(open_file(&path).unwrap())
                .unwrap_err()
                .to_string()
                .len()
                <= MAX_REASON
        );
        let wrong = WorkerMetadata {
            address: "nowhere".into(),
            ..sample()
        };
        assert!(write_worker(directory.path(), "wrong.json", &wrong, 0o600, false).is_err());
    }

    proptest! {
        #[test]
        fn truncated_entry_is_refused(cut in 0.0..1.0_f64) {
            let text = text_of(&sample());
            let part = &text[..(text.len() as f64 * cut) as usize];
            prop_assert!(parse(part).unwrap_err().starts_with("incomplete"));
        }

        #[test]
        fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(parse(&bytes).is_err() || bytes.iter().any(|byte| b"[]".contains(byte)));
        }

        #[test]
        fn parsed_workers_are_valid(text in r#"\[?\{("address|"uid|"pid|"tags|h:1|[":,\[\]{}0-9]){0,30}\}?\]?"#) {
            for worker in parse(text.as_bytes()).unwrap_or_default() {
                prop_assert_eq!(worker.validate(), Ok(()));
            }
        }
    }
}
