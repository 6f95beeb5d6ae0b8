//! `raddle.toml`: its groups, and the line numbers of errors.

use std::collections::BTreeMap;

use serde::{Deserialize, de::IgnoredAny};
use toml::de::{DeTable, DeValue};

use super::{GroupConfigError, Process, check::check};

/// An invalid `raddle.toml`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {error}")]
pub struct GroupFileError {
    /// The line, counted from 1.
    pub line: usize,
    /// The error.
    #[source]
    pub error: GroupConfigError,
}

impl GroupFileError {
    /// Finds the line of an error.
    pub fn locate(text: &str, error: GroupConfigError) -> Self {
        Self {
            line: find_line(text, &error.path),
            error,
        }
    }
}

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupFile {
    /// The broker, which is read elsewhere.
    #[serde(default, rename = "queue_url")]
    _queue_url: Option<IgnoredAny>,
    #[serde(default)]
    process: BTreeMap<String, Process>,
}

/// Parses and checks a `raddle.toml`. Groups are ordered by name.
pub fn parse(text: &str) -> Result<Vec<Process>, GroupFileError> {
    let locate = |parse_error: toml::de::Error, path: String| {
        let mut reason = parse_error.message().trim_end().to_owned();
        if path == "process" {
            reason += ": write the name in the heading, as in [process.mail]";
        }
        let error = GroupConfigError { path, reason };
        let line = parse_error.span().map_or_else(
            || find_line(text, &error.path),
            |span| line_at(text, span.start),
        );
        GroupFileError { line, error }
    };
    let reader = toml::Deserializer::parse(text).map_err(|error| locate(error, ".".into()))?;
    let GroupFile { process, .. } = serde_path_to_error::deserialize(reader).map_err(|error| {
        let path = error.path().to_string();
        locate(error.into_inner(), path)
    })?;
    let named = |(name, process): (String, Process)| Process { name, ..process };
    let processes: Vec<Process> = process.into_iter().map(named).collect();
    check(&processes).map_err(|error| GroupFileError::locate(text, error))?;
    Ok(processes)
}

/// The line of a path, or of the last part of it that exists.
fn find_line(text: &str, path: &str) -> usize {
    let Ok(table) = DeTable::parse(text) else {
        return 1;
    };
    let (mut here, mut at) = (DeValue::Table(table.into_inner()), 0);
    for word in path
        .split(['.', '['])
        .map(|word| word.trim_end_matches(']'))
    {
        let next = match here {
            DeValue::Table(table) => table
                .into_iter()
                .find(|(key, _)| key.get_ref() == word)
                .map(|(key, value)| (key.span(), value)),
            DeValue::Array(items) => word.parse().ok().and_then(|number: usize| {
                let item = items.into_iter().nth(number)?;
                Some((item.span(), item))
            }),
            _ => None,
        };
        let Some((span, value)) = next else { break };
        (here, at) = (value.into_inner(), span.start);
    }
    line_at(text, at)
}

fn line_at(text: &str, offset: usize) -> usize {
    text.bytes()
        .take(offset)
        .filter(|byte| *byte == b'\n')
        .count()
        + 1
}

#[cfg(test)]
mod tests {
    use raddle_model::HumanDuration;
    use raddle_supervisor::RestartPolicy;

    use super::*;

    const FILE: &str = r#"
queue_url = "redis://localhost"

[process.mail]
replicas = 3
shutdown_timeout = "5s"
restart = "on-failure"
max_tasks = 1000
startup = ["./warm-up"]
after = ["clock"]

[[process.mail.worker]]
slug = "mail"
sources = ["orders", "refunds"]
execution_timeout = 120
command = ["python3", "mail.py"]
on_error = "retry"

[process.clock]
[[process.clock.worker]]
slug = "tick"
routine = "tick"
trigger = { cron = "*/5 * * * *", timezone = "Europe/Berlin", missed = "skip" }
[[process.clock.worker]]
slug = "tock"
command = ["tock"]
trigger = { every = "10s", lifetime = "5s" }
"#;

    #[test]
    fn parses_a_file() {
        let processes = parse(FILE).unwrap();
        let [clock, mail] = &processes[..] else {
            panic!("{processes:?}")
        };
        assert_eq!(
            (mail.name.as_str(), mail.replicas, mail.restart),
            ("mail", 3, RestartPolicy::OnFailure)
        );
        assert_eq!(
            (mail.shutdown_timeout, mail.workers[0].execution_timeout),
            (HumanDuration::secs(5), HumanDuration::secs(120))
        );
        assert_eq!(clock.workers[0].schedule().unwrap().zone(), "Europe/Berlin");
        assert_eq!(
            clock.workers[1].schedule().unwrap().every,
            Some(HumanDuration::secs(10))
        );
    }

    fn parse_error(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    /// The error of a process and a worker with these lines.
    fn error_of(process: &str, worker: &str) -> String {
        parse_error(&format!(
            "[process.a]\n{process}\n[[process.a.worker]]\nslug = 'x'\n{worker}\n"
        ))
    }

    #[test]
    fn errors_name_line_key_and_fix() {
        let keys = "`worker`, `replicas`, `concurrency`, `shutdown_timeout`, `start_timeout`, `hang_timeout`, `restart`, `max_tasks`, `max_age`, `max_rss_mb`, `jitter`, `hosts`, `host`, `startup`, `shutdown`, `after`, `caps`, `reconnect`";
        assert_eq!(
            error_of("replica = 2", ""),
            format!("2: at 'process.a.replica': unknown field `replica`, expected one of {keys}")
        );
        assert_eq!(
            parse_error("proces = 1"),
            "1: at 'proces': unknown field `proces`, expected `queue_url` or `process`"
        );
        assert_eq!(
            parse_error(""),
            "1: at 'process': there is none: write a table [process.NAME]"
        );
        assert_eq!(
            parse_error("\n[process.a]\nreplicas = 2"),
            "2: at 'process.a': it hosts no worker: write a table [[process.a.worker]]"
        );
        assert_eq!(
            error_of(
                "",
                "command = ['x']\n[process.b]\n[[process.b.worker]]\nslug = 'x'"
            ),
            "8: at 'process.b.worker[0].slug': 'x' is that of process.a.worker[0]: give each its own"
        );
        assert_eq!(
            error_of("replicas = 2", "[[process.a.worker]]\nslug = 'y'"),
            "2: at 'process.a.replicas': more than one replica is for a process with one worker: write a process for each"
        );
        assert_eq!(
            error_of("replicas = 2", "command = ['x']\ntrigger = { every = 5 }"),
            "2: at 'process.a.replicas': more than one replica is for workers without a trigger: leave out one of the two"
        );
        assert_eq!(
            error_of("replicas = 0", ""),
            "2: at 'process.a.replicas': 0 is not between 1 and 1000"
        );
        assert_eq!(
            error_of("", "execution_timeout = 0"),
            "5: at 'process.a.worker[0].execution_timeout': 0ns is not between 10ms and 7 days"
        );
        assert_eq!(
            error_of("shutdown_timeout = '200h'", ""),
            "2: at 'process.a.shutdown_timeout': 720000s is not between 10ms and 7 days"
        );
        assert_eq!(
            error_of("hang_timeout = '1ms'", ""),
            "2: at 'process.a.hang_timeout': 1ms is not between 200ms and 7 days"
        );
        assert_eq!(
            error_of("after = ['b']", ""),
            "2: at 'process.a.after[0]': there is no process 'b': there are a"
        );
        assert_eq!(
            error_of(
                "after = ['b']",
                "[process.b]\nafter = ['a']\n[[process.b.worker]]\nslug = 'y'"
            ),
            "2: at 'process.a.after': it waits for itself through b: remove one of them"
        );
        assert_eq!(
            error_of("", "sources = ['q']"),
            "3: at 'process.a.worker[0]': it has events, and nothing to run for them: give it a command, a routine or a handler"
        );
        assert_eq!(
            error_of("", "command = ['x']\nroutine = 'y'"),
            "3: at 'process.a.worker[0]': command, routine and handler exclude each other: give one"
        );
        assert_eq!(
            error_of("", "command = ['x']\nsources = ['ok', 'raddle.dead']"),
            "6: at 'process.a.worker[0].sources[1]': 'raddle.dead' is one of Raddle's own queues: use another"
        );
        for own in [
            "raddle.spawn.requests",
            "worker.unix.requests",
            "raddle.mine",
            "T1794880718606475264.inbox",
        ] {
            assert_eq!(
                parse_error(&format!(
                    "[process.a]\n[[process.a.worker]]\nslug = '{own}'\n"
                )),
                format!(
                    "3: at 'process.a.worker[0].slug': '{own}' is one of Raddle's own queues: use another"
                )
            );
        }
        assert_eq!(
            error_of("", "command = ['x']\nretry = { attempts = 2 }"),
            "6: at 'process.a.worker[0].retry': means nothing without on_error = \"retry\""
        );
    }

    #[test]
    fn other_errors_name_their_key_too() {
        for (process, worker, line, path, words) in [
            ("jitter = 2.0", "", 2, "jitter", "between 0 and 0.9"),
            ("max_rss_mb = 1", "", 2, "max_rss_mb", "between 8 and"),
            ("caps = ['a,b']", "", 2, "caps", "its own string"),
            ("restart = 'sometimes'", "", 2, "restart", "unknown variant"),
            ("replicas = 'two'", "", 2, "replicas", "invalid type"),
            (
                "",
                "on_error = 'shrug'",
                5,
                "worker[0].on_error",
                "unknown variant",
            ),
            (
                "",
                "execution_timeout = 'soon'",
                5,
                "worker[0].execution_timeout",
                "not a duration",
            ),
            (
                "",
                "command = ['x']\ntrigger = {}",
                6,
                "worker[0].trigger.every",
                "both absent",
            ),
            (
                "",
                "command = ['x']\ntrigger = { cron = '* *' }",
                6,
                "worker[0].trigger.cron",
                "cron",
            ),
            ("", "command = []", 5, "worker[0].command", "name a program"),
        ] {
            let said = error_of(process, worker);
            assert!(
                said.starts_with(&format!("{line}: at 'process.a.{path}")) && said.contains(words),
                "{said}"
            );
        }
        assert!(parse_error("[process").starts_with("1: at '.': "));
        let unnamed = parse_error("[[process]]\nname = 'mail'");
        assert!(
            unnamed.starts_with("1: at 'process': ") && unnamed.ends_with("as in [process.mail]"),
            "{unnamed}"
        );
    }

    proptest::proptest! {
        #[test]
        fn the_parser_never_panics(text: String) {
            let _ = parse(&text);
        }
    }
}
