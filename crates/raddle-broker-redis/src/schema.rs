//! The keys of a namespace. They share one hash tag, so that they are on one node of a cluster and
//! scripts can access them all.

use raddle_model::{CapSet, QueueName, TaskSpec, Tid, queue_name::TaskQueue};

use raddle_broker::OutputStream;

/// Something to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    /// A control message was stored.
    Control,
    /// An event or output was written.
    Log,
    /// A message was stored.
    Queue,
}

/// The tasks of one priority and queue that need the same capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    pub(super) name: String,
    pub(super) priority: u8,
    pub(super) queue: String,
    pub(super) needs: CapSet,
}

/// Where the messages of a queue are stored.
pub(super) struct MessageKeys {
    pub(super) key: String,
    /// The prefix of its members, if it shares the key with other queues.
    pub(super) prefix: String,
    /// Its name for the list of queues, if it cannot be found otherwise.
    pub(super) listed: String,
    /// Not empty if a message must wake a worker.
    pub(super) mark: &'static str,
}

impl MessageKeys {
    /// The queue as `append` in `lua/common.lua` expects it.
    pub(super) fn args(&self) -> [Vec<u8>; 4] {
        [&*self.key, &*self.prefix, &*self.listed, self.mark].map(|text| text.as_bytes().to_vec())
    }
}

/// The names of all keys in a namespace.
pub(super) struct Keys {
    prefix: String,
    fixed: Vec<String>,
}

/// The fixed keys and their types. Scripts name them in capitals.
pub(super) const FIXED: [(&str, &str); 30] = [
    ("meta", "hash"),
    ("specs", "hash"),
    ("records", "hash"),
    ("finished", "hash"),
    ("created", "stream"),
    ("log", "stream"),
    ("counters", "hash"),
    ("ready", "zset"),
    ("delayed", "zset"),
    ("owned", "zset"),
    ("leases", "zset"),
    ("commands", "zset"),
    ("task_messages", "zset"),
    ("retention", "zset"),
    ("dead_letters", "zset"),
    ("unique_keys", "hash"),
    ("partitions", "set"),
    ("queues", "set"),
    ("workers", "hash"),
    ("heartbeats", "hash"),
    ("output", "hash"),
    ("ephemeral_workers", "set"),
    ("schedules", "hash"),
    ("due_schedules", "zset"),
    ("expiries", "zset"),
    ("chained", "hash"),
    ("batches", "zset"),
    ("unsuccessful", "zset"),
    ("paused_queues", "set"),
    ("operations", "hash"),
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

    /// The fixed keys.
    pub(super) fn fixed(&self) -> &[String] {
        &self.fixed
    }

    /// The types of the fixed keys.
    pub(super) fn types() -> impl Iterator<Item = &'static str> {
        FIXED.iter().map(|(_, kind)| *kind)
    }

    /// One of the fixed keys.
    pub(super) fn named(&self, name: &str) -> &str {
        let index = FIXED
            .iter()
            .position(|(known, _)| *known == name)
            .expect("only names from the list are asked for");
        &self.fixed[index]
    }

    /// The prefix of all keys and channels.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A key that never exists. Scripts declare it beside `meta`, so that a cluster node that is
    /// migrating the slot replies `TRYAGAIN` instead of running them while some keys are gone.
    pub(super) fn absent(&self) -> String {
        format!("{}absent", self.prefix)
    }

    /// The channel of a topic.
    pub(super) fn channel(&self, topic: Topic) -> String {
        let name = match topic {
            Topic::Control => "control",
            Topic::Log => "log",
            Topic::Queue => "queue",
        };
        format!("{}notify:{name}", self.prefix)
    }

    /// The list that wakes workers of a partition.
    pub(super) fn partition_wakeups(&self, partition: &str) -> String {
        format!("{}wake:partition:{partition}", self.prefix)
    }

    /// The list that wakes one worker.
    pub(super) fn worker_wakeups(&self, worker: Tid) -> String {
        format!("{}wake:worker:{worker}", self.prefix)
    }

    /// The hash of a worker for operators.
    pub(super) fn worker(&self, worker: Tid) -> String {
        format!("{}worker:{worker}", self.prefix)
    }

    /// The outcomes of a minute since the epoch.
    pub(super) fn outcomes(&self, minute: i64) -> String {
        format!("{}outcomes:{minute}", self.prefix)
    }

    /// The progress of a task.
    pub(super) fn progress(&self, tid: Tid) -> String {
        format!("{}progress:{tid}", self.prefix)
    }

    /// Live output of an attempt.
    pub(super) fn output(&self, tid: Tid, attempt: u32, stream: OutputStream) -> String {
        format!(
            "{}live_output:{}",
            self.prefix,
            output_field(tid, attempt, stream)
        )
    }

    /// Where the messages of a queue are stored.
    pub(super) fn queue(&self, queue: &QueueName) -> MessageKeys {
        match queue {
            // All task queues share two keys, so that scripts can access them for any task.
            QueueName::Task(tid, TaskQueue::CtrlIn) => MessageKeys {
                key: self.named("commands").into(),
                prefix: format!("{tid}:"),
                listed: String::new(),
                mark: "commands",
            },
            QueueName::Task(tid, _) => {
                let name = queue.to_string();
                let port = name.rsplit('.').next().unwrap_or_default();
                MessageKeys {
                    key: self.named("task_messages").into(),
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

/// The field of an attempt's output in `output`.
pub(super) fn output_field(tid: Tid, attempt: u32, stream: OutputStream) -> String {
    format!("{tid}:{attempt}:{}", stream as u8)
}

/// An id as a stream entry id: its slot of 4096 ns, and the counter in it.
pub(super) fn stream_id(id: u64) -> String {
    format!("{}-{}", id >> 12, id & 4095)
}

/// The id of a stream entry.
pub(super) fn from_stream_id(text: &str) -> Option<u64> {
    let (slot, counter) = text.split_once('-')?;
    slot.parse::<u64>()
        .ok()?
        .checked_mul(4096)?
        .checked_add(counter.parse().ok()?)
}

impl Partition {
    /// The name of a task's partition.
    pub(super) fn name_of(spec: &TaskSpec) -> String {
        format!("{}|{}|{}", spec.priority.min(9), spec.queue, spec.needs())
    }

    /// Parses the name of a partition.
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
        let partition = Partition::parse(&Partition::name_of(&spec)).unwrap();
        assert_eq!(
            (
                partition.name.as_str(),
                partition.priority,
                partition.queue.as_str()
            ),
            ("7|mail|cpu,gpu", 7, "mail")
        );
        assert_eq!(partition.needs, spec.needs());
    }
}
