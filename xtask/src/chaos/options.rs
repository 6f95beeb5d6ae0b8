//! What was asked for on the command line.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use crate::dice::Dice;

pub(crate) const HELP: &str = "\
Usage: cargo xtask chaos [--engine sqlite|redis] [--tasks N] [--seed S] [--minutes M] [--kills K]
                         [--losses L] [--workers W] [--managers M] [--groups G] [--keep] [--release]

Runs tasks with real processes on a real engine, breaks what can be broken while they run, and then
checks that none was lost, none ended twice, and nobody is left.

  --engine NAME    sqlite (default) or redis, which is started for the campaign
  --tasks N        how many tasks to submit (2000)
  --seed S         the plan: what is broken, when, and whose turn it is; a random one if absent
  --minutes M      how long things are broken, as 0.5 or 20; else what N tasks need
  --kills K        how many kills with -9; else one a second
  --losses L       how often the Redis server loses its last writes, by a power cut or by a failover to a replica
                   that lags (0). Tasks that it forgets are counted, and no managers and groups take part
  --workers W      how many worker processes (5), of three slots each
  --managers M     how many primes (1), which spawn what is asked of them, managers with a registry among it
  --groups G       how many managers of the same groups (2): one with two replicas that reads messages, one with
                   a trigger. Primes, what they spawn, managers of groups and their processes are all broken
  --keep           keep the directory with the database, the side files and the logs
  --raddle FILE    break this binary instead of the one that is built
  --release        build and break what is shipped, not the development build
";

/// Tasks a second that a development build gets through on two cores while it is being broken.
const PACE: f64 = 150.0;
const SHORTEST: Duration = Duration::from_secs(15);

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

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) engine: Engine,
    pub(crate) tasks: u32,
    pub(crate) seed: u64,
    /// How long things are broken.
    pub(crate) span: Duration,
    pub(crate) kills: u32,
    /// How often the server loses its last writes.
    pub(crate) losses: u32,
    pub(crate) workers: usize,
    pub(crate) managers: usize,
    /// Managers of groups.
    pub(crate) groups: usize,
    pub(crate) keep: bool,
    /// The binary to break, if it is not the one beside this program.
    pub(crate) raddle: Option<PathBuf>,
}

impl Options {
    pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut seed = None;
        let mut span = None;
        let mut kills = None;
        let (mut engine, mut tasks, mut workers) = (Engine::Sqlite, 2000, 5);
        let (mut managers, mut groups, mut losses, mut keep, mut raddle) = (1, 2, 0, false, None);
        let mut args = args;
        while let Some(arg) = args.next() {
            let arg = arg.into_string().map_err(|_| "an argument is no text")?;
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
                    span = Some(Duration::from_secs_f64(
                        60.0 * number(&arg, &value()?, 0.01, 10_000.0)?,
                    ))
                }
                "--kills" => kills = Some(number(&arg, &value()?, 0.0, 1e6)? as u32),
                "--losses" => losses = number(&arg, &value()?, 0.0, 1e6)? as u32,
                "--workers" => workers = number(&arg, &value()?, 1.0, 100.0)? as usize,
                "--managers" => managers = number(&arg, &value()?, 0.0, 20.0)? as usize,
                "--groups" => groups = number(&arg, &value()?, 0.0, 20.0)? as usize,
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
            // What schedules and messages become when they are forgotten is not judged.
            (managers, groups) = (0, 0);
        }
        let span =
            span.unwrap_or_else(|| Duration::from_secs_f64(f64::from(tasks) / PACE).max(SHORTEST));
        let kills = kills.unwrap_or(span.as_secs() as u32);
        let seed = seed.unwrap_or_else(Dice::random_seed);
        Ok(Self {
            engine,
            tasks,
            seed,
            span,
            kills,
            losses,
            workers,
            managers,
            groups,
            keep,
            raddle,
        })
    }

    /// Places in the fleet.
    pub(crate) fn places(&self) -> usize {
        self.workers + self.managers + self.groups
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
    fn what_is_left_out_follows_from_the_number_of_tasks() {
        let options = parse(&["--tasks", "15000", "--seed", "3"]).unwrap();
        assert_eq!(
            (options.span.as_secs(), options.kills, options.seed),
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
            (options.engine, options.span.as_secs(), options.kills),
            (Engine::Redis, 30, 7)
        );
        assert!(options.keep);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
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
