//! What happens to a core, and what it wants done.

use std::{fmt, time::Duration};

use super::{ChildId, GroupId, Seat};
use crate::stop::{Stage, StopPolicy};

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// Time has passed.
    Time,
    /// A child does what it is there for.
    Ready(ChildId),
    /// A child could not be started, or has ended.
    Gone(ChildId, End),
    /// Nobody of a group that is held back [as one](super::Braking::Group) can be started now, whoever it would be.
    Refused(GroupId),
    /// A child has shown that it gets on.
    Marked(ChildId),
    /// Whoever tells stood still himself until now: that nothing was heard of children says nothing of them.
    Late,
    /// Somebody has stopped a child's process.
    Suspended(ChildId),
    /// It goes on.
    Continued(ChildId),
    /// A child is known to be hung.
    Hung(ChildId, Hang),
    /// Those that a child works for have found it to be broken.
    Broken(ChildId),
    /// What a child has done, and has.
    Measured {
        /// The child.
        child: ChildId,
        /// Tasks begun.
        tasks: u64,
        /// Bytes in memory, if that was looked at.
        rss: Option<u64>,
    },
    /// From now on a group has so many replicas.
    Scale(GroupId, usize),
    /// From now on a group has children, or none.
    Turn(GroupId, bool),
    /// What the children of a group are started from has changed: each is replaced, one after the other.
    Renew(GroupId),
    /// From now on those of a group that are to end are stopped like this. Who stops already goes on as it was told.
    Patience(GroupId, StopPolicy),
    /// What all children need is there again, after it was away: those that are held back are tried at once.
    Restored,
    /// Everybody is to stop, or to stop faster.
    Stop,
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As one that is done.
    Well,
    /// Not so.
    Badly,
}

/// How a child is hung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hang {
    /// It was not ready in time.
    Unready,
    /// It shows no progress: its loop is blocked.
    Silent,
    /// Its process was stopped, and nobody has let it go on.
    Suspended,
    /// It has a task for longer than that may take.
    Overdue,
}

/// Why a child is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// There are to be fewer, or none.
    Asked,
    /// It has run so many tasks.
    Tasks,
    /// It is so old.
    Age,
    /// It has so much in memory.
    Rss,
    /// What it was started from has changed.
    Outdated,
    /// Those that it works for have found it to be broken.
    Broken,
    /// It is hung.
    Hung(Hang),
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// Start a child in a seat that is empty.
    Start(ChildId, Seat),
    /// Bring a child to this stage of its stop. Stages come in order, each at most once.
    Tell(ChildId, Stage),
    /// Let people know.
    Say(Notice),
}

/// What people should know.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// A child is to end, for this reason. What it was doing can be looked at now.
    Ending(ChildId, Why),
    /// A child ended by itself, and another takes its place.
    Replaced(ChildId),
    /// A child ended by itself, and its place stays empty.
    Retired(ChildId),
    /// Children die in a seat as soon as they are started. The next is started in so long.
    Braking {
        /// The seat.
        seat: Seat,
        /// How long.
        pause: Duration,
        /// How many there were in a row.
        number: u32,
    },
    /// They do not any more.
    Recovered(Seat),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "it was asked to",
            Self::Tasks => "it has run as many tasks as it was to",
            Self::Age => "it is as old as it was to become",
            Self::Rss => "it has more in memory than it may",
            Self::Outdated => "its group has changed",
            Self::Broken => "it was no use to its callers",
            Self::Hung(Hang::Unready) => "it was not ready in time",
            Self::Hung(Hang::Silent) => "it shows no progress: its loop is blocked",
            Self::Hung(Hang::Suspended) => "its process was stopped, and nobody has let it go on",
            Self::Hung(Hang::Overdue) => "it has a task for longer than that may take",
        })
    }
}
