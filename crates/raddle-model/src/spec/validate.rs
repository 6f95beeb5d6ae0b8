//! Checks of a spec beyond what its types enforce.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Isolation, Mount, Target, TaskSpec};
use crate::queue_name::{ManagerQueue, QueueName};

/// Maximum size of a spec, including its `stdin`. Larger input belongs in a file that the task
/// reads.
pub const MAX_SPEC_BYTES: usize = 16 * 1024 * 1024;
/// Maximum size of arguments and environment together: Linux never accepts more in `execve`,
/// whatever limits are set.
const MAX_EXEC_BYTES: usize = 6 * 1024 * 1024;
/// Overhead of each string: the NUL terminator and a pointer.
const EXEC_ENTRY_BYTES: usize = 9;
const MAX_NAME_BYTES: usize = 128;
/// Each mount costs system calls at every attempt.
const MAX_MOUNTS: usize = 32;
const MAX_ATTEMPTS: u32 = 1_000_000;

/// Why a well-formed spec cannot run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("at '{path}': {reason}")]
pub struct InvalidSpec {
    /// The invalid key.
    pub path: Cow<'static, str>,
    /// The problem and its fix.
    pub reason: String,
}

impl TaskSpec {
    /// Refuses specs that no worker could run.
    pub fn validate(&self) -> Result<(), InvalidSpec> {
        self.validate_target()?;
        check(
            self.requires.implied().next().is_none(),
            "requires",
            "tags that begin with @ are given by Raddle itself",
        )?;
        self.validate_isolation()?;
        self.validate_text()?;
        self.validate_size()?;
        self.validate_numbers()
    }

    fn validate_target(&self) -> Result<(), InvalidSpec> {
        match &self.target {
            Target::Command(argv) => {
                let program = argv
                    .first()
                    .ok_or_else(|| invalid("target.command", "is empty: name a program to run"))?;
                check(
                    !program.is_empty(),
                    "target.command",
                    "names no program: its first word is empty",
                )?;
                check(
                    !argv.iter().any(|a| a.contains('\0')),
                    "target.command",
                    "holds a NUL byte, which no program can be given",
                )
            }
            Target::Routine(name) => {
                check(is_label(name), "target.routine", "is not a routine's name")
            }
            Target::Handler(name) => {
                check(is_label(name), "target.handler", "is not a handler's name")
            }
            Target::Service(_) => Err(invalid(
                "target.service",
                "cannot be submitted: services start themselves",
            )),
            Target::Request(_) => {
                let queue = self.queue.parse::<QueueName>().ok();
                let is_asked = queue
                    .is_some_and(|queue| matches!(queue.desk(), Some((_, ManagerQueue::Requests))));
                check(
                    is_asked,
                    "target.request",
                    "cannot be submitted: write it to raddle.spawn.requests",
                )
            }
        }
    }

    fn validate_isolation(&self) -> Result<(), InvalidSpec> {
        if self.isolation == Some(Isolation::Shared)
            && let Some((key, reason)) = self.process_only_key()
        {
            return Err(invalid(key, reason));
        }
        check(
            !self.isolation_fallback || self.isolation() == Isolation::Sandbox,
            "isolation_fallback",
            "means nothing without the isolation 'sandbox'",
        )?;
        check(
            self.network.is_none() || self.isolation() > Isolation::Process,
            "network",
            "means nothing without the isolation 'sandbox': a process has its host's",
        )?;
        check(
            self.mounts.is_empty()
                || (self.isolation() == Isolation::Sandbox && !self.isolation_fallback),
            "mounts",
            "need the isolation 'sandbox', without isolation_fallback: others see their host's files or none",
        )?;
        check(
            self.mounts.len() <= MAX_MOUNTS,
            "mounts",
            "are more than 32",
        )?;
        for mount in &self.mounts {
            mount.check().map_err(|reason| invalid("mounts", reason))?;
        }
        // The mount point of the inner mount would be created inside the outer mount, on the host.
        let is_within = |inner: &Mount, outer: &Mount| {
            inner
                .path
                .strip_prefix(&*outer.path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let mut pairs = self
            .mounts
            .iter()
            .enumerate()
            .flat_map(|(n, one)| self.mounts[n + 1..].iter().map(move |two| (one, two)));
        check(
            !pairs.any(|(one, two)| is_within(one, two) || is_within(two, one)),
            "mounts",
            "have one path twice, or one inside of another: give each a path of its own",
        )?;
        check(
            self.cwd.is_none() || self.isolation() <= Isolation::Process,
            "cwd",
            "is not visible there: a sandbox or container has its own directory: remove cwd",
        )
    }

    fn validate_text(&self) -> Result<(), InvalidSpec> {
        let no_nul = |path, text: &str| check(!text.contains('\0'), path, "holds a NUL byte");
        if let Some(name) = &self.name {
            check(
                (1..=MAX_NAME_BYTES).contains(&name.len()),
                "name",
                "must have 1 to 128 bytes",
            )?;
            check(
                !name.chars().any(char::is_control),
                "name",
                "holds a control character",
            )?;
        }
        check(
            is_label(&self.queue),
            "queue",
            "must be 1 to 128 letters, digits, or . _ - : @ /",
        )?;
        if let Some(cwd) = &self.cwd {
            check(!cwd.is_empty(), "cwd", "is empty")?;
            no_nul("cwd", cwd)?;
        }
        for (key, value) in &self.env {
            check(
                !key.is_empty() && !key.contains('='),
                "env",
                "has a name that is empty or holds '='",
            )?;
            no_nul("env", key)?;
            no_nul("env", value)?;
        }
        if let Some(key) = &self.unique_key {
            check(
                (1..=512).contains(&key.len()),
                "unique_key",
                "must have 1 to 512 bytes",
            )?;
        }
        for (path, label) in [("kind", &self.kind), ("batch", &self.batch)] {
            let is_valid = label.as_ref().is_none_or(|label| is_label(label));
            check(
                is_valid,
                path,
                "must be 1 to 128 letters, digits, or . _ - : @ /",
            )?;
        }
        check(
            self.traceparent.is_some() || self.tracestate.is_none(),
            "tracestate",
            "means nothing without a traceparent: give both",
        )?;
        let size = self.stdin.as_ref().map_or(0, String::len);
        check(
            size <= MAX_SPEC_BYTES,
            "stdin",
            "is larger than 16 MiB: let the task read a file instead",
        )
    }

    fn validate_size(&self) -> Result<(), InvalidSpec> {
        let env = self
            .env
            .iter()
            .map(|(key, value)| key.len() + 1 + value.len() + EXEC_ENTRY_BYTES)
            .sum::<usize>();
        check(
            env <= MAX_EXEC_BYTES,
            "env",
            "is larger than the 6 MiB that a program can be given: let the task read a file",
        )?;
        let Target::Command(argv) = &self.target else {
            return Ok(());
        };
        let argv = argv
            .iter()
            .map(|argument| argument.len() + EXEC_ENTRY_BYTES)
            .sum::<usize>();
        check(
            argv + env <= MAX_EXEC_BYTES,
            "target.command",
            "is larger, with its env, than the 6 MiB that a program can be given: use stdin, or let the task read a file",
        )
    }

    fn validate_numbers(&self) -> Result<(), InvalidSpec> {
        check(self.priority <= 9, "priority", "must be 0 to 9")?;
        check(
            (1..=MAX_ATTEMPTS).contains(&self.retry.attempts),
            "retry.attempts",
            "must be 1 to 1000000",
        )?;
        check(
            (0.0..=1.0).contains(&self.retry.jitter),
            "retry.jitter",
            "must be 0 to 1",
        )?;
        check(
            self.delay.is_none() || self.run_at.is_none(),
            "run_at",
            "and delay exclude each other: give one",
        )?;
        self.validate_lifetime()?;
        check(
            self.timeout.is_none_or(|t| !t.0.is_zero()),
            "timeout",
            "must be longer than zero",
        )?;
        let positive =
            |path, value: Option<u64>| check(value != Some(0), path, "must be at least 1");
        positive("limits.memory_mb", self.limits.memory_mb)?;
        positive("limits.cpu_percent", self.limits.cpu_percent.map(u64::from))?;
        positive("limits.max_fds", self.limits.max_fds)?;
        positive("limits.max_procs", self.limits.max_procs)
    }
}

impl TaskSpec {
    fn validate_lifetime(&self) -> Result<(), InvalidSpec> {
        check(
            self.lifetime.is_none() || self.run_before.is_none(),
            "run_before",
            "and lifetime exclude each other: give one",
        )?;
        check(
            self.lifetime.is_none_or(|lifetime| !lifetime.0.is_zero()),
            "lifetime",
            "must be longer than zero",
        )?;
        const NEVER: &str = "is over before the task may begin: it would never run";
        check(
            !matches!((self.lifetime, self.delay), (Some(life), Some(delay)) if life <= delay),
            "lifetime",
            NEVER,
        )?;
        check(
            !matches!((self.run_before, self.run_at), (Some(end), Some(at)) if end <= at),
            "run_before",
            NEVER,
        )
    }
}

/// Returns whether a text can be the name of a queue, a kind, a routine or a handler.
pub fn is_label(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-:@/".contains(&b))
}

pub(crate) fn check(holds: bool, path: &'static str, reason: &str) -> Result<(), InvalidSpec> {
    if holds {
        Ok(())
    } else {
        Err(invalid(path, reason))
    }
}

pub(crate) fn invalid(path: &'static str, reason: &str) -> InvalidSpec {
    InvalidSpec {
        path: path.into(),
        reason: reason.into(),
    }
}
