//! The socket file, and who may be at the other end of a connection.
//!
//! The file has mode 0600 from its first moment, and belongs to whoever serves, or to a guest who is served. It is made, replaced and removed under a lock on its directory,
//! so that of two servers that start at once one sees the other. A name that is something else than a dead socket is left alone; a
//! link is something else, wherever it points.

use std::{
    io,
    os::fd::AsRawFd,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt},
    process::{Uid, geteuid},
};
use tokio::time::Instant;

use raddle_broker::{Error, Result};

/// The longest name of a socket: `sun_path` has 108 bytes, the last of which ends it.
const MAX_PATH: usize = 107;
/// How many connections may wait to be accepted. The kernel has a bound of its own, which is lower on old ones.
const BACKLOG: i32 = 4096;
/// Binding takes less than a millisecond: whoever holds the directory for longer is not a server that starts.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// A socket that is listened on. Its file is removed with it.
#[derive(Debug)]
pub(super) struct BoundSocket {
    path: PathBuf,
    /// Device and inode, by which the file is known to be this one.
    file: (u64, u64),
}

/// Makes the socket, for `guest` if one is to be served besides this user.
pub(super) async fn bind(path: &Path, guest: Option<u32>) -> Result<(UnixListener, BoundSocket)> {
    let refuse = |reason: String| Error::Socket {
        path: path.into(),
        reason,
    };
    let address = address(path).map_err(&refuse)?;
    let lock = lock_directory(path).await?;
    clear_the_way(path, &address)?;
    let make = || -> io::Result<(UnixListener, BoundSocket)> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // Before it has a name: the file takes its mode from here, so that there is no moment in which others could open it.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        // Does not follow a link in the last place: a name that is taken is taken.
        rustix::net::bind(&socket, &address)?;
        let found = path.symlink_metadata()?;
        if found.mode() & 0o777 != 0o600 {
            // The umask has taken what its owner needs.
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        }
        let bound = BoundSocket {
            path: path.into(),
            file: (found.dev(), found.ino()),
        };
        if guest.is_some_and(|uid| uid != geteuid().as_raw()) {
            // Whoever serves is root then, who may do everything with it all the same. Not through a link.
            std::os::unix::fs::lchown(path, guest, None)?;
        }
        rustix::net::listen(&socket, BACKLOG)?;
        let listener = UnixListener::from(socket);
        listener.set_nonblocking(true)?;
        Ok((listener, bound))
    };
    let made = make().map_err(|error| refuse(error.to_string()));
    drop(lock);
    made
}

/// Removes the file, unless another has taken its place.
impl Drop for BoundSocket {
    fn drop(&mut self) {
        // Without the lock when it cannot be had at once: then another server starts here, which replaces the file or fails on it.
        let _lock = open_directory(&self.path).ok().filter(|directory| {
            rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive).is_ok()
        });
        if self
            .path
            .symlink_metadata()
            .is_ok_and(|found| (found.dev(), found.ino()) == self.file)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The name as the system takes it. The error is for people.
pub(super) fn address(path: &Path) -> Result<SocketAddrUnix, String> {
    let len = path.as_os_str().len();
    if len > MAX_PATH {
        return Err(format!(
            "its path has {len} bytes, and a socket's can have {MAX_PATH}: use a shorter one"
        ));
    }
    if path.as_os_str().as_bytes().contains(&0) {
        return Err("its path holds a NUL byte".into());
    }
    SocketAddrUnix::new(path).map_err(|error| error.to_string())
}

fn open_directory(path: &Path) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let directory = match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    rustix::fs::open(
        directory,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

async fn lock_directory(path: &Path) -> Result<rustix::fd::OwnedFd> {
    let refuse = |reason: String| Error::Socket {
        path: path.into(),
        reason,
    };
    let directory = open_directory(path).map_err(|error| match error {
        rustix::io::Errno::NOENT => refuse("its directory does not exist: make it first".into()),
        error => refuse(format!(
            "its directory cannot be opened: {}",
            io::Error::from(error)
        )),
    })?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                tokio::time::sleep(LOCK_PAUSE).await
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(refuse(
                    "another process keeps its directory locked: is it stopped?".into(),
                ));
            }
            Err(error) => {
                return Err(refuse(format!(
                    "its directory cannot be locked: {}",
                    io::Error::from(error)
                )));
            }
        }
    }
}

/// Removes a socket that nobody listens on; refuses everything else that has the name.
fn clear_the_way(path: &Path, address: &SocketAddrUnix) -> Result<()> {
    let refuse = |reason: String| {
        Err(Error::Socket {
            path: path.into(),
            reason,
        })
    };
    let found = match path.symlink_metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return refuse(error.to_string()),
    };
    if !found.file_type().is_socket() {
        return refuse(
            "something that is not a socket has this name: name another, or move it away".into(),
        );
    }
    let probe = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, address)
    };
    match probe() {
        // A queue that is full has somebody who owns it.
        Ok(()) | Err(rustix::io::Errno::AGAIN) => {
            refuse("another process serves there: stop it, or name another".into())
        }
        Err(rustix::io::Errno::CONNREFUSED) => match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => refuse(format!(
                "a socket that nobody listens on cannot be removed: {error}"
            )),
            _ => Ok(()),
        },
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => refuse(format!(
            "whether somebody serves there cannot be told: {}",
            io::Error::from(error)
        )),
    }
}

/// Connects, and blocks for no longer than `patience` then and in every read and write after.
pub(super) fn connect_blocking(path: &Path, patience: Duration) -> Result<UnixStream> {
    let address = address(path).map_err(|reason| Error::AgentRefused {
        path: path.into(),
        reason,
    })?;
    let open = || -> io::Result<UnixStream> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience))?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(patience))?;
        rustix::net::connect(&socket, &address)?;
        Ok(UnixStream::from(socket))
    };
    let stream = open().map_err(|error| unreachable(path, &error))?;
    let server = user_at(&stream).map_err(|error| unreachable(path, &error))?;
    check_server(path, server)?;
    Ok(stream)
}

/// The user at the other end. Who is in another process namespace, as whoever serves a container is, has no number here: what takes
/// every process to have one cannot be asked.
fn user_at(stream: &UnixStream) -> io::Result<u32> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both pointers are to values of ours, and the second says how long the first is.
    let asked = unsafe {
        let place = (&raw mut found).cast();
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            place,
            &raw mut len,
        )
    };
    if asked == 0 {
        Ok(found.uid)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Why nobody answers.
pub(super) fn unreachable(path: &Path, error: &io::Error) -> Error {
    let reason = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "nobody serves there: 'raddle worker start --serve PATH' does".to_owned()
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "it did not answer in time".to_owned()
        }
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => "it has closed the connection".to_owned(),
        io::ErrorKind::PermissionDenied => {
            let reason = "the socket belongs to another user".to_owned();
            return Error::AgentRefused {
                path: path.into(),
                reason,
            };
        }
        _ => error.to_string(),
    };
    Error::AgentGone {
        path: path.into(),
        reason,
    }
}

/// Whether a client may be served: it is the same user, or root.
pub(super) fn may_ask(client: u32) -> bool {
    client == geteuid().as_raw() || client == Uid::ROOT.as_raw()
}

/// Whether tasks may be entrusted to a server: in a directory that others can write to, anybody could have put a socket there.
pub(super) fn check_server(path: &Path, server: u32) -> Result<()> {
    let me = geteuid();
    if server == me.as_raw() || server == Uid::ROOT.as_raw() || me.is_root() {
        return Ok(());
    }
    let reason = format!("it is run by user {server}, and not by you or root");
    Err(Error::AgentRefused {
        path: path.into(),
        reason,
    })
}
