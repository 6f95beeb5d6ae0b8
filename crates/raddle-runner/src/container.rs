//! Constants that the supervisor of a container and its process 1 share.
//!
//! Two processes of ours supervise a command in a container. The *container supervisor* runs
//! outside, as a child of the runner, and holds the container's standard input open. Process 1
//! inside is this program again, as a runner of one attempt: it reads [`ToRunner`](crate::ToRunner)
//! from its standard input and writes [`RunnerEvent`](crate::RunnerEvent) to its standard output;
//! the command has pipes of its own. When the supervisor exits, for whatever reason, process 1
//! reads end of file and exits, and the kernel kills every process in the container with it.
//!
//! Everything that process 1 needs comes over this connection, not in the container's settings,
//! where other users of the engine could read it.

use std::time::Duration;

/// First argument of process 1 in a container.
pub const INIT: &str = "__init";
/// Protocol version, raised with every change that the other side could misread. The versions can
/// differ: process 1 is started from the file of the supervisor's program, which an upgrade may
/// replace in between, or by an engine on a machine that has another version at this path.
pub const VERSION: u32 = 2;
/// Maximum number of input bytes in flight to a command that has not read them. The rest waits
/// outside: otherwise a command, or the end of the supervisor, would queue up behind the input, and
/// the input would count as memory of the container.
pub const INPUT_WINDOW: usize = 256 << 10;
/// Interval between heartbeats of the supervisor.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
/// Silence after which process 1 gives up its supervisor. A container engine that restarts may keep
/// the input open with no process at the other end.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(30);
