//! What client and server say to each other.
//!
//! Both begin with eight bytes: seven that never change, and the version. The server adds one frame, a [`Welcome`] or the reason why not,
//! and does so without waiting for the client. From then on there are frames: a kind, the id of a call, a length (little-endian), and
//! a payload in MessagePack with names.
//!
//! The client numbers its calls as it likes, and may have many under way; answers come in any order. Every call has exactly one answer,
//! also when it is cancelled: a client that has cancelled must know whether the answer crossed its cancel.
//!
//! Each side reads the other as if it were hostile: lengths have a bound, nesting has a bound, and what cannot be read ends the
//! connection.

use std::time::Duration;

use raddle_core::{Tid, worker::Beat};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Raised with every change that the other side could misread. Another version is refused: the two programs are on one machine, and
/// replacing one means to replace the other.
pub(super) const VERSION: u8 = 10;
const MAGIC: [u8; 7] = *b"raddle\n";
/// The first bytes of either side.
pub(super) const GREETING: [u8; 8] = [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], MAGIC[4], MAGIC[5], MAGIC[6], VERSION];
pub(super) const HEADER: usize = 13;

/// The longest request: a few of the largest specs, or a batch of very many small ones.
pub(super) const MAX_REQUEST: usize = 64 << 20;
/// The longest answer: a list of some hundred thousand tasks. Servers are trusted with more than clients are.
pub(super) const MAX_ANSWER: usize = 512 << 20;
/// Arguments and metadata are JSON, which is nested up to 128 deep when it is read from the store.
const MAX_DEPTH: usize = 256;

/// A frame from the client: a [`Call`](crate::Call). What it returns is a [`Reply`](crate::Reply).
pub(super) const CALL: u8 = 1;
/// A frame from the client: nobody waits for the call of this id any more.
pub(super) const CANCEL: u8 = 2;
/// A frame from the client: a [`Renewal`].
pub(super) const BEAT: u8 = 3;
/// A frame from the server: what the call returned.
pub(super) const DONE: u8 = 16;
/// A frame from the server: the error that the call returned.
pub(super) const FAILED: u8 = 17;
/// A frame from the server: the call was dropped, as asked for.
pub(super) const CANCELLED: u8 = 18;
/// A frame from the server: the end of the greeting.
pub(super) const WELCOME: u8 = 19;
/// A frame from the server: the end of the greeting, and of the connection. Its payload is why.
pub(super) const REFUSED: u8 = 20;

/// Why a client is refused for now. It may come again.
pub(super) const BUSY: &str = "it has as many connections as it can serve";

/// What can be wrong with what the other side says.
#[derive(Debug, thiserror::Error)]
pub(super) enum Malformed {
    #[error("something else than Raddle speaks there")]
    Foreign,
    #[error("version {0} is spoken there, and {VERSION} here: run the same raddle on both sides")]
    Version(u8),
    #[error("a frame of {0} bytes is longer than the {1} that are taken")]
    TooLong(usize, usize),
    #[error("frames of kind {0} are unknown here")]
    UnknownKind(u8),
    #[error("two calls have the id {0}")]
    Twice(u64),
    #[error("more calls at a time than were agreed on")]
    TooMany,
    #[error("unreadable structure in a frame: {0}")]
    Structure(#[from] rmp_serde::decode::Error),
}

/// What the server says when it takes a connection.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    /// How many calls may be under way at a time.
    pub(super) in_flight: u32,
}

/// A beat of a worker's heart. Its answer is a [`Pulse`](crate::Pulse).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Renewal {
    pub(super) worker: Tid,
    pub(super) ttl: Duration,
    pub(super) beat: Beat,
}

/// Reads the first bytes of the other side.
pub(super) fn check_greeting(bytes: &[u8; 8]) -> Result<(), Malformed> {
    let [magic @ .., version] = bytes;
    if *magic != MAGIC {
        return Err(Malformed::Foreign);
    }
    if *version == VERSION { Ok(()) } else { Err(Malformed::Version(*version)) }
}

/// A frame with `value` in it.
pub(super) fn frame(kind: u8, id: u64, value: &impl Serialize) -> Vec<u8> {
    let mut frame = bare(kind, id);
    // With names: enums with an inner tag could not be told from a tuple otherwise, and fields left out not from their neighbours.
    rmp_serde::encode::write_named(&mut frame, value).expect("our own structures are writable to memory");
    // What is longer is refused by its length before it is sent, wherever that can be told from within.
    let len = u32::try_from(frame.len() - HEADER).unwrap_or(u32::MAX);
    frame[HEADER - 4..HEADER].copy_from_slice(&len.to_le_bytes());
    frame
}

/// A frame without a payload.
pub(super) fn bare(kind: u8, id: u64) -> Vec<u8> {
    let mut frame = vec![0; HEADER];
    frame[0] = kind;
    frame[1..9].copy_from_slice(&id.to_le_bytes());
    frame
}

/// Kind, id and length of the payload.
pub(super) fn header(bytes: &[u8; HEADER]) -> (u8, u64, usize) {
    let [kind, a, b, c, d, e, f, g, h, len @ ..] = *bytes;
    (kind, u64::from_le_bytes([a, b, c, d, e, f, g, h]), u32::from_le_bytes(len) as usize)
}

/// Reads a payload.
pub(super) fn read<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Malformed> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(payload);
    reader.set_max_depth(MAX_DEPTH);
    Ok(T::deserialize(&mut reader)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use raddle_core::{CapSet, Control, Exit, QueueName, Report, Retry, Span, Spec, State, Usage, spec::Target};
    use serde_json::json;

    use super::*;
    use crate::{Call, Error, Fence, Finish, Reply, Submit, Submitted, Verdict};

    fn there_and_back<T: Serialize + DeserializeOwned>(value: &T) -> T {
        let frame = frame(CALL, 7, value);
        let (kind, id, len) = header(frame.first_chunk().unwrap());
        assert_eq!((kind, id, len), (CALL, 7, frame.len() - HEADER));
        read(&frame[HEADER..]).unwrap()
    }

    fn tid() -> Tid {
        Tid::from_u64(1_700_000_000_000_000_000).unwrap()
    }

    #[test]
    fn a_spec_with_everything_arrives_as_it_was_sent() {
        let mut spec = Spec::command(["a", "", "ü"]);
        spec.args = vec![json!([1, -1, 1.5, u64::MAX, null, {"a": [true]}])];
        spec.kwargs.insert("k".into(), json!("v"));
        spec.stdin = Some("in\n".into());
        spec.requires = "gpu,cpu".parse::<CapSet>().unwrap();
        spec.delay = Some(Span::millis(1500));
        spec.timeout = Some(Span(Duration::new(20_000_000, 1)));
        spec.limits.memory_mb = Some(5);
        spec.retry = Retry { attempts: 3, ..Retry::default() };
        spec.env = BTreeMap::from([("K".into(), "V".into())]);
        spec.metadata.insert("m".into(), json!({"deep": [[[]]]}));
        for target in [Target::Routine("r".into()), Target::Handler("h".into()), Target::Service("s".into())] {
            let spec = Spec { target, ..spec.clone() };
            assert_eq!(there_and_back(&Submit::new(spec.clone())).spec, spec);
        }
        assert_eq!(there_and_back(&Submit { spec: spec.clone(), parent: Some(tid()) }).spec, spec);
    }

    #[test]
    fn output_travels_as_bytes() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let report = Report {
            exit: Exit::NotFound { message: "m".into() },
            started_at: None,
            ended_at: now,
            usage: Usage::default(),
            stdout_bytes: 1,
            stderr_bytes: 2,
            value: Some(json!({"v": 1})),
        };
        let fence = Fence { tid: tid(), attempt: 2 };
        let finish = Finish { fence, report, stdout: vec![0xff; 10_000], stderr: vec![] };
        assert_eq!(there_and_back(&finish), finish);
        assert!(frame(CALL, 0, &finish).len() < 11_000);
        let text = serde_json::to_string(&finish).unwrap();
        assert_eq!(serde_json::from_str::<Finish>(&text).unwrap(), finish);
    }

    #[test]
    fn errors_arrive_with_their_variant_and_their_text() {
        let queue: QueueName = "raddle.dead".parse().unwrap();
        let path = || "/tmp/x".into();
        let reason = || String::from("r");
        let errors = [
            Error::Invalid(Spec::command([""]).validate().unwrap_err()),
            Error::NotFound(tid()),
            Error::Finished(tid(), State::Completed),
            Error::Unfinished(tid(), State::Running),
            Error::NotDead(tid()),
            Error::KeyTaken { tid: tid(), holder: tid() },
            Error::Superseded { tid: tid(), attempt: 2 },
            Error::ChainFull { tid: tid(), attempt: 2 },
            Error::ChainLost { tid: tid(), attempt: 2 },
            Error::View(queue.clone(), "taken".into()),
            Error::Control("x".parse::<Control>().unwrap_err()),
            Error::ControlQueue(queue),
            Error::Foreign { path: path(), found: reason() },
            Error::Newer { path: path(), found: 2, known: 1 },
            Error::Corrupt { path: path(), found: reason() },
            Error::LogAlone { path: path() },
            Error::Full { path: path() },
            Error::ReadOnly { path: path(), reason: reason() },
            Error::Locked { path: path(), secs: 3, holder: reason() },
            Error::Engine { path: path(), reason: reason() },
            Error::Io { path: path(), reason: reason() },
            Error::Unsynced { path: path(), reason: reason() },
            Error::Record { tid: tid(), reason: reason() },
            Error::Unanswered { place: reason(), what: "has stored a task".into(), reason: reason() },
            Error::Closed,
        ];
        for error in errors {
            let arrived = there_and_back(&error);
            assert_eq!((format!("{arrived:?}"), arrived.to_string()), (format!("{error:?}"), error.to_string()));
            assert_eq!(arrived.is_retryable(), error.is_retryable());
        }
        assert_eq!(there_and_back(&Submitted::Existing(tid())), Submitted::Existing(tid()));
        assert_eq!(there_and_back(&Verdict::Done(State::Killed)), Verdict::Done(State::Killed));
    }

    #[test]
    fn greetings_of_others_are_told_apart() {
        assert!(check_greeting(&GREETING).is_ok());
        assert!(matches!(check_greeting(b"raddle\n\xff"), Err(Malformed::Version(0xff))));
        assert!(matches!(check_greeting(b"GET / HT"), Err(Malformed::Foreign)));
    }

    #[test]
    fn what_is_nested_too_deep_is_refused() {
        // Arrays of one element each, without end.
        let nested = vec![0x91; 100_000];
        assert!(read::<serde_json::Value>(&nested).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes: Vec<u8>) {
            let _ = read::<Call>(&bytes);
            let _ = read::<Reply>(&bytes);
            let _ = read::<Error>(&bytes);
        }
    }
}
