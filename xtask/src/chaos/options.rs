//! Arguments of the command line.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use crate::rng::Rng;

pub(crate) const HELP: &str = "\
Usage: cargo xtask chaos [--engine sqlite|redis] [--tasks N] [--seed S] [--minutes M] [--kills K]
                         [--losses L] [--workers W] [--managers M] [--groups G] [--hosts H] [--keep] [--release]

Runs tasks in real processes on a real engine, injects faults while they run, and checks that no task
was lost or finished twice, and that no process is left.

  --engine NAME    sqlite (default) or redis; the campaign starts its own Redis server
  --tasks N        number of tasks to submit (2000)
  --seed S         seed of the plan: which faults are injected, when and where (random)
  --minutes M      time in which faults are injected, as 0.5 or 20 (default: as long as N tasks take)
  --kills K        number of kills with -9 (default: one per second)
  --losses L       number of times that the Redis server loses its last writes, by a power cut or by a failover
                   to a replica that lags (0). Forgotten tasks are counted; no managers and groups take part
  --workers W      number of worker processes (5), each with three slots
  --managers M     number of root managers (1). They spawn what is requested, also managers with a registry
  --groups G       number of managers of the same groups (2): one with two replicas that reads messages, one with
                   a trigger. Faults hit root managers, what they spawn, group managers and group processes
  --hosts H        number of workers with two hosts each (1): warm processes that run many tasks. Faults kill and
                   suspend hosts too, and some tasks block or crash the host that they run in
  --keep           keep the directory with the database, the side file and the logs
  --raddle FILE    test this binary instead of the one that is built
  --release        build and test the release profile instead of the development profile
";

/// Tasks per second that a development build runs on two cores while faults are injected.
const TASKS_PER_SECOND: f64 = 150.0;
const MIN_DURATION: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Redis,
}

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
        }
    }
}

/// Options of one campaign.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) engine: Engine,
    pub(crate) tasks: u32,
    pub(crate) seed: u64,
    /// The time in which faults are injected.
    pub(crate) duration: Duration,
    pub(crate) kills: u32,
    /// How often the Redis server loses its last writes.
    pub(crate) losses: u32,
    pub(crate) workers: usize,
    pub(crate) managers: usize,
    /// The number of group managers.
    pub(crate) groups: usize,
    /// The number of workers with hosts.
    pub(crate) hosts: usize,
    pub(crate) keep: bool,
    /// The binary to test, if it is not the one beside this program.
    pub(crate) raddle: Option<PathBuf>,
}

impl Options {
    pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut seed = None;
        let mut duration = None;
        let mut kills = None;
        let (mut engine, mut tasks, mut workers) = (Engine::Sqlite, 2000, 5);
        let (mut managers, mut groups, mut losses, mut keep, mut raddle) = (1, 2, 0, false, None);
        let mut hosts = 1;
        let mut args = args;
        while let Some(arg) = args.next() {
            let arg = arg.into_string().map_err(|_| "an argument is not UTF-8")?;
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            match arg.as_str() {
                "--keep" => keep = true,
                "--raddle" => raddle = Some(PathBuf::from(value()?)),
                "--engine" => {
                    engine = match value()?.to_str() {
                        Some("sqlite") => Engine::Sqlite,
                        Some("redis") => Engine::Redis,
                        _ => return Err("--engine is sqlite or redis".into()),
                    }
                }
                "--tasks" => tasks = number(&arg, &value()?, 1.0, 10e6)? as u32,
                "--seed" => seed = Some(number(&arg, &value()?, 0.0, 2f64.powi(53))? as u64),
                "--minutes" => {
                    duration = Some(Duration::from_secs_f64(
                        60.0 * number(&arg, &value()?, 0.01, 10_000.0)?,
                    ))
                }
                "--kills" => kills = Some(number(&arg, &value()?, 0.0, 1e6)? as u32),
                "--losses" => losses = number(&arg, &value()?, 0.0, 1e6)? as u32,
                "--workers" => workers = number(&arg, &value()?, 1.0, 100.0)? as usize,
                "--managers" => managers = number(&arg, &value()?, 0.0, 20.0)? as usize,
                "--groups" => groups = number(&arg, &value()?, 0.0, 20.0)? as usize,
                "--hosts" => hosts = number(&arg, &value()?, 0.0, 20.0)? as usize,
                _ => return Err(format!("unknown argument '{arg}'")),
            }
        }
        if losses > 0 {
            if engine == Engine::Sqlite {
                return Err(
                    "--losses is for --engine redis: SQLite loses nothing that it has confirmed"
                        .into(),
                );
            }
            // The check has no rules for schedules and messages that a server forgets.
            (managers, groups) = (0, 0);
        }
        let duration = duration.unwrap_or_else(|| {
            Duration::from_secs_f64(f64::from(tasks) / TASKS_PER_SECOND).max(MIN_DURATION)
        });
        let kills = kills.unwrap_or(duration.as_secs() as u32);
        let seed = seed.unwrap_or_else(Rng::random_seed);
        Ok(Self {
            engine,
            tasks,
            seed,
            duration,
            kills,
            losses,
            workers,
            managers,
            groups,
            hosts,
            keep,
            raddle,
        })
    }

    /// The number of processes that the fleet keeps running.
    pub(crate) fn process_count(&self) -> usize {
        self.workers + self.managers + self.groups + self.hosts
    }
}

fn number(name: &str, text: &OsString, least: f64, most: f64) -> Result<f64, String> {
    let number = text
        .to_str()
        .and_then(|text| text.parse::<f64>().ok())
        .filter(|n| (least..=most).contains(n));
    number.ok_or(format!("{name} takes a number from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Options, String> {
        Options::parse(args.iter().map(OsString::from))
    }

    #[test]
    fn derives_duration_and_kills_from_the_number_of_tasks() {
        let options = parse(&["--tasks", "15000", "--seed", "3"]).unwrap();
        assert_eq!(
            (options.duration.as_secs(), options.kills, options.seed),
            (100, 100, 3)
        );
        let options = parse(&[
            "--engine",
            "redis",
            "--minutes",
            "0.5",
            "--kills",
            "7",
            "--keep",
        ])
        .unwrap();
        assert_eq!(
            (options.engine, options.duration.as_secs(), options.kills),
            (Engine::Redis, 30, 7)
        );
        assert!(options.keep);
    }

    #[test]
    fn rejects_invalid_arguments() {
        for bad in [
            &["--tasks", "0"][..],
            &["--tasks"],
            &["--minutes", "-1"],
            &["--engine", "x"],
            &["--fast"],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
