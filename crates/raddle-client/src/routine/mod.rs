//! Routines: functions of the user's program that tasks can run.
//!
//! `#[raddle::routine]` registers a function under a stable name, see [`raddle_model::routine`]. A
//! task names it and carries its arguments. A worker of the same program runs it in a process that
//! the runner's fork server forks, so its state is as fresh as in a new process.

mod call;
mod cancel;
mod chain;
mod context;
mod handle;
mod task;

pub use raddle_model::routine::{DuplicateRoutine, Routines};

pub use self::{
    call::call_function,
    cancel::{cancelled, is_cancelled},
    chain::{ChainError, chain},
    context::{log, progress, trace},
    handle::{TaskError, TaskHandle},
    task::RoutineTask,
};
