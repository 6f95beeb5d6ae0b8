//! What stands in the file of a worker, and what it is called.

use std::{fmt, io, str::FromStr};

use serde::{Deserialize, Serialize};

use super::process::Process;
use crate::{Uid, WorkerMetadata};

/// What is longer is no entry.
pub(super) const LONGEST: usize = 64 * 1024;
/// Grows when those who only know the old form could misunderstand the new one.
const VERSION: u32 = 1;
/// What the name of an entry ends with.
pub(super) const ENDING: &str = ".json";

/// The name of an entry: whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Name {
    pub(super) uid: Uid,
    pub(super) process: Process,
}

/// What stands in an entry.
#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    worker: WorkerMetadata,
}

/// Why a file is no entry.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("of version {0}, and only {VERSION} is known")]
    Version(u32),
    #[error("not what its name says")]
    Misnamed,
    #[error("torn, or no entry: {0}")]
    Torn(String),
    #[error("{0}")]
    Foreign(&'static str),
    #[error("cannot be read: {0}")]
    Io(io::ErrorKind),
}

/// What is written of a worker.
pub(super) fn write(worker: &WorkerMetadata) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Written { version: VERSION, worker: worker.clone() })
}

/// What was written of the worker that an entry of this name is of.
pub(super) fn read(name: Name, text: &[u8]) -> Result<WorkerMetadata, Unreadable> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let torn = |error: serde_json::Error| Unreadable::Torn(error.to_string());
    // Before all else, which may have another form.
    let Version { version } = serde_json::from_slice(text).map_err(torn)?;
    if version != VERSION {
        return Err(Unreadable::Version(version));
    }
    let Written { worker, .. } = serde_json::from_slice(text).map_err(torn)?;
    if worker.uid != name.uid || worker.pid != name.process.pid {
        return Err(Unreadable::Misnamed);
    }
    Ok(worker)
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}{ENDING}", self.uid, self.process)
    }
}

impl FromStr for Name {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (uid, process) = text.strip_suffix(ENDING).and_then(|text| text.split_once('.')).ok_or(())?;
        let name = Self { uid: uid.parse().map_err(drop)?, process: process.parse()? };
        // A UUID can be written in several ways; one of them is ours.
        if name.to_string() == text { Ok(name) } else { Err(()) }
    }
}

/// The name of a file while it is written: whose it is tells whether somebody still will.
pub(super) fn draft_name(writer: Process, count: u64) -> String {
    format!(".{writer}.{count}")
}

/// Who writes the file of this name, if it is one that is being written.
pub(super) fn draft_writer(name: &str) -> Option<Process> {
    let (writer, count) = name.strip_prefix('.')?.split_once('.')?;
    count.parse::<u64>().ok()?;
    writer.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Encoding;

    fn sample() -> (Name, WorkerMetadata) {
        let uid = Uid::new();
        let worker = WorkerMetadata {
            uid,
            address: "unix-abstract:x".into(),
            pid: 5,
            version: "1.2.3".into(),
            tags: ["gpu".into()].into(),
            extra: [("a".into(), "b".into())].into(),
            secure: true,
            encodings: Encoding::ALL.into(),
        };
        (Name { uid, process: "5-6-7".parse().unwrap() }, worker)
    }

    #[test]
    fn what_is_written_is_read() {
        let (name, worker) = sample();
        assert_eq!(read(name, &write(&worker).unwrap()), Ok(worker));
        assert_eq!(name.to_string().parse(), Ok(name));
        assert_eq!(name.to_string(), format!("{}.5-6-7.json", name.uid));
        let shouting = name.to_string().to_uppercase().replace("JSON", "json");
        for wrong in ["x.5-6-7.json", ".json", "", &name.to_string()[1..], &format!("{name}x"), &shouting] {
            assert_eq!(wrong.parse::<Name>(), Err(()), "{wrong}");
        }
        let writer = "5-6-7".parse().unwrap();
        assert_eq!(draft_writer(&draft_name(writer, 3)), Some(writer));
        for wrong in ["", ".", "..", "5-6-7.3", ".5-6-7", ".5-6-7.x", &name.to_string()] {
            assert_eq!(draft_writer(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_no_entry_is_said_to_be_none() {
        let (name, worker) = sample();
        let text = String::from_utf8(write(&worker).unwrap()).unwrap();
        let later = text.replace("\"version\":1", "\"version\":2,\"new\":[]");
        assert_eq!(read(name, later.as_bytes()), Err(Unreadable::Version(2)));
        let mut other = worker.clone();
        other.pid = 6;
        assert_eq!(read(name, &write(&other).unwrap()), Err(Unreadable::Misnamed));
        let other = WorkerMetadata { uid: Uid::new(), ..worker };
        assert_eq!(read(name, &write(&other).unwrap()), Err(Unreadable::Misnamed));
        // What a later one has to say besides does not matter.
        assert!(read(name, text.replace("\"worker\"", "\"new\":1,\"worker\"").as_bytes()).is_ok());
    }

    proptest! {
        #[test]
        fn a_part_of_an_entry_is_none(cut in 0.0..1.0_f64) {
            let (name, worker) = sample();
            let text = write(&worker).unwrap();
            let part = &text[..(text.len() as f64 * cut) as usize];
            prop_assert!(matches!(read(name, part), Err(Unreadable::Torn(_))));
        }

        #[test]
        fn anything_else_is_no_entry(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let (name, _) = sample();
            prop_assert!(matches!(read(name, &bytes), Err(Unreadable::Torn(_))));
        }
    }
}
