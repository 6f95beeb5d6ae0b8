//! Routines: functions of the user's program that tasks can run.
//!
//! `#[raddle::routine]` registers a function under a stable name, in the list that [`raddle_model::routine`] has. A task names it and carries its
//! arguments; a worker of the same program runs it in a process forked from a runner, which is as new as one that was just started.

mod call;
mod cancel;
mod chain;
mod context;
mod handle;
mod task;

pub use raddle_model::routine::{DuplicateRoutine, Routines};

pub use self::{
    call::call,
    cancel::{cancelled, is_cancelled},
    chain::{ChainError, chain},
    context::{log, progress, trace},
    handle::{TaskError, TaskHandle},
    task::RoutineTask,
};
