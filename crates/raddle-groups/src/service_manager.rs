//! How long a manager may take to stop, and whether a compose file or systemd unit waits that long.
//! Pure.
//!
//! Only the needed parts of such files are parsed: services that run `raddle up`, and their stop
//! timeouts.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use raddle_model::HumanDuration;

use super::Process;

/// For the manager itself, in addition to its processes.
const MARGIN: Duration = Duration::from_secs(2);
/// Default stop timeout of compose.
const COMPOSE_DEFAULT: Duration = Duration::from_secs(10);
/// Default stop timeout of systemd.
const SYSTEMD_DEFAULT: Duration = Duration::from_secs(90);

/// A service that runs `raddle up`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpService {
    /// Its name.
    pub name: String,
    /// Its stop timeout. `None`: unlimited.
    pub stop_timeout: Option<Duration>,
    /// Whether the file sets it. Otherwise it is the default.
    pub is_explicit: bool,
}

/// How long a stop may take: the longest `execution_timeout` plus `shutdown_timeout` of a process,
/// plus two seconds.
pub fn stop_grace_period(processes: &[Process]) -> Duration {
    let of_process = |process: &Process| process.longest_timeout() + process.shutdown_timeout.0;
    processes.iter().map(of_process).max().unwrap_or_default() + MARGIN
}

/// The services of a compose file that run `raddle up`.
pub fn parse_compose(text: &str) -> Vec<UpService> {
    let lines = || {
        text.lines()
            .map(strip_comment)
            .filter(|line| !line.trim().is_empty())
    };
    let mut inside = false;
    let (mut found, mut service): (Vec<UpService>, Option<ComposeService>) = (Vec::new(), None);
    let mut depth = None;
    for line in lines().chain(["end:"]) {
        let indent = line.len() - line.trim_start().len();
        if indent == 0 {
            found.extend(service.take().and_then(ComposeService::finish));
            inside = line.trim() == "services:";
            depth = None;
        } else if inside && indent <= *depth.get_or_insert(indent) {
            found.extend(service.take().and_then(ComposeService::finish));
            let name = line
                .trim()
                .trim_end_matches(':')
                .trim_matches(['"', '\''])
                .to_owned();
            service = Some(ComposeService {
                name,
                is_up: false,
                command_indent: None,
                stop_timeout: None,
            });
        } else if let Some(service) = &mut service {
            service.parse_line(line.trim(), indent);
        }
    }
    found
}

struct ComposeService {
    name: String,
    is_up: bool,
    /// Indentation of a command key whose arguments are on separate lines.
    command_indent: Option<usize>,
    stop_timeout: Option<String>,
}

impl ComposeService {
    fn parse_line(&mut self, line: &str, indent: usize) {
        if self
            .command_indent
            .is_some_and(|command| indent > command || (indent == command && line.starts_with('-')))
        {
            self.is_up |= has_up(line);
            return;
        }
        self.command_indent = None;
        let Some((key, value)) = line.split_once(':') else {
            return;
        };
        match key.trim() {
            "command" | "entrypoint" => {
                self.is_up |= has_up(value);
                self.command_indent = Some(indent);
            }
            "stop_grace_period" => {
                self.stop_timeout = Some(value.trim().trim_matches(['"', '\'']).to_owned())
            }
            _ => {}
        }
    }

    fn finish(self) -> Option<UpService> {
        let stop_timeout = self
            .stop_timeout
            .as_deref()
            .and_then(|stop_timeout| stop_timeout.parse::<HumanDuration>().ok())
            .map(|span| span.0);
        let runs = UpService {
            name: self.name,
            stop_timeout: stop_timeout.or(Some(COMPOSE_DEFAULT)),
            is_explicit: stop_timeout.is_some(),
        };
        self.is_up.then_some(runs)
    }
}

/// The service of a systemd unit, if it runs `raddle up`.
pub fn parse_unit(name: &str, text: &str) -> Option<UpService> {
    let is_up = last_value(text, "ExecStart").is_some_and(has_up);
    let configured = last_value(text, "TimeoutStopSec").or_else(|| last_value(text, "TimeoutSec"));
    let stop_timeout = match configured {
        Some("infinity" | "0") => None,
        Some(text) => Some(
            text.parse::<HumanDuration>()
                .map_or(SYSTEMD_DEFAULT, |span| span.0),
        ),
        None => Some(SYSTEMD_DEFAULT),
    };
    is_up.then(|| UpService {
        name: name.to_owned(),
        stop_timeout,
        is_explicit: configured.is_some(),
    })
}

/// The file of a systemd unit that runs `raddle up`, if its path is known.
pub fn file_of_unit(text: &str) -> Option<PathBuf> {
    let words: Vec<&str> = last_value(text, "ExecStart")?.split_whitespace().collect();
    // Prefix characters of ExecStart modify how the program runs.
    let program = Path::new(words.first()?.trim_start_matches(['-', '@', ':', '+', '!']));
    if program.file_name()? != "raddle" || !words.contains(&"up") {
        return None;
    }
    let after = words
        .iter()
        .position(|word| ["-f", "--file"].contains(word))
        .and_then(|at| words.get(at + 1).copied());
    let joined = || words.iter().find_map(|word| word.strip_prefix("--file="));
    let directory = last_value(text, "WorkingDirectory")
        .filter(|directory| directory.starts_with('/'))
        .map(PathBuf::from);
    let path = Path::new(after.or_else(joined).unwrap_or("raddle.toml"));
    if path.is_absolute() {
        Some(path.to_owned())
    } else {
        Some(directory?.join(path))
    }
}

/// The last value of a key in a unit.
fn last_value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let of_key = |line: &&str| {
        line.split_once('=')
            .is_some_and(|(name, _)| name.trim() == key)
    };
    let line = text
        .lines()
        .filter(|line| !line.trim_start().starts_with(['#', ';']))
        .rfind(of_key)?;
    line.split_once('=').map(|(_, value)| value.trim())
}

/// Whether `up` is one of the words.
fn has_up(command: &str) -> bool {
    command
        .split(|letter: char| letter.is_whitespace() || ",[]\"'".contains(letter))
        .any(|word| word == "up")
}

fn strip_comment(line: &str) -> &str {
    let is_comment = |at: &usize| line[..*at].ends_with(char::is_whitespace) || *at == 0;
    let at = line.match_indices('#').map(|(at, _)| at).find(is_comment);
    line[..at.unwrap_or(line.len())].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GroupWorker;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn adds_the_longest_timeout_and_the_shutdown_of_a_process() {
        let process = |execution, shutdown| {
            let worker = |slug: &str, timeout| GroupWorker::new(slug).execution_timeout(timeout);
            Process::new("a")
                .worker(worker("x", execution))
                .worker(worker("y", secs(1)))
                .shutdown_timeout(shutdown)
        };
        assert_eq!(
            stop_grace_period(&[process(secs(120), secs(20)), process(secs(10), secs(60))]),
            secs(142)
        );
    }

    #[test]
    fn finds_compose_services_that_run_groups() {
        let text = "\
# groups
services:
  redis:
    image: redis
    stop_grace_period: 1m
  mail:
    command: [\"up\", \"-f\", \"/etc/raddle.toml\"]
    stop_grace_period: 1m30s  # enough
  rest:
    environment:
      command: nothing
    command:
      - raddle
      - up
  other:
    command: raddle worker start
volumes:
  up:
";
        let runs = |name: &str, within, is_explicit| UpService {
            name: name.into(),
            stop_timeout: Some(within),
            is_explicit,
        };
        assert_eq!(
            parse_compose(text),
            [runs("mail", secs(90), true), runs("rest", secs(10), false)]
        );
        assert!(
            parse_compose("services:\n").is_empty()
                && parse_compose("").is_empty()
                && parse_compose("\u{e9}#").is_empty()
        );
    }

    #[test]
    fn parses_units_that_run_groups() {
        let of = |line: &str| {
            parse_unit(
                "x",
                &format!("[Service]\nExecStart=/usr/bin/raddle up -f /etc/raddle.toml\n{line}\n"),
            )
            .unwrap()
        };
        assert_eq!(
            (of("").stop_timeout, of("").is_explicit),
            (Some(secs(90)), false)
        );
        assert_eq!(of("TimeoutStopSec=2min 30s").stop_timeout, Some(secs(150)));
        assert_eq!(of("TimeoutStopSec=45").stop_timeout, Some(secs(45)));
        assert_eq!(of("TimeoutStopSec=infinity").stop_timeout, None);
        assert_eq!(of("#TimeoutStopSec=1").stop_timeout, Some(secs(90)));
        assert_eq!(
            parse_unit("x", "[Service]\nExecStart=/usr/bin/raddle worker start\n"),
            None
        );
    }

    #[test]
    fn finds_the_file_of_a_unit() {
        let of = |exec: &str| {
            file_of_unit(&format!(
                "[Service]\nExecStart={exec}\nWorkingDirectory=/srv/shop\n"
            ))
        };
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(
            of("/usr/bin/raddle up -f /etc/a.toml --log-format json"),
            path("/etc/a.toml")
        );
        assert_eq!(
            of("-/usr/bin/raddle --quiet up --file=a.toml"),
            path("/srv/shop/a.toml")
        );
        assert_eq!(of("/usr/bin/raddle up"), path("/srv/shop/raddle.toml"));
        assert_eq!(
            (
                of("/usr/bin/docker compose up"),
                of("/usr/bin/raddle worker start")
            ),
            (None, None)
        );
        assert_eq!(
            file_of_unit("ExecStart=/usr/bin/raddle up"),
            None,
            "the working directory is unknown"
        );
    }

    proptest::proptest! {
        #[test]
        fn the_parser_never_panics(text: String) {
            let _ = (parse_compose(&text), parse_unit("x", &text), file_of_unit(&text), file_of_unit(&format!("ExecStart={text}")));
        }
    }
}
