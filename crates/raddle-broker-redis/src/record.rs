//! Stored records of tasks, as text that can be read with `redis-cli`.

use std::fmt;

use raddle_model::{AttemptCounters, AttemptReport, ControlCommand, TaskSpec, TaskState, Tid};

use super::{event_index::EventIndex, name::name_of, schema::Partition};
use raddle_broker::{Error, Result};

/// The largest integer that Lua scripts represent exactly (numbers are doubles).
const EXACT: u64 = (1 << 53) - 1;

/// The flags of a record, added up.
const PAUSED: u8 = 1;
const CHAINED: u8 = 2;
const STOP_RECEIVED: u8 = 4;
const KILL_RECEIVED: u8 = 8;

/// The status of an unfinished task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskLocation {
    Ready,
    Delayed,
    Paused,
    Spawning,
    Running,
}

/// The record of an unfinished task. A task that was only ever ready has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) location: TaskLocation,
    pub(super) counters: AttemptCounters,
    /// The partition. Workers have none.
    pub(super) partition: Option<String>,
    pub(super) owner: Option<Tid>,
    /// In microseconds since the epoch.
    pub(super) claimed_at: Option<i64>,
    pub(super) pid: Option<u32>,
    pub(super) paused: bool,
    /// Whether the current attempt has chained tasks.
    pub(super) chained: bool,
    /// The command to end the task that the worker has received. Stored as one number with
    /// `chained` and `paused`.
    pub(super) pending_command: Option<ControlCommand>,
    /// In nanoseconds since the epoch.
    pub(super) run_at: Option<i64>,
    /// The retention of the record, in milliseconds.
    pub(super) ttl: u64,
    /// Since when the task is ready, in microseconds since the epoch; `None` for its creation.
    pub(super) since: Option<i64>,
    pub(super) events: EventIndex,
    /// The display name as it is stored: see [`name_of`](super::name::name_of).
    pub(super) name: String,
    /// The unique key that the task holds, or empty.
    pub(super) key: String,
}

/// A stored spec, preceded by a header with what scripts need of it.
pub(super) struct StoredSpec<'a> {
    pub(super) partition: Option<&'a str>,
    pub(super) ttl: u64,
    pub(super) parent: Option<Tid>,
    pub(super) name: &'a str,
    pub(super) key: &'a str,
    pub(super) json: &'a str,
}

/// The record of a finished task.
pub(super) struct FinishedRecord {
    pub(super) state: TaskState,
    pub(super) dead: bool,
    pub(super) owner: Option<Tid>,
    pub(super) counters: AttemptCounters,
    /// In microseconds since the epoch.
    pub(super) finished_at: i64,
    pub(super) service: bool,
    pub(super) events: EventIndex,
    pub(super) report: String,
}

/// Serialises a spec with its header.
pub(super) fn stored(
    spec: &TaskSpec,
    parent: Option<Tid>,
    service: bool,
    ttl: std::time::Duration,
    json: &str,
) -> String {
    let partition = if service {
        "-".into()
    } else {
        Partition::name_of(spec)
    };
    let ttl = millis(ttl);
    format!(
        "{partition} {ttl} {} {} {}\n{json}",
        or_dash(parent),
        name_of(spec),
        key_of(spec)
    )
}

/// A duration that scripts can add to a time.
pub(super) fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis())
        .unwrap_or(u64::MAX)
        .min(EXACT / 2)
}

/// A unique key as it is stored: on one line.
pub(super) fn key_of(spec: &TaskSpec) -> String {
    spec.unique_key.as_ref().map_or(String::new(), |key| {
        serde_json::to_string(key).expect("a string serializes")
    })
}

pub(super) fn unreadable(tid: Tid, reason: impl fmt::Display) -> Error {
    Error::Record {
        tid,
        reason: reason.to_string(),
    }
}

impl StoredSpec<'_> {
    pub(super) fn parse(tid: Tid, text: &str) -> Result<StoredSpec<'_>> {
        let parse = || {
            let (head, json) = text.split_once('\n')?;
            let mut fields = head.splitn(5, ' ');
            let partition = optional(fields.next()?);
            let ttl = fields.next()?.parse().ok()?;
            let parent = fields.next()?.parse().ok();
            Some(StoredSpec {
                partition,
                ttl,
                parent,
                name: fields.next()?,
                key: fields.next()?,
                json,
            })
        };
        parse().ok_or_else(|| unreadable(tid, "the header of its spec cannot be parsed"))
    }

    pub(super) fn spec(&self, tid: Tid) -> Result<TaskSpec> {
        serde_json::from_str(self.json).map_err(|e| unreadable(tid, e))
    }

    /// The record of a task that has none yet.
    pub(super) fn initial_record(&self) -> Record {
        Record {
            location: TaskLocation::Ready,
            counters: AttemptCounters::default(),
            partition: self.partition.map(Into::into),
            owner: None,
            claimed_at: None,
            pid: None,
            paused: false,
            chained: false,
            pending_command: None,
            run_at: None,
            ttl: self.ttl,
            since: None,
            events: EventIndex::default(),
            name: self.name.into(),
            key: self.key.into(),
        }
    }
}

impl Record {
    pub(super) fn parse(tid: Tid, text: &str) -> Result<Self> {
        let parse = || {
            let mut fields = text.splitn(15, ' ');
            let location = TaskLocation::parse(fields.next()?)?;
            let mut count = || fields.next()?.parse().ok();
            let counters = AttemptCounters {
                attempt: count()?,
                failures: count()?,
                losses: count()?,
            };
            let partition = optional(fields.next()?).map(Into::into);
            let owner = fields.next()?.parse().ok();
            let claimed_at = fields.next()?.parse().ok();
            let pid = fields.next()?.parse().ok();
            let flags: u8 = fields.next()?.parse().ok()?;
            let (paused, chained, pending_command) = (
                flags & PAUSED != 0,
                flags & CHAINED != 0,
                command_of_flags(flags),
            );
            let run_at = fields.next()?.parse().ok();
            let ttl = fields.next()?.parse().ok()?;
            let since = fields.next()?.parse().ok();
            let events = EventIndex::parse(fields.next()?)?;
            let (name, key) = (fields.next()?.into(), fields.next()?.into());
            Some(Self {
                location,
                counters,
                partition,
                owner,
                claimed_at,
                pid,
                paused,
                chained,
                pending_command,
                run_at,
                ttl,
                since,
                events,
                name,
                key,
            })
        };
        parse().ok_or_else(|| unreadable(tid, "its record cannot be parsed"))
    }

    pub(super) fn is_active(&self) -> bool {
        self.state().is_active()
    }

    pub(super) fn state(&self) -> TaskState {
        match self.location {
            TaskLocation::Ready | TaskLocation::Delayed | TaskLocation::Paused => {
                TaskState::Created
            }
            TaskLocation::Spawning => TaskState::Spawning,
            TaskLocation::Running => TaskState::Running,
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttemptCounters {
            attempt,
            failures,
            losses,
        } = self.counters;
        write!(
            f,
            "{} {attempt} {failures} {losses} {} {} {} {} {} {} {} {} {} {} {}",
            self.location.as_str(),
            or_dash(self.partition.as_deref()),
            or_dash(self.owner),
            or_dash(self.claimed_at),
            or_dash(self.pid),
            u8::from(self.paused) * PAUSED
                + u8::from(self.chained) * CHAINED
                + flag_of(self.pending_command),
            or_dash(self.run_at),
            self.ttl,
            or_dash(self.since),
            self.events,
            self.name,
            self.key,
        )
    }
}

impl FinishedRecord {
    pub(super) fn parse(tid: Tid, text: &str) -> Result<Self> {
        let parse = || {
            let (head, report) = text.split_once('\n')?;
            let mut fields = head.splitn(9, ' ');
            Some(Self {
                state: TaskState::from_u8(fields.next()?.parse().ok()?)?,
                dead: fields.next()? == "1",
                owner: fields.next()?.parse().ok(),
                counters: AttemptCounters {
                    attempt: fields.next()?.parse().ok()?,
                    failures: fields.next()?.parse().ok()?,
                    losses: fields.next()?.parse().ok()?,
                },
                finished_at: fields.next()?.parse().ok()?,
                service: fields.next()? == "1",
                events: EventIndex::parse(fields.next()?)?,
                report: report.into(),
            })
        };
        parse().ok_or_else(|| unreadable(tid, "its final record cannot be parsed"))
    }

    pub(super) fn report(&self, tid: Tid) -> Result<AttemptReport> {
        serde_json::from_str(&self.report).map_err(|e| unreadable(tid, e))
    }
}

impl fmt::Display for FinishedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttemptCounters {
            attempt,
            failures,
            losses,
        } = self.counters;
        let owner = or_dash(self.owner);
        let (state, dead, service) = (
            self.state as u8,
            u8::from(self.dead),
            u8::from(self.service),
        );
        write!(
            f,
            "{state} {dead} {owner} {attempt} {failures} {losses} {} {service} {}\n{}",
            self.finished_at, self.events, self.report
        )
    }
}

impl TaskLocation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "r",
            Self::Delayed => "d",
            Self::Paused => "p",
            Self::Spawning => "s",
            Self::Running => "x",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [
            Self::Ready,
            Self::Delayed,
            Self::Paused,
            Self::Spawning,
            Self::Running,
        ]
        .into_iter()
        .find(|p| p.as_str() == text)
    }
}

/// The flag of a command that ends a task.
pub(super) fn flag_of(pending_command: Option<ControlCommand>) -> u8 {
    match pending_command {
        Some(ControlCommand::Stop) => STOP_RECEIVED,
        Some(ControlCommand::Kill) => KILL_RECEIVED,
        _ => 0,
    }
}

/// The command of added flags; `KILL` takes precedence.
fn command_of_flags(flags: u8) -> Option<ControlCommand> {
    [ControlCommand::Kill, ControlCommand::Stop]
        .into_iter()
        .find(|word| flags & flag_of(Some(*word)) != 0)
}

fn optional(text: &str) -> Option<&str> {
    Some(text).filter(|text| *text != "-")
}

/// A value as it is stored; `-` for none, which does not parse as a number.
fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or("-".into(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tid() -> Tid {
        Tid::from_u64(1_763_248_964_000_000_000).unwrap()
    }

    #[test]
    fn a_record_survives_a_round_trip() {
        let plain = Record {
            location: TaskLocation::Ready,
            counters: AttemptCounters {
                attempt: 3,
                failures: 1,
                losses: 2,
            },
            partition: Some("5|default|".into()),
            owner: None,
            claimed_at: None,
            pid: None,
            paused: false,
            chained: false,
            pending_command: None,
            run_at: None,
            ttl: 1000,
            since: None,
            events: EventIndex::default(),
            name: "x".into(),
            key: String::new(),
        };
        let full = Record {
            location: TaskLocation::Running,
            owner: Some(tid()),
            claimed_at: Some(1_763_248_964_000_000),
            pid: Some(7),
            paused: true,
            chained: true,
            pending_command: Some(ControlCommand::Stop),
            run_at: Some(1_763_248_964_000_000_001),
            key: "\"a key with blanks\"".into(),
            since: Some(1_763_248_964_000_001),
            events: EventIndex {
                is_cut: true,
                entries: vec![1_763_248_964_000_004_095, 1_763_248_964_000_004_096],
            },
            ..plain.clone()
        };
        let chained = Record {
            paused: false,
            pending_command: Some(ControlCommand::Kill),
            ..full.clone()
        };
        for record in [plain, full, chained] {
            assert_eq!(Record::parse(tid(), &record.to_string()).unwrap(), record);
        }
        assert_eq!(
            command_of_flags(PAUSED | STOP_RECEIVED | KILL_RECEIVED),
            Some(ControlCommand::Kill)
        );
        assert!(Record::parse(tid(), "r 1 2").is_err());
    }

    #[test]
    fn a_spec_survives_a_round_trip() {
        let spec = TaskSpec {
            unique_key: Some("two\nlines".into()),
            ..TaskSpec::command(["x"])
        };
        let json = serde_json::to_string(&spec).unwrap();
        let text = stored(
            &spec,
            Some(tid()),
            false,
            std::time::Duration::from_secs(1),
            &json,
        );
        let read = StoredSpec::parse(tid(), &text).unwrap();
        assert_eq!(
            (read.partition, read.ttl, read.parent),
            (Some("5|default|"), 1000, Some(tid()))
        );
        assert_eq!(read.name, "x");
        assert_eq!(
            (read.key, read.spec(tid()).unwrap()),
            ("\"two\\nlines\"", spec)
        );
    }
}
