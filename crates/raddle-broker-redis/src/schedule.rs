//! Schedules, and tasks that expire. `schedules` holds each schedule by name, after its version and
//! its last task; `agenda` holds when each is due, and `expiring` when tasks expire, some of which
//! may have been claimed or finished by now.

use std::time::Duration;

use async_trait::async_trait;
use raddle_model::{ExitStatus, TaskState, Tid, time::unix_nanos};

use super::{
    Redis,
    apply::{Applied, apply, snapshots},
    change::Draft,
    connection::Certainty,
    schema::Topic,
    script,
    submit::{micros_from, pack},
    value::{Time, arg, at_micros, micros, tids},
};
use raddle_broker::{
    DueItems, Error, Result, ScheduleChange, ScheduleChangeOutcome, ScheduleView, Schedules,
    engine::{MAX_DUE, MAX_EXPIRED, parse_entry},
};

/// Members of a sorted set with their scores.
type Scores = Vec<(String, f64)>;

/// The outcome of checking tasks that may have expired.
#[derive(Default)]
struct ExpiryOutcome {
    ended: u64,
    /// Whether `expiring` has changed; if not, the next read returns the same tasks.
    has_moved: bool,
}

#[async_trait]
impl Schedules for Redis {
    async fn schedules(&self, name: Option<String>) -> Result<Vec<ScheduleView>> {
        if let Some(name) = name {
            return self.read_schedules(&[name]).await;
        }
        let found: Vec<(String, String)> = self
            .link()
            .read(redis::cmd("HGETALL").arg(self.core.keys.named("schedules")))
            .await?;
        let mut views: Vec<ScheduleView> = found
            .iter()
            .filter_map(|(name, stored)| read(name, stored))
            .collect();
        views.sort_by(|a, b| a.entry.schedule.name.cmp(&b.entry.schedule.name));
        Ok(views)
    }

    async fn change_schedule(&self, change: ScheduleChange) -> Result<ScheduleChangeOutcome> {
        let entry = change.serialize_entry()?;
        let ScheduleChange {
            name,
            expected,
            entry: is,
            tasks,
            due,
        } = change;
        let next = is.as_ref().and_then(|entry| entry.due());
        let args = vec![
            pack(&tasks)?,
            name.into_bytes(),
            expected.map_or(Vec::new(), arg),
            due.map_or(Vec::new(), |due| arg(micros_from(unix_nanos(due)))),
            next.map_or(Vec::new(), |next| arg(micros_from(unix_nanos(next)))),
            entry.unwrap_or_default().into_bytes(),
        ];
        let (word, tids): (String, Vec<String>) = self
            .link()
            .change(&script::CHANGE_SCHEDULE, args, Certainty::Durable)
            .await?;
        Ok(match word.as_str() {
            "conflict" => ScheduleChangeOutcome::Conflict,
            "early" => ScheduleChangeOutcome::NotDue,
            version => ScheduleChangeOutcome::Applied {
                version: version.parse().map_err(|_| Error::Closed)?,
                submitted: self.submitted(tids)?,
            },
        })
    }

    async fn due_items(&self, wait: Duration) -> Result<DueItems> {
        let mut wait = self.wait(Topic::Control, wait).await;
        loop {
            let (mut due_items, has_expired, again_in) = self.look_at_agenda().await?;
            if has_expired {
                let swept = self.expire().await?;
                due_items.expired = swept.ended;
                if due_items.is_empty() && swept.has_moved {
                    // They were claimed in time or are finished, and are removed from the list now.
                    continue;
                }
            }
            if !due_items.is_empty() || !wait.next(again_in).await {
                return Ok(due_items);
            }
        }
    }
}

impl Redis {
    /// Ends expired tasks.
    async fn expire(&self) -> Result<ExpiryOutcome> {
        let mut pipe = redis::pipe();
        let (expiries, most) = (self.core.keys.named("expiries"), MAX_EXPIRED);
        pipe.cmd("TIME")
            .cmd("ZRANGE")
            .arg(expiries)
            .arg(0)
            .arg(most - 1)
            .arg("WITHSCORES");
        let (time, scores): (Time, Scores) = self.link().query(&pipe).await?;
        let due = scores
            .into_iter()
            .filter(|(_, at)| *at <= micros(time) as f64)
            .map(|(member, _)| member);
        let (parse_claims, unreadable): (Vec<String>, Vec<String>) =
            due.partition(|member| member.parse::<Tid>().is_ok());
        if !unreadable.is_empty() {
            tracing::warn!(
                ?unreadable,
                "removing members of 'expiries' that are no task ids"
            );
            let () = self
                .link()
                .read(redis::cmd("ZREM").arg(expiries).arg(&unreadable))
                .await?;
        }
        let swept = self.end_expired(&tids(parse_claims)).await?;
        Ok(ExpiryOutcome {
            has_moved: swept.has_moved || !unreadable.is_empty(),
            ..swept
        })
    }

    async fn read_schedules(&self, names: &[String]) -> Result<Vec<ScheduleView>> {
        let found: Vec<Option<String>> = self
            .link()
            .read(
                redis::cmd("HMGET")
                    .arg(self.core.keys.named("schedules"))
                    .arg(names),
            )
            .await?;
        Ok(names
            .iter()
            .zip(found)
            .filter_map(|(name, stored)| read(name, &stored?))
            .collect())
    }

    /// Returns the due schedules, whether tasks may have expired, and when the next item is due.
    async fn look_at_agenda(&self) -> Result<(DueItems, bool, Option<Duration>)> {
        let keys = &self.core.keys;
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        pipe.cmd("ZRANGE")
            .arg(keys.named("due_schedules"))
            .arg(0)
            .arg(MAX_DUE)
            .arg("WITHSCORES");
        pipe.cmd("ZRANGE")
            .arg(keys.named("expiries"))
            .arg(0)
            .arg(0)
            .arg("WITHSCORES");
        let (time, schedules, expiring): (Time, Scores, Scores) = self.link().query(&pipe).await?;
        let now = micros(time);
        let is_due = |at: f64| at <= now as f64;
        let names: Vec<String> = schedules
            .iter()
            .filter(|(_, at)| is_due(*at))
            .map(|(name, _)| name.clone())
            .take(MAX_DUE)
            .collect();
        let due = if names.is_empty() {
            Vec::new()
        } else {
            self.read_schedules(&names).await?
        };
        let has_expired = expiring.first().is_some_and(|(_, at)| is_due(*at));
        let later = schedules
            .iter()
            .chain(&expiring)
            .map(|(_, at)| *at)
            .filter(|at| !is_due(*at));
        let again_in = later
            .map(|at| Duration::from_micros((at as i64 - now).unsigned_abs()))
            .min();
        Ok((
            DueItems {
                now: at_micros(now),
                due,
                expired: 0,
            },
            has_expired,
            again_in,
        ))
    }

    /// Ends those of some tasks that wait and have expired, and removes those that need no further
    /// check from the list.
    async fn end_expired(&self, tids: &[Tid]) -> Result<ExpiryOutcome> {
        if tids.is_empty() {
            return Ok(ExpiryOutcome::default());
        }
        let tasks = snapshots(self.link(), tids).await?;
        let (mut drafts, mut ending) = (Vec::new(), Vec::new());
        let (mut over, mut later): (Vec<Tid>, Vec<(i64, Tid)>) = (Vec::new(), Vec::new());
        for tid in tids {
            let waiting = tasks
                .get(tid)
                .filter(|task| task.done.is_none() && !task.record.is_active());
            let expires_at = waiting.and_then(|task| task.spec().ok()).and_then(|spec| {
                let at = spec.expires_at(*tid)?;
                waiting
                    .is_some_and(|task| task.record.counters.is_unrun())
                    .then_some(at)
            });
            match (waiting, expires_at) {
                (Some(task), Some(at)) if at <= task.now.saturating_mul(1000) => {
                    let mut draft = Draft::new(task);
                    draft.end_waiting(TaskState::Cancelled, ExitStatus::Expired);
                    drafts.push(draft);
                    ending.push(*tid);
                }
                // The server's clock was a little ahead of the id's.
                (Some(_), Some(at)) => later.push((micros_from(at), *tid)),
                _ => over.push(*tid),
            }
        }
        let applied = apply(self.link(), &drafts, Certainty::Done).await?;
        // A task that has changed meanwhile is checked again.
        let ended = ending
            .iter()
            .zip(&applied)
            .filter(|(_, applied)| **applied == Applied::Made);
        let ended: Vec<Tid> = ended.map(|(tid, _)| *tid).collect();
        let mut pipe = redis::pipe();
        let expiries = self.core.keys.named("expiries");
        for tid in over.iter().chain(&ended) {
            pipe.cmd("ZREM").arg(expiries).arg(tid.to_string());
        }
        for (at, tid) in &later {
            pipe.cmd("ZADD").arg(expiries).arg(*at).arg(tid.to_string());
        }
        let has_moved = !over.is_empty() || !ended.is_empty() || !later.is_empty();
        if has_moved {
            let () = self.link().query(&pipe).await?;
        }
        Ok(ExpiryOutcome {
            ended: ended.len() as u64,
            has_moved,
        })
    }
}

/// Parses "version task\nentry".
fn read(name: &str, stored: &str) -> Option<ScheduleView> {
    let (head, entry) = stored.split_once('\n')?;
    let (version, task) = head.split_once(' ')?;
    parse_entry(name, version.parse().ok()?, task.parse().ok(), entry)
}
