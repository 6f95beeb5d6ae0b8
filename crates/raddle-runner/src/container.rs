//! What the supervisor of a container and its process 1 agree on.
//!
//! Two processes of ours look after a command in a container. The *leash* is outside, a child of the runner's, and holds the container's standard input.
//! Process 1 inside is this program again, as a runner of one attempt: it reads [`ToRunner`](crate::ToRunner) from its standard input, and writes
//! [`Notice`](crate::Notice) to its standard output; the command itself has pipes of its own. When the leash is gone, however it ended, process 1 reads the
//! end of its input and ends, and with process 1 the kernel ends whatever is in the container.
//!
//! Nothing that process 1 is told is in the settings of the container, where others could read it.

use std::time::Duration;

/// The first argument of process 1 in a container.
pub const INIT: &str = "__init";
/// What the two speak, raised with every change of their messages that the other side could misread. Process 1 is started from the file of the supervisor's
/// own program, which an upgrade may replace in between, or by an engine on a machine where another version is in its place.
pub const VERSION: u32 = 2;
/// So much input may be on its way to a command that has not taken it. What is more waits outside: otherwise an order would be stuck behind it,
/// and the end of the leash too; and it counts as memory of the container.
pub const WINDOW: usize = 256 << 10;
/// How often a leash says that it is there.
pub const BEAT: Duration = Duration::from_secs(3);
/// How long process 1 believes in a leash that says nothing. An engine that is restarted may keep its input open without anybody at the other end.
pub const SILENCE: Duration = Duration::from_secs(30);
