//! The socket file, and the check of peers.
//!
//! The file has mode 0600 from the start, and belongs to the serving user, or to the user of the
//! containers. It is created, replaced and removed under a lock on its directory, so that of two
//! servers that start at once one sees the other. Only a dead socket is replaced; anything else
//! with that name is left alone, even a link to a dead socket.

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

/// The longest path of a socket: `sun_path` has 108 bytes including the final NUL.
const MAX_PATH: usize = 107;
/// The length of the accept queue. Old kernels have a lower limit.
const BACKLOG: i32 = 4096;
/// Binding takes less than a millisecond: a process that locks the directory for longer is not a
/// starting server.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// A listening socket. Its file is removed on drop.
#[derive(Debug)]
pub struct BoundSocket {
    path: PathBuf,
    /// Device and inode of the file, to recognise it.
    file: (u64, u64),
}

/// Creates a socket that only this user can open.
pub async fn bind_socket(path: &Path) -> Result<(UnixListener, BoundSocket)> {
    bind(path, None).await
}

/// Creates the socket; with `container_user` it belongs to that user.
pub(super) async fn bind(
    path: &Path,
    container_user: Option<u32>,
) -> Result<(UnixListener, BoundSocket)> {
    let refuse = |reason: String| Error::Socket {
        path: path.into(),
        reason,
    };
    let address = address(path).map_err(&refuse)?;
    let lock = lock_directory(path).await?;
    remove_dead_socket(path, &address)?;
    let make = || -> io::Result<(UnixListener, BoundSocket)> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // Before `bind`: the file takes its mode from here, so that no other user can open it in
        // between.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        // `bind` does not follow a symbolic link: an existing name is an error.
        rustix::net::bind(&socket, &address)?;
        let found = path.symlink_metadata()?;
        if found.mode() & 0o777 != 0o600 {
            // The umask may have removed permissions of the owner.
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        }
        let bound = BoundSocket {
            path: path.into(),
            file: (found.dev(), found.ino()),
        };
        if container_user.is_some_and(|uid| uid != geteuid().as_raw()) {
            // Only root gets here, and can access the file anyway. Do not follow a link.
            std::os::unix::fs::lchown(path, container_user, None)?;
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

/// Removes the file, unless another one has its name.
impl Drop for BoundSocket {
    fn drop(&mut self) {
        // Without the lock if it is taken: then another server is starting, which replaces the file
        // or fails because of it.
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

/// The address of a path; the error is for users.
pub(super) fn address(path: &Path) -> Result<SocketAddrUnix, String> {
    let len = path.as_os_str().len();
    if len > MAX_PATH {
        return Err(format!(
            "its path has {len} bytes, more than the {MAX_PATH} of a socket: use a shorter one"
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
        rustix::io::Errno::NOENT => refuse("its directory does not exist: create it first".into()),
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

/// Removes a dead socket; fails for anything else with that name.
fn remove_dead_socket(path: &Path, address: &SocketAddrUnix) -> Result<()> {
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
            "a file that is not a socket has this name: choose another, or move it away".into(),
        );
    }
    let probe = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, address)
    };
    match probe() {
        // A full accept queue has a live owner.
        Ok(()) | Err(rustix::io::Errno::AGAIN) => {
            refuse("another process serves there: stop it, or choose another path".into())
        }
        Err(rustix::io::Errno::CONNREFUSED) => match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                refuse(format!("cannot remove a dead socket: {error}"))
            }
            _ => Ok(()),
        },
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => refuse(format!(
            "cannot tell whether a process serves there: {}",
            io::Error::from(error)
        )),
    }
}

/// Connects; neither that nor any later read or write blocks for longer than `patience`.
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
    let server = peer_uid(&stream).map_err(|error| unreachable(path, &error))?;
    check_server(path, server)?;
    Ok(stream)
}

/// The user of the peer. `SO_PEERCRED` also works if the peer is in another PID namespace, where
/// tokio's variant fails because the peer has no process id here.
fn peer_uid(stream: &UnixStream) -> io::Result<u32> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both pointers are to local values, and the second holds the size of the first.
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

/// Maps a failed connection to an error.
pub(super) fn unreachable(path: &Path, error: &io::Error) -> Error {
    let reason = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "no process serves there: 'raddle worker start --serve PATH' does".to_owned()
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "it did not reply in time".to_owned()
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

/// Whether a client may be served: it runs as the same user, or as root.
pub(super) fn is_allowed_peer(client: u32) -> bool {
    client == geteuid().as_raw() || client == Uid::ROOT.as_raw()
}

/// Refuses a server of another user: in a directory that others can write to, anyone could have
/// placed a socket.
pub(super) fn check_server(path: &Path, server: u32) -> Result<()> {
    let me = geteuid();
    if server == me.as_raw() || server == Uid::ROOT.as_raw() || me.is_root() {
        return Ok(());
    }
    let reason = format!("it runs as user {server}, which is neither you nor root");
    Err(Error::AgentRefused {
        path: path.into(),
        reason,
    })
}
