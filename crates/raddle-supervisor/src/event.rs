//! Events, effects and notices of a `Supervisor`.

use std::{fmt, time::Duration};

use raddle_model::stop::{StopPolicy, StopStage};

use crate::{ChildId, GroupId, ReplicaSlot};

/// An event that the caller reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SupervisorEvent {
    /// Time has passed.
    Time,
    /// A child is ready to work.
    Ready(ChildId),
    /// A child could not be started, or has exited.
    Exited(ChildId, ChildExit),
    /// No child of this group can be started now. Applies to groups that back off [as a
    /// whole](super::BackoffScope::Group).
    Refused(GroupId),
    /// A child sent a heartbeat.
    Heartbeat(ChildId),
    /// The supervisor itself was stalled, so missing heartbeats before `now` do not mean that
    /// children hang.
    Stalled,
    /// A child's process was suspended (SIGSTOP).
    Suspended(ChildId),
    /// A suspended process continues (SIGCONT).
    Continued(ChildId),
    /// A child is known to hang.
    Hung(ChildId, HangKind),
    /// The callers of a child have found it broken.
    Broken(ChildId),
    /// Measurements of a child.
    Measured {
        /// The child.
        child: ChildId,
        /// Tasks started.
        tasks: u64,
        /// Resident set size in bytes, if it was sampled.
        rss: Option<u64>,
    },
    /// A group's number of replicas has changed.
    Scale(GroupId, usize),
    /// A group was switched on or off.
    Switch(GroupId, bool),
    /// The definition of a group has changed: its children are replaced one by one.
    Renew(GroupId),
    /// A group's stop policy has changed. Children that are already stopping keep the old one.
    SetStopPolicy(GroupId, StopPolicy),
    /// A shared dependency is available again: all backoff pauses end.
    Restored,
    /// Stop all groups, or advance the stop by one stage.
    Stop,
}

/// How a child exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildExit {
    /// Successfully.
    Success,
    /// With a failure.
    Failure,
}

/// How a child hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HangKind {
    /// It was not ready in time.
    Unready,
    /// It sends no heartbeats: its event loop is blocked.
    Silent,
    /// Its process was suspended and not continued.
    Suspended,
    /// A task exceeds its time limit.
    Overdue,
}

/// Why a child is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The group is scaled down, switched off or stopped.
    Requested,
    /// It reached its maximum number of tasks.
    Tasks,
    /// It reached its maximum age.
    Age,
    /// It reached its memory limit.
    Rss,
    /// The definition of its group has changed.
    Outdated,
    /// Its callers have found it broken.
    Broken,
    /// It hangs.
    Hung(HangKind),
}

/// An effect that the caller must carry out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SupervisorEffect {
    /// Start a child in an empty slot.
    Start(ChildId, ReplicaSlot),
    /// Bring a child to this stop stage. Stages come in order, each at most once.
    SetStopStage(ChildId, StopStage),
    /// Log a notice.
    Notify(SupervisorNotice),
}

/// A notice for the log.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum SupervisorNotice {
    /// A child is about to be stopped for this reason. Its state can still be inspected.
    Stopping(ChildId, StopReason),
    /// A child exited by itself and is replaced.
    Replaced(ChildId),
    /// A child exited by itself and is not replaced.
    Retired(ChildId),
    /// Children of a slot die right after their start. The next start is delayed.
    BackingOff {
        /// The slot.
        slot: ReplicaSlot,
        /// Length of the pause.
        pause: Duration,
        /// How many pauses in a row there have been.
        number: u32,
    },
    /// The crash loop is over.
    Recovered(ReplicaSlot),
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requested => "it was asked to",
            Self::Tasks => "it has reached its task limit",
            Self::Age => "it has reached its maximum age",
            Self::Rss => "it has reached its memory limit",
            Self::Outdated => "its group has changed",
            Self::Broken => "its callers found it broken",
            Self::Hung(HangKind::Unready) => "it was not ready in time",
            Self::Hung(HangKind::Silent) => "it shows no progress: its loop is blocked",
            Self::Hung(HangKind::Suspended) => "its process was suspended and not continued",
            Self::Hung(HangKind::Overdue) => "a task has run past its time limit",
        })
    }
}
