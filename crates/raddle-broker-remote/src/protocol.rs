//! The protocol between client and server.
//!
//! Both sides begin with eight bytes: seven fixed ones and the version. The server adds one frame,
//! a [`Welcome`] or the reason of a refusal, without waiting for the client. Then [`ToServer`] and
//! [`ToClient`] messages follow in the frames of [`raddle_model::frame`].
//!
//! The client chooses the ids of its calls, and may have many in flight; replies come in any order.
//! Every call gets exactly one reply, even if it is cancelled: the client must know whether the
//! reply crossed its cancel.
//!
//! Each side treats the other as hostile: invalid input closes the connection.

use std::time::Duration;

use raddle_model::{Tid, frame, worker::Heartbeat};
use serde::{Deserialize, Serialize};

use raddle_broker::{Error, LeaseStatus, Reply};

/// Incremented with every change that the other side could misread. Another version is refused:
/// both programs are on one machine and are upgraded together.
pub(super) const VERSION: u8 = 12;
const MAGIC: [u8; 7] = *b"raddle\n";
/// The first bytes of either side.
pub(super) const GREETING: [u8; 8] = [
    MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], MAGIC[4], MAGIC[5], MAGIC[6], VERSION,
];

/// The longest request: a few specs of the maximum size, or a batch of many small ones.
pub(super) const MAX_REQUEST: usize = 64 << 20;
/// The longest reply: a list of some hundred thousand tasks. Servers are trusted more than clients.
pub(super) const MAX_REPLY: usize = 512 << 20;

/// A message from the client. `C` is a [`Call`](raddle_broker::Call), or a reference to one.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToServer<C> {
    /// A call of a broker method.
    Call { id: u64, call: C },
    /// Cancels a call.
    Cancel { id: u64 },
    /// Renews the lease of a worker.
    Renew { id: u64, renewal: RenewalRequest },
}

/// A message from the server.
#[derive(Debug, Serialize, Deserialize)]
#[expect(
    clippy::large_enum_variant,
    reason = "short-lived: a box would cost an allocation per call"
)]
pub(super) enum ToClient {
    /// Ends the greeting.
    Welcome(Welcome),
    /// Refuses the connection, with the reason.
    Refused(String),
    /// The result of a call.
    Done { id: u64, reply: Reply },
    /// The result of a renewal.
    Renewed { id: u64, status: LeaseStatus },
    /// The error of a call or a renewal.
    Failed { id: u64, error: Error },
    /// The call was cancelled.
    Cancelled { id: u64 },
}

/// The reason of a temporary refusal.
pub(super) const BUSY: &str = "it serves as many connections as it can";

/// A violation of the protocol.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProtocolError {
    #[error("the peer is not Raddle")]
    Foreign,
    #[error(
        "the peer has protocol version {0}, this program {VERSION}: run the same raddle on both sides"
    )]
    Version(u8),
    #[error("two calls have the id {0}")]
    Twice(u64),
    #[error("more concurrent calls than agreed")]
    TooMany,
    #[error("a reply without a call")]
    Unexpected,
    #[error(transparent)]
    Frame(#[from] frame::FrameError),
}

/// The server's first message to an accepted client.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    /// The limit of concurrent calls.
    pub(super) in_flight: u32,
}

/// A renewal of a worker's lease.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct RenewalRequest {
    pub(super) worker: Tid,
    pub(super) ttl: Duration,
    pub(super) heartbeat: Heartbeat,
}

/// Checks the first bytes of the other side.
pub(super) fn check_greeting(bytes: &[u8; 8]) -> Result<(), ProtocolError> {
    let [magic @ .., version] = bytes;
    if *magic != MAGIC {
        return Err(ProtocolError::Foreign);
    }
    if *version == VERSION {
        Ok(())
    } else {
        Err(ProtocolError::Version(*version))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use raddle_model::frame::{Decoder, encode};
    use raddle_model::{
        AttemptReport, CapSet, ControlMessage, ExitStatus, HumanDuration, QueueName, ResourceUsage,
        RetryPolicy, TaskSpec, TaskState, spec::Target,
    };
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;
    use raddle_broker::{AttemptId, Call, Completion, CompletionOutcome, NewTask, Submitted};

    fn there_and_back<T: Serialize + DeserializeOwned>(value: &T) -> T {
        let mut decoder = Decoder::new(MAX_REQUEST);
        decoder.push(&encode(value));
        decoder.next().unwrap().unwrap()
    }

    fn tid() -> Tid {
        Tid::from_u64(1_700_000_000_000_000_000).unwrap()
    }

    #[test]
    fn a_full_spec_survives_a_round_trip() {
        let mut spec = TaskSpec::command(["a", "", "ü"]);
        spec.args = vec![json!([1, -1, 1.5, u64::MAX, null, {"a": [true]}])];
        spec.kwargs.insert("k".into(), json!("v"));
        spec.stdin = Some("in\n".into());
        spec.requires = "gpu,cpu".parse::<CapSet>().unwrap();
        spec.delay = Some(HumanDuration::millis(1500));
        spec.timeout = Some(HumanDuration(Duration::new(20_000_000, 1)));
        spec.limits.memory_mb = Some(5);
        spec.retry = RetryPolicy {
            attempts: 3,
            ..RetryPolicy::default()
        };
        spec.env = BTreeMap::from([("K".into(), "V".into())]);
        spec.metadata.insert("m".into(), json!({"deep": [[[]]]}));
        for target in [
            Target::Routine("r".into()),
            Target::Handler("h".into()),
            Target::Service("s".into()),
        ] {
            let spec = TaskSpec {
                target,
                ..spec.clone()
            };
            assert_eq!(there_and_back(&NewTask::new(spec.clone())).spec, spec);
        }
        assert_eq!(
            there_and_back(&NewTask {
                spec: spec.clone(),
                parent: Some(tid())
            })
            .spec,
            spec
        );
    }

    #[test]
    fn output_is_encoded_as_bytes() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let report = AttemptReport {
            exit: ExitStatus::NotFound {
                message: "m".into(),
            },
            started_at: None,
            ended_at: now,
            usage: ResourceUsage::default(),
            stdout_bytes: 1,
            stderr_bytes: 2,
            value: Some(json!({"v": 1})),
        };
        let attempt_id = AttemptId {
            tid: tid(),
            attempt: 2,
            owner: tid(),
        };
        let finish = Completion {
            attempt_id,
            report,
            stdout: vec![0xff; 10_000],
            stderr: vec![],
        };
        assert_eq!(there_and_back(&finish), finish);
        assert!(encode(&finish).len() < 11_000);
        let text = serde_json::to_string(&finish).unwrap();
        assert_eq!(serde_json::from_str::<Completion>(&text).unwrap(), finish);
    }

    #[test]
    fn errors_keep_variant_and_text() {
        let queue: QueueName = "raddle.dead".parse().unwrap();
        let path = || "/tmp/x".into();
        let reason = || String::from("r");
        let errors = [
            Error::Invalid(TaskSpec::command([""]).validate().unwrap_err()),
            Error::NotFound(tid()),
            Error::Finished(tid(), TaskState::Completed),
            Error::Unfinished(tid(), TaskState::Running),
            Error::NotDead(tid()),
            Error::KeyTaken {
                tid: tid(),
                holder: tid(),
            },
            Error::Superseded(AttemptId {
                tid: tid(),
                attempt: 2,
                owner: tid(),
            }),
            Error::ChainFull(AttemptId {
                tid: tid(),
                attempt: 2,
                owner: tid(),
            }),
            Error::ChainLost(AttemptId {
                tid: tid(),
                attempt: 2,
                owner: tid(),
            }),
            Error::View(queue.clone(), "taken".into()),
            Error::Control("x".parse::<ControlMessage>().unwrap_err()),
            Error::ControlQueue(queue),
            Error::Foreign {
                path: path(),
                found: reason(),
            },
            Error::Newer {
                path: path(),
                found: 2,
                known: 1,
            },
            Error::Corrupt {
                path: path(),
                found: reason(),
            },
            Error::LogAlone { path: path() },
            Error::Full { path: path() },
            Error::ReadOnly {
                path: path(),
                reason: reason(),
            },
            Error::Locked {
                path: path(),
                secs: 3,
                holder: reason(),
            },
            Error::Io {
                path: path(),
                reason: reason(),
            },
            Error::Unsynced {
                path: path(),
                reason: reason(),
            },
            Error::Record {
                tid: tid(),
                reason: reason(),
            },
            Error::Unanswered {
                place: reason(),
                what: "has stored a task".into(),
                reason: reason(),
            },
            Error::Closed,
        ];
        for error in errors {
            let arrived = there_and_back(&error);
            assert_eq!(
                (format!("{arrived:?}"), arrived.to_string()),
                (format!("{error:?}"), error.to_string())
            );
            assert_eq!(arrived.is_retryable(), error.is_retryable());
        }
        assert_eq!(
            there_and_back(&Submitted::Existing(tid())),
            Submitted::Existing(tid())
        );
        assert_eq!(
            there_and_back(&CompletionOutcome::Finished(TaskState::Killed)),
            CompletionOutcome::Finished(TaskState::Killed)
        );
    }

    #[test]
    fn tells_foreign_greetings_from_other_versions() {
        assert!(check_greeting(&GREETING).is_ok());
        assert!(matches!(
            check_greeting(b"raddle\n\xff"),
            Err(ProtocolError::Version(0xff))
        ));
        assert!(matches!(
            check_greeting(b"GET / HT"),
            Err(ProtocolError::Foreign)
        ));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let mut decoder = Decoder::new(MAX_REQUEST);
            let framed = [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat();
            decoder.push(&framed);
            let _ = decoder.next::<ToServer<Call>>();
            let mut decoder = Decoder::new(MAX_REQUEST);
            decoder.push(&framed);
            let _ = decoder.next::<ToClient>();
        }
    }
}
