//! Schedules, and tasks that expire. `schedules` has what is stored of each by its name, after its version and its last task; `agenda` says when
//! each is due, and `expiring` when tasks expire, some of which may have been taken, or be over, by now.

use std::time::Duration;

use async_trait::async_trait;
use raddle_core::{Exit, State, Tid, moment::unix_nanos};
use redis::Value;

use super::{
    Redis,
    apply::{Applied, apply, snapshots},
    change::Draft,
    keys::Topic,
    link::Sure,
    script,
    submit::micros_from,
    value::{arg, at_micros, list, maybe, micros, text, tid},
};
use crate::{
    Agenda, Result, ScheduleChange, ScheduleChanged, ScheduleView, Schedules,
    schedules::{AGENDA, EXPIRED_AT_ONCE, read_entry},
};

#[async_trait]
impl Schedules for Redis {
    async fn schedules(&self, name: Option<String>) -> Result<Vec<ScheduleView>> {
        if let Some(name) = name {
            return self.read_schedules(&[name]).await;
        }
        let mut pipe = redis::pipe();
        pipe.cmd("HGETALL").arg(self.core.keys.of("schedules"));
        let found: Vec<String> =
            list(self.link().pipe(pipe).await?.pop().unwrap_or_default()).into_iter().map(text).collect();
        let mut views: Vec<ScheduleView> = found.chunks_exact(2).filter_map(|pair| read(&pair[0], &pair[1])).collect();
        views.sort_by(|a, b| a.entry.schedule.name.cmp(&b.entry.schedule.name));
        Ok(views)
    }

    async fn change_schedule(&self, change: ScheduleChange) -> Result<ScheduleChanged> {
        let entry = change.written()?;
        let ScheduleChange { name, seen, entry: is, tasks, due } = change;
        let next = is.as_ref().and_then(|entry| entry.due());
        let (keys, packed) = self.submission(&tasks)?;
        let args = vec![
            packed,
            name.into_bytes(),
            seen.map_or(Vec::new(), arg),
            due.map_or(Vec::new(), |due| arg(micros_from(unix_nanos(due)))),
            next.map_or(Vec::new(), |next| arg(micros_from(unix_nanos(next)))),
            entry.unwrap_or_default().into_bytes(),
        ];
        let mut answer = list(self.link().change(&script::SCHEDULE, keys, args, Sure::Durable).await?).into_iter();
        match answer.next().map(text).as_deref() {
            Some("raced") => return Ok(ScheduleChanged::Raced),
            Some("early") => return Ok(ScheduleChanged::Early),
            _ => {}
        }
        let version = answer.next().and_then(tid).ok_or_else(|| self.link().odd(&Value::Nil))?;
        Ok(ScheduleChanged::Made { version, submitted: self.submitted(&mut answer).await? })
    }

    async fn agenda(&self, wait: Duration) -> Result<Agenda> {
        let mut wait = self.wait(Topic::Control, wait).await;
        loop {
            let (agenda, again_in) = self.look_at_agenda().await?;
            if !agenda.is_empty() || !wait.again(again_in).await {
                return Ok(agenda);
            }
        }
    }

    async fn expire(&self) -> Result<u64> {
        let mut pipe = redis::pipe();
        let (expiring, most) = (self.core.keys.of("expiring"), EXPIRED_AT_ONCE);
        pipe.cmd("TIME").cmd("ZRANGE").arg(expiring).arg(0).arg(most - 1).arg("WITHSCORES");
        let mut answers = self.link().pipe(pipe).await?.into_iter();
        let now = micros(answers.next().unwrap_or_default());
        let scores = scored(answers.next().unwrap_or_default());
        let due: Vec<Tid> =
            scores.iter().filter(|(_, at)| *at <= now).filter_map(|(tid, _)| tid.parse().ok()).collect();
        self.end_expired(&due).await
    }
}

impl Redis {
    async fn read_schedules(&self, names: &[String]) -> Result<Vec<ScheduleView>> {
        let mut pipe = redis::pipe();
        pipe.cmd("HMGET").arg(self.core.keys.of("schedules")).arg(names);
        let found = list(self.link().pipe(pipe).await?.pop().unwrap_or_default()).into_iter().map(maybe);
        Ok(names.iter().zip(found).filter_map(|(name, stored)| read(name, &stored?)).collect())
    }

    /// What is to be done now, and when more will be.
    async fn look_at_agenda(&self) -> Result<(Agenda, Option<Duration>)> {
        let keys = &self.core.keys;
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        pipe.cmd("ZRANGE").arg(keys.of("agenda")).arg(0).arg(AGENDA).arg("WITHSCORES");
        pipe.cmd("ZRANGE").arg(keys.of("expiring")).arg(0).arg(0).arg("WITHSCORES");
        let mut answers = self.link().pipe(pipe).await?.into_iter();
        let mut next = || answers.next().unwrap_or_default();
        let (now, schedules, expiring) = (micros(next()), scored(next()), scored(next()));
        let names: Vec<String> =
            schedules.iter().filter(|(_, at)| *at <= now).map(|(name, _)| name.clone()).take(AGENDA).collect();
        let due = if names.is_empty() { Vec::new() } else { self.read_schedules(&names).await? };
        let expired = expiring.first().is_some_and(|(_, at)| *at <= now);
        let later = schedules.iter().chain(&expiring).map(|(_, at)| *at).filter(|at| *at > now).min();
        let again_in = later.map(|at| Duration::from_micros((at - now).unsigned_abs()));
        Ok((Agenda { now: at_micros(now), due, expired }, again_in))
    }

    /// Ends those of some tasks that wait and have expired, and takes the others off the list that need not be looked at any more.
    async fn end_expired(&self, tids: &[Tid]) -> Result<u64> {
        if tids.is_empty() {
            return Ok(0);
        }
        let tasks = snapshots(self.link(), tids).await?;
        let (mut drafts, mut ending) = (Vec::new(), Vec::new());
        let (mut over, mut later): (Vec<Tid>, Vec<(i64, Tid)>) = (Vec::new(), Vec::new());
        for tid in tids {
            let waiting = tasks.get(tid).filter(|task| task.done.is_none() && !task.record.is_active());
            let expires_at = waiting.and_then(|task| task.spec().ok()).and_then(|spec| {
                let at = spec.expires_at(*tid)?;
                waiting.is_some_and(|task| task.record.tally.is_unrun()).then_some(at)
            });
            match (waiting, expires_at) {
                (Some(task), Some(at)) if at <= task.now.saturating_mul(1000) => {
                    let mut draft = Draft::new(task);
                    draft.end_waiting(State::Cancelled, Exit::Expired);
                    drafts.push(draft);
                    ending.push(*tid);
                }
                // The server's clock was a little ahead of the id.
                (Some(_), Some(at)) => later.push((micros_from(at), *tid)),
                _ => over.push(*tid),
            }
        }
        let applied = apply(self.link(), &drafts, Sure::Done).await?;
        // One that has changed meanwhile is looked at again.
        let ended = ending.iter().zip(&applied).filter(|(_, applied)| **applied == Applied::Made);
        let ended: Vec<Tid> = ended.map(|(tid, _)| *tid).collect();
        let mut pipe = redis::pipe();
        let expiring = self.core.keys.of("expiring");
        for tid in over.iter().chain(&ended) {
            pipe.cmd("ZREM").arg(expiring).arg(tid.to_string());
        }
        for (at, tid) in &later {
            pipe.cmd("ZADD").arg(expiring).arg(*at).arg(tid.to_string());
        }
        if !over.is_empty() || !ended.is_empty() || !later.is_empty() {
            self.link().pipe(pipe).await?;
        }
        Ok(ended.len() as u64)
    }
}

/// The members of a sorted set with their scores.
fn scored(value: Value) -> Vec<(String, i64)> {
    let mut found = Vec::new();
    let mut items = list(value).into_iter();
    while let (Some(member), Some(score)) = (items.next(), items.next()) {
        let score = match score {
            Value::Double(score) => score as i64,
            other => text(other).parse::<f64>().map_or(0, |score| score as i64),
        };
        found.push((text(member), score));
    }
    found
}

/// "version task\nentry"
fn read(name: &str, stored: &str) -> Option<ScheduleView> {
    let (head, entry) = stored.split_once('\n')?;
    let (version, task) = head.split_once(' ')?;
    read_entry(name, version.parse().ok()?, task.parse().ok(), entry)
}
