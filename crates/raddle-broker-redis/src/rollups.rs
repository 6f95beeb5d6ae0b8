//! Outcomes of tasks by minute and name. The scripts that change tasks count them, in a hash per
//! minute that expires.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;
use raddle_model::TaskState;

use super::{
    Redis,
    name::{decode_name, encode_name},
    value::{Time, micros},
};
use raddle_broker::{
    Result, Rollups,
    rollups::{Histogram, MAX_ROLLUPS, OutcomeRollup, Outcomes, ROLLUPS_KEPT, minute_start},
};

/// The number of minutes read at once.
const MINUTES_AT_ONCE: usize = 60;

/// The counts of one name while they are read.
#[derive(Default)]
struct Counts {
    outcomes: Outcomes,
    wait: Vec<(usize, u64)>,
    run: Vec<(usize, u64)>,
}

#[async_trait]
impl Rollups for Redis {
    async fn outcome_rollups(
        &self,
        since: Timestamp,
        until: Timestamp,
        name: Option<String>,
    ) -> Result<Vec<OutcomeRollup>> {
        let time: Time = self.link().read(&redis::cmd("TIME")).await?;
        let now = micros(time) / 1_000_000;
        let first = since
            .as_second()
            .max(now - ROLLUPS_KEPT.as_secs() as i64)
            .div_euclid(60);
        let minutes: Vec<i64> = (first..=now / 60)
            .filter(|minute| minute_start(*minute) < until)
            .collect();
        let name = name.as_deref().map(encode_name);
        let mut rollups = Vec::new();
        for minutes in minutes.chunks(MINUTES_AT_ONCE) {
            let mut pipe = redis::pipe();
            for minute in minutes {
                pipe.cmd("HGETALL").arg(self.core.keys.outcomes(*minute));
            }
            let hashes: Vec<Vec<(String, String)>> = self.link().query(&pipe).await?;
            for (minute, fields) in minutes.iter().zip(hashes) {
                rollups.extend(read_minute(*minute, &fields, name.as_deref()));
                if rollups.len() >= MAX_ROLLUPS {
                    return Ok(rollups);
                }
            }
        }
        Ok(rollups)
    }
}

/// The rollups of a minute. A field is what it counts, a blank and the name.
fn read_minute(
    minute: i64,
    fields: &[(String, String)],
    name: Option<&str>,
) -> impl Iterator<Item = OutcomeRollup> + use<> {
    let mut names: BTreeMap<String, Counts> = BTreeMap::new();
    for (field, count) in fields {
        let (Some((what, stored)), Ok(count)) = (field.split_once(' '), count.parse()) else {
            continue;
        };
        if name.is_none_or(|name| name == stored) {
            names
                .entry(decode_name(stored))
                .or_default()
                .add(what, count);
        }
    }
    names.into_iter().map(move |(name, counts)| OutcomeRollup {
        minute: minute_start(minute),
        name,
        outcomes: Outcomes {
            wait: Histogram::from_counts(counts.wait),
            run: Histogram::from_counts(counts.run),
            ..counts.outcomes
        },
    })
}

impl Counts {
    fn add(&mut self, what: &str, count: u64) {
        let outcomes = &mut self.outcomes;
        if let Some(bucket) = what
            .strip_prefix('w')
            .and_then(|bucket| bucket.parse().ok())
        {
            self.wait.push((bucket, count));
        } else if let Some(bucket) = what
            .strip_prefix('x')
            .and_then(|bucket| bucket.parse().ok())
        {
            self.run.push((bucket, count));
        } else if what == "s" {
            outcomes.submitted = count;
        } else if what == "r" {
            outcomes.retried = count;
        } else {
            let count_of = match what.parse().ok().and_then(TaskState::from_u8) {
                Some(TaskState::Completed) => &mut outcomes.completed,
                Some(TaskState::Failed) => &mut outcomes.failed,
                Some(TaskState::Timeout) => &mut outcomes.timeout,
                Some(TaskState::Cancelled) => &mut outcomes.cancelled,
                Some(TaskState::Killed) => &mut outcomes.killed,
                _ => return,
            };
            *count_of = count;
        }
    }
}
