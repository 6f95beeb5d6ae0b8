//! The types of the command line. `commands` has the behaviour.

mod batch;
#[cfg(feature = "tls")]
mod cert;
#[cfg(feature = "pool")]
mod credentials;
#[cfg(feature = "pool")]
mod discovery;
mod failures;
mod group;
mod host;
mod log;
mod manager;
mod metrics;
#[cfg(feature = "pool")]
mod pool;
mod queue;
mod schedule;
mod select;
#[cfg(feature = "pool")]
mod serve;
mod spawner;
mod spec;
mod submit;
mod task;
mod web;
mod worker;

use std::ffi::{OsStr, OsString};

use clap::{
    Args, CommandFactory, FromArgMatches, Parser, Subcommand,
    builder::{PathBufValueParser, Resettable, TypedValueParser},
    error::ErrorKind,
};
use raddle_model::HumanDuration;

#[cfg(feature = "tls")]
pub(crate) use cert::*;
pub(crate) use {
