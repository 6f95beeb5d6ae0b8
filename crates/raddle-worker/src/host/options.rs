//! How a worker keeps the hosts of one program.

use std::{collections::BTreeMap, time::Duration};

use raddle_model::{
    Limits,
    host::RoutineKind,
    routine::{RoutineFn, Routines},
    spec::Isolation,
};

/// How a worker keeps the hosts of one program.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Name in titles and logs.
    pub name: String,
    /// The program of a host.
    pub program: HostProgram,
    /// The directory that hosts run in; the worker's without it.
    pub directory: Option<String>,
    /// Whether every attempt has a host of its own.
    pub is_fresh: bool,
    /// How many hosts there are.
    pub count: u32,
    /// How many async attempts run in one host at once.
    pub concurrency: u32,
    /// How many plain functions run in one host at once.
    pub threads: u32,
    /// The routines, or the one handler, that its hosts run, by name.
    pub routines: BTreeMap<String, RoutineKind>,
    /// The handler that its hosts are, if they are one.
    pub handler: Option<String>,
    /// A host is replaced after so many attempts.
    pub max_tasks: Option<u64>,
    /// A host is replaced at this age.
    pub max_age: Option<Duration>,
    /// A host is replaced when it uses more memory than this.
    pub max_rss_bytes: Option<u64>,
    /// The resources that one host may use, its children included.
    pub limits: Limits,
    /// How long a host has until it is ready.
    pub startup_timeout: Duration,
    /// How long a host has to shut down.
    pub shutdown_timeout: Duration,
    /// How long the event loop of a host may be blocked before the host is replaced.
    pub blocked_timeout: Duration,
}

/// The program of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostProgram {
    /// The program that runners are started from, with [`ARGUMENT`](super::ARGUMENT).
    Own,
    /// A program in any language, with its arguments.
    Command(Vec<String>),
}

/// How many async attempts run in one host at once by default.
pub const DEFAULT_CONCURRENCY: u32 = 100;

impl HostOptions {
    /// The hosts of a program, with `cores` of them.
    pub fn new(name: impl Into<String>, program: HostProgram, cores: u32) -> Self {
        Self {
            name: name.into(),
            program,
            directory: None,
            is_fresh: false,
            count: cores.max(1),
            concurrency: DEFAULT_CONCURRENCY,
            threads: 1,
            routines: BTreeMap::new(),
            handler: None,
            max_tasks: None,
            max_age: None,
            max_rss_bytes: None,
            limits: Limits::default(),
            startup_timeout: Duration::from_secs(60),
            shutdown_timeout: Duration::from_secs(10),
            blocked_timeout: Duration::from_secs(30),
        }
    }

    /// Names the routines of this program that may run in hosts. Returns `None` if there are none.
    pub fn with_routines_of(mut self, routines: &Routines) -> Option<Self> {
        self.routines = routines
            .names()
            .filter_map(|name| routines.get(name))
            .filter(|routine| routine.isolation == Isolation::Shared)
            .map(|routine| {
                let kind = match routine.run {
                    RoutineFn::Plain(_) => RoutineKind::Plain,
                    RoutineFn::Async(_) => RoutineKind::Async,
                    RoutineFn::Stream(_) => RoutineKind::Stream,
                };
                (routine.name.to_owned(), kind)
            })
            .collect();
        (!self.routines.is_empty()).then_some(self)
    }

    /// How many async attempts run at once in all hosts.
    pub(crate) fn async_slots(&self) -> usize {
        self.count as usize * self.concurrency as usize
    }

    /// How many plain functions run at once in all hosts.
    pub(crate) fn plain_slots(&self) -> usize {
        self.count as usize * self.threads as usize
    }
}
