//! Routines: functions of the user's program that tasks can run.
//!
//! `#[raddle::routine]` registers a function under a stable name. A task names it and carries its arguments; a worker of the same program runs
//! it in a process forked from a runner, which is as new as one that was just started.

mod arguments;
mod call;
mod context;
mod handle;
mod task;

use std::{collections::BTreeMap, future::Future, pin::Pin};

use raddle_core::{Job, reply::Fault};
use serde_json::Value;

pub use self::{
    arguments::Arguments,
    call::call,
    context::{log, progress, trace},
    handle::{Handle, TaskError},
    task::Task,
};

/// A function that is running.
pub type Running = Pin<Box<dyn Future<Output = Result<Value, Fault>>>>;

/// A registered function. Made by `#[raddle::routine]`.
#[derive(Clone, Copy, Debug)]
pub struct Routine {
    /// Its name in tasks.
    pub name: &'static str,
    /// Where it stands in the source, for messages.
    pub place: &'static str,
    /// Runs it.
    pub run: Run,
}

/// How a function is run.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// It has no need of a runtime.
    Plain(fn(Job) -> Result<Value, Fault>),
    /// It is polled by one.
    Async(fn(Job) -> Running),
}

inventory::collect!(Routine);

/// Two functions of one program with the same name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "two routines are called '{name}', at {first} and at {second}: give one of them another with #[raddle::routine(name = \"…\")]"
)]
pub struct Clash {
    name: &'static str,
    first: &'static str,
    second: &'static str,
}

/// All functions of this program.
#[derive(Clone, Debug, Default)]
pub struct Routines(BTreeMap<&'static str, Routine>);

impl Routines {
    /// Those that this program was built with.
    pub fn of_this_program() -> Result<Self, Clash> {
        Self::new(inventory::iter::<Routine>.into_iter().copied())
    }

    /// These.
    pub fn new(routines: impl IntoIterator<Item = Routine>) -> Result<Self, Clash> {
        let mut known = BTreeMap::<_, Routine>::new();
        for routine in routines {
            if let Some(other) = known.insert(routine.name, routine) {
                return Err(Clash { name: routine.name, first: other.place, second: routine.place });
            }
        }
        Ok(Self(known))
    }

    /// The one of this name.
    pub fn get(&self, name: &str) -> Option<Routine> {
        self.0.get(name).copied()
    }

    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }
}

#[cfg(test)]
mod tests;
