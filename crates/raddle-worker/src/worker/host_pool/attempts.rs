//! Attempts in hosts: what hosts say of them, how they are asked to end, and how they end.

use std::{cmp::Reverse, time::Duration};

use jiff::Timestamp;
use raddle_broker::{AttemptStarted, Completion};
use raddle_model::{
    AttemptReport, ExitStatus,
    host::{
        CancelAttempt, CancelReason, ChainedTask, FromHost, HostError, HostLog, RoutineKind, ToHost,
    },
};
use raddle_runner::RunnerCommand;
use serde_json::Value;

use super::{
    core::{FORCE_WAIT, HostEffect, HostId, Phase, Placement, PoolCore, Timer},
    side::SideMessage,
};

/// Length to which texts of a host are cut.
const LONGEST_MESSAGE: usize = 16 << 10;
/// The longest pause that a routine may ask for: ten years.
const LONGEST_RETRY_AFTER_MS: u64 = 10 * 365 * 86_400_000;

impl PoolCore {
    /// Takes in what a host has said.
    pub(super) fn receive(
        &mut self,
        host: HostId,
        messages: Vec<(FromHost, Option<Vec<u8>>)>,
        now: Duration,
    ) {
        for (message, payload) in messages {
            if self
                .hosts
                .get(&host)
                .is_none_or(|host| host.phase == Phase::Killed)
            {
                return;
            }
            self.receive_one(host, message, payload, now);
        }
    }

    fn receive_one(
        &mut self,
        host: HostId,
        message: FromHost,
        payload: Option<Vec<u8>>,
        now: Duration,
    ) {
        let is_ready = self
            .hosts
            .get(&host)
            .is_some_and(|host| host.phase != Phase::Starting);
        match message {
            FromHost::Hello(hello) => self.greeted(host, &hello),
            FromHost::Ready {} => self.ready(host, now),
            FromHost::Failed(failed) => self.fault(host, cut(failed.message)),
            FromHost::Pong(ping) => self.pong(host, ping.n),
            FromHost::Log(HostLog {
                id: None,
                level,
                message,
                ..
            }) => self.effects.push(HostEffect::Info(format!(
                "a host says ({level:?}): {}",
                cut(message)
            ))),
            _ if !is_ready => self.fault(host, "it spoke of attempts before it was ready".into()),
            FromHost::Ack(at) => match self.slot_of(host, at.id) {
                Some(slot) => self.acked(slot),
                None => self.unknown_run(host, at.id),
            },
            FromHost::Result(at) => match self.slot_of(host, at.id) {
                Some(slot) => {
                    let value = match payload.as_deref() {
                        None | Some([]) => Ok(Value::Null),
                        Some(bytes) => serde_json::from_slice(bytes),
                    };
                    let (exit, value) = match value {
                        Ok(value) => (ExitStatus::Code { code: 0 }, Some(value)),
                        Err(error) => (
                            ExitStatus::ProtocolError {
                                message: format!("its result is not JSON: {error}"),
                            },
                            None,
                        ),
                    };
                    self.answered(slot, exit, value);
                }
                None => self.unknown_run(host, at.id),
            },
            FromHost::Error(error) => match self.slot_of(host, error.id) {
                Some(slot) => {
                    let (exit, value) = exit_of(error);
                    self.answered(slot, exit, value);
                }
                None => self.unknown_run(host, error.id),
            },
            FromHost::Item(at) => self.fault(
                host,
                format!("it sent an item of run {}, which is no stream", at.id),
            ),
            // A thread that a routine has left behind may speak after its end.
            FromHost::Progress(progress) => {
                let id = progress.id;
                self.side(host, id, SideMessage::Progress(progress.into()));
            }
            FromHost::Log(HostLog {
                id: Some(id),
                level,
                message,
                fields,
            }) => {
                let mut message = cut(message);
                if !fields.is_empty() {
                    message.push(' ');
                    message.push_str(&Value::Object(fields).to_string());
                }
                self.side(host, id, SideMessage::Log(level, message));
            }
            FromHost::Chain(ChainedTask { id, spec }) => {
                let trace = self
                    .slot_of(host, id)
                    .and_then(|slot| self.attempts.get(&slot))
                    .map(|attempt| {
                        let at = attempt.claim.attempt_id;
                        attempt.claim.spec.trace(at.tid, at.attempt)
                    });
                if let Some(trace) = trace {
                    self.side(host, id, SideMessage::Chain(spec, trace));
                }
            }
            _ => {}
        }
    }

    fn side(&mut self, host: HostId, run: u64, message: SideMessage) {
        if let Some(attempt) = self
            .slot_of(host, run)
            .and_then(|slot| self.attempts.get(&slot))
        {
            self.effects
                .push(HostEffect::Side(attempt.claim.attempt_id, message));
        }
    }

    fn unknown_run(&mut self, host: HostId, run: u64) {
        self.fault(
            host,
            format!("it answered for run {run}, which it does not have"),
        );
    }

    fn slot_of(&self, host: HostId, run: u64) -> Option<usize> {
        let slot = *self.runs.get(&run)?;
        let of_host = matches!(self.attempts.get(&slot)?.place, Placement::Host { host: of, run: is, .. } if of == host && is == run);
        of_host.then_some(slot)
    }

    fn acked(&mut self, slot: usize) {
        let Some(attempt) = self.attempts.get_mut(&slot) else {
            return;
        };
        if let Placement::Host { acked, host, .. } = &mut attempt.place
            && !std::mem::replace(acked, true)
        {
            let pid = self.hosts.get(host).and_then(|host| host.pid);
            self.effects.push(HostEffect::Started(AttemptStarted {
                attempt_id: attempt.claim.attempt_id,
                pid,
            }));
        }
    }

    fn answered(&mut self, slot: usize, exit: ExitStatus, value: Option<Value>) {
        let asked = self
            .attempts
            .get(&slot)
            .and_then(|attempt| attempt.ending.clone());
        match asked {
            // It was asked to end, and did.
            Some(asked) => self.end(slot, asked, None, false),
            None => self.end(slot, exit, value, false),
        }
    }

    /// Ends an attempt, and frees its slot.
    pub(super) fn end(
        &mut self,
        slot: usize,
        exit: ExitStatus,
        value: Option<Value>,
        killed: bool,
    ) {
        let started_at = self.leave_host(slot);
        let Some(attempt) = self.attempts.remove(&slot) else {
            return;
        };
        self.timeouts.remove(&slot);
        let report = AttemptReport {
            started_at,
            value,
            ..AttemptReport::bare(exit, Timestamp::now())
        };
        self.effects.push(HostEffect::Ended {
            slot,
            finish: Box::new(Completion {
                attempt_id: attempt.claim.attempt_id,
                report,
                stdout: Vec::new(),
                stderr: Vec::new(),
            }),
            killed,
        });
    }

    /// Takes an attempt out of its host. Returns when it began there.
    pub(super) fn leave_host(&mut self, slot: usize) -> Option<Timestamp> {
        let attempt = self.attempts.get_mut(&slot)?;
        let Placement::Host {
            host,
            run,
            started_at,
            ..
        } = attempt.place
        else {
            return None;
        };
        attempt.place = Placement::Waiting;
        self.runs.remove(&run);
        if let Some(host) = self.hosts.get_mut(&host) {
            host.running.remove(&slot);
            host.plain -= usize::from(attempt.kind == RoutineKind::Plain);
        }
        Some(started_at)
    }

    /// An order of the worker about the attempt in a slot.
    pub(super) fn order(&mut self, slot: usize, order: RunnerCommand, now: Duration) {
        let Some(attempt) = self.attempts.get(&slot) else {
            self.effects.push(HostEffect::FreshOrder { slot, order });
            return;
        };
        match order {
            RunnerCommand::Stop if attempt.ending.is_some() => self.force(slot, now),
            RunnerCommand::Stop => {
                let grace = self.grace.stop;
                self.ask_to_end(slot, ExitStatus::Cancelled, CancelReason::Stop, grace, now);
            }
            RunnerCommand::Kill => {
                if let Some(attempt) = self.attempts.get_mut(&slot)
                    && attempt
                        .ending
                        .as_ref()
                        .is_none_or(|ending| *ending == ExitStatus::Cancelled)
                {
                    attempt.ending = Some(ExitStatus::Killed);
                }
                self.force(slot, now);
            }
            // The worker refuses these before they get here: one attempt of many cannot stand
            // still.
            RunnerCommand::Pause | RunnerCommand::Resume => {}
        }
    }

    /// Asks an attempt to end within `grace`.
    pub(super) fn ask_to_end(
        &mut self,
        slot: usize,
        ending: ExitStatus,
        reason: CancelReason,
        grace: Duration,
        now: Duration,
    ) {
        let Some(attempt) = self.attempts.get_mut(&slot) else {
            return;
        };
        attempt.ending.get_or_insert(ending);
        match attempt.place {
            Placement::Waiting => self.end_waiting(slot),
            Placement::Host { host, run, .. } => {
                let cancel = CancelAttempt {
                    id: run,
                    reason,
                    force: false,
                };
                self.send(host, &ToHost::Cancel(cancel));
                self.timers.push(Reverse((
                    now.saturating_add(grace),
                    Timer::Force { slot, run },
                )));
            }
        }
    }

    /// Tells an attempt that it has to end now, and kills its host for it if it does not.
    pub(super) fn force(&mut self, slot: usize, now: Duration) {
        let Some(attempt) = self.attempts.get_mut(&slot) else {
            return;
        };
        attempt.ending.get_or_insert(ExitStatus::Cancelled);
        if std::mem::replace(&mut attempt.forced, true) {
            return;
        }
        let reason = if attempt.ending == Some(ExitStatus::Timeout) {
            CancelReason::Timeout
        } else {
            CancelReason::Stop
        };
        match attempt.place {
            Placement::Waiting => self.end_waiting(slot),
            Placement::Host { host, run, .. } => {
                let cancel = CancelAttempt {
                    id: run,
                    reason,
                    force: true,
                };
                self.send(host, &ToHost::Cancel(cancel));
                self.timers
                    .push(Reverse((now + FORCE_WAIT, Timer::KillFor { slot, run })));
            }
        }
    }

    /// Ends an attempt that was asked to end and runs nowhere.
    fn end_waiting(&mut self, slot: usize) {
        for queue in [&mut self.waiting, &mut self.alone, &mut self.fresh] {
            queue.retain(|waiting| *waiting != slot);
        }
        let ending = self
            .attempts
            .get(&slot)
            .and_then(|attempt| attempt.ending.clone());
        self.end(slot, ending.unwrap_or(ExitStatus::Cancelled), None, false);
    }

    /// The run of the attempt in a slot, if it is this one.
    pub(super) fn host_of_run(&self, slot: usize, run: u64) -> Option<HostId> {
        match self.attempts.get(&slot)?.place {
            Placement::Host { host, run: is, .. } if is == run => Some(host),
            _ => None,
        }
    }
}

fn exit_of(error: HostError) -> (ExitStatus, Option<Value>) {
    let HostError {
        kind,
        message,
        causes,
        permanent,
        retry_after_ms,
        panicked_at,
        value,
        ..
    } = error;
    let mut text = match kind {
        Some(kind) if message.is_empty() => kind,
        Some(kind) => format!("{kind}: {message}"),
        None => message,
    };
    for cause in causes {
        text.push_str(": ");
        text.push_str(&cause);
    }
    let message = cut(text);
    match panicked_at {
        Some(location) => (
            ExitStatus::Panicked {
                message,
                location: cut(location),
            },
            None,
        ),
        None => {
            let exit = ExitStatus::Error {
                message,
                permanent,
                retry_after_ms: retry_after_ms.map(|pause| pause.min(LONGEST_RETRY_AFTER_MS)),
            };
            (exit, value)
        }
    }
}

fn cut(mut text: String) -> String {
    if text.len() > LONGEST_MESSAGE {
        let end = (0..=LONGEST_MESSAGE)
            .rev()
            .find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
    }
    text
}
