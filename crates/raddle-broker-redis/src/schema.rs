//! The names of everything this engine keeps. One hash tag per namespace, so that on a cluster all of it is in one place and scripts can
//! reach it.

use raddle_model::{CapSet, QueueName, TaskSpec, Tid, queue_name::TaskQueue};

use raddle_broker::OutputStream;

/// What one can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    /// A control message is on its way to a worker.
    Control,
    /// The log or an attempt's output has grown.
    Log,
    /// A queue has a new message.
    Queue,
}

/// What a worker must serve and offer, and how urgent: the tasks that wait for the same workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    pub(super) name: String,
    pub(super) priority: u8,
    pub(super) queue: String,
    pub(super) needs: CapSet,
}

/// Where the messages of a queue are.
pub(super) struct MessageKeys {
    pub(super) key: String,
    /// What its members begin with, where it shares a key with others.
    pub(super) prefix: String,
    /// Its name in the list of queues, where it is not found otherwise.
    pub(super) listed: String,
    /// `words`, where a worker is to be woken.
    pub(super) mark: &'static str,
}

impl MessageKeys {
    /// The queue, as `append` in `lua/common.lua` takes it.
    pub(super) fn args(&self) -> [Vec<u8>; 4] {
        [&*self.key, &*self.prefix, &*self.listed, self.mark].map(|text| text.as_bytes().to_vec())
    }
}

/// The names in one namespace.
pub(super) struct Keys {
    prefix: String,
    fixed: Vec<String>,
}

/// The keys that are always there, and what each of them is. Scripts have their names in capitals.
pub(super) const FIXED: [(&str, &str); 27] = [
    ("meta", "hash"),
    ("spec", "hash"),
    ("task", "hash"),
    ("done", "hash"),
    ("born", "stream"),
    ("log", "stream"),
    ("count", "hash"),
    ("line", "zset"),
    ("delayed", "zset"),
    ("owned", "zset"),
    ("lease", "zset"),
    ("words", "zset"),
    ("ports", "zset"),
    ("expiry", "zset"),
    ("dead", "set"),
    ("uniques", "hash"),
    ("parts", "set"),
    ("queues", "set"),
    ("workers", "hash"),
    ("beats", "hash"),
    ("output", "hash"),
    ("own", "set"),
    ("schedules", "hash"),
    ("agenda", "zset"),
    ("expiring", "zset"),
    ("chained", "hash"),
    ("batches", "zset"),
];

impl Keys {
    pub(super) fn new(namespace: &str) -> Self {
        let prefix = format!("raddle:{{{namespace}}}:");
        let fixed = FIXED
            .iter()
            .map(|(name, _)| format!("{prefix}{name}"))
            .collect();
        Self { prefix, fixed }
    }

    /// The keys that are always there.
    pub(super) fn fixed(&self) -> &[String] {
        &self.fixed
    }

    /// The types of those keys.
    pub(super) fn types() -> impl Iterator<Item = &'static str> {
        FIXED.iter().map(|(_, kind)| *kind)
    }

    /// One of the keys that are always there.
    pub(super) fn of(&self, name: &str) -> &str {
        let index = FIXED
            .iter()
            .position(|(known, _)| *known == name)
            .expect("only names from the list are asked for");
        &self.fixed[index]
    }

    /// What the names of all keys and channels begin with.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A key that never exists. Scripts declare it beside `meta`, so that a node of a cluster answers `TRYAGAIN` while it moves the namespace,
    /// instead of running them where some keys are gone.
    pub(super) fn absent(&self) -> String {
        format!("{}absent", self.prefix)
    }

    /// The channel of a topic.
    pub(super) fn bell(&self, topic: Topic) -> String {
        let name = match topic {
            Topic::Control => "control",
            Topic::Log => "log",
            Topic::Queue => "queue",
        };
        format!("{}bell:{name}", self.prefix)
    }

    /// The list by which workers are woken that wait for tasks of a partition.
    pub(super) fn ready(&self, part: &str) -> String {
        format!("{}ready:{part}", self.prefix)
    }

    /// The list by which one worker alone is woken.
    pub(super) fn wake(&self, worker: Tid) -> String {
        format!("{}wake:{worker}", self.prefix)
    }

    /// What operators see of a worker.
    pub(super) fn worker(&self, worker: Tid) -> String {
        format!("{}worker:{worker}", self.prefix)
    }

    /// How far a task has come.
    pub(super) fn progress(&self, tid: Tid) -> String {
        format!("{}progress:{tid}", self.prefix)
    }

    /// Output that is written while its attempt runs.
    pub(super) fn output(&self, tid: Tid, attempt: u32, stream: OutputStream) -> String {
        format!("{}out:{}", self.prefix, output_field(tid, attempt, stream))
    }

    /// Where the messages of a queue are.
    pub(super) fn queue(&self, queue: &QueueName) -> MessageKeys {
        match queue {
            // Those of tasks share a key each, so that scripts reach them whatever task they are about to end.
            QueueName::Task(tid, TaskQueue::CtrlIn) => MessageKeys {
                key: self.of("words").into(),
                prefix: format!("{tid}:"),
                listed: String::new(),
                mark: "words",
            },
            QueueName::Task(tid, _) => {
                let name = queue.to_string();
                let port = name.rsplit('.').next().unwrap_or_default();
                MessageKeys {
                    key: self.of("ports").into(),
                    prefix: format!("{tid}.{port}:"),
                    listed: String::new(),
                    mark: "",
                }
            }
            _ => {
                let name = queue.to_string();
                MessageKeys {
                    key: format!("{}queue:{name}", self.prefix),
                    prefix: String::new(),
                    listed: name,
                    mark: "",
                }
            }
        }
    }
}

/// Where the output of an attempt stands among all that came whole.
pub(super) fn output_field(tid: Tid, attempt: u32, stream: OutputStream) -> String {
    format!("{tid}:{attempt}:{}", stream as u8)
}

/// An id as it stands in a stream: its slot of 4096 ns, and the counter in it.
pub(super) fn stream_id(id: u64) -> String {
    format!("{}-{}", id >> 12, id & 4095)
}

/// The id that a stream's entry stands for.
pub(super) fn from_stream_id(text: &str) -> Option<u64> {
    let (slot, counter) = text.split_once('-')?;
    slot.parse::<u64>()
        .ok()?
        .checked_mul(4096)?
        .checked_add(counter.parse().ok()?)
}

impl Partition {
    /// The name of the partition that a task belongs to.
    pub(super) fn name_of(spec: &TaskSpec) -> String {
        format!("{}|{}|{}", spec.priority.min(9), spec.queue, spec.needs())
    }

    /// Reads a partition's name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let mut fields = name.splitn(3, '|');
        let priority = fields.next()?.parse().ok()?;
        let (queue, needs) = (fields.next()?.to_owned(), fields.next()?.parse().ok()?);
        Some(Self {
            name: name.to_owned(),
            priority,
            queue,
            needs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_a_round_trip() {
        for id in [
            1_500_000_000_000_000_001,
            1_763_248_964_000_004_095,
            i64::MAX as u64,
        ] {
            assert_eq!(from_stream_id(&stream_id(id)), Some(id));
        }
        assert_eq!(from_stream_id("7"), None);
    }

    #[test]
    fn parses_the_name_of_a_partition() {
        let spec = TaskSpec {
            queue: "mail".into(),
            priority: 7,
            requires: "gpu,cpu".parse().unwrap(),
            ..TaskSpec::command(["x"])
        };
        let part = Partition::parse(&Partition::name_of(&spec)).unwrap();
        assert_eq!(
            (part.name.as_str(), part.priority, part.queue.as_str()),
            ("7|mail|cpu,gpu", 7, "mail")
        );
        assert_eq!(part.needs, spec.needs());
    }
}
