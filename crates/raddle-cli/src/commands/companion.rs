//! `raddle companion`: serves a program in another language, see `raddle_companion`.

use std::{
    fs, io,
    os::fd::{FromRawFd, OwnedFd},
    os::unix::{fs::FileTypeExt, net::UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::FutureExt;
use raddle_broker_connect::connect;
use raddle_companion::{Companion, OpenBroker, OpenedBroker, Options};
use tokio::net::UnixListener;

use crate::{
    args::Global,
    error::{Failure, OrFail, Outcome},
    interrupt::Interrupts,
    project::Project,
};

pub(super) async fn companion(
    global: &Global,
    fd: Option<i32>,
    listen: Option<PathBuf>,
) -> Outcome {
    let companion = Companion::new(Options {
        version: env!("CARGO_PKG_VERSION"),
        open: opener(global.queue_url.clone()),
    });
    let Some(path) = listen else {
        let socket = inherited_socket(fd.unwrap_or_default())?;
        companion
            .serve_program(socket)
            .await
            .or_raddle_at("the program's socket")?;
        return Ok(0);
    };
    let mut interrupts = Interrupts::install()?;
    let listener = bind(&path)?;
    tokio::select! {
        served = companion.serve_listener(listener) => served.or_raddle_at(path.display())?,
        () = interrupts.next() => {}
    }
    let _ = fs::remove_file(&path);
    Ok(0)
}

/// Opens brokers for the program: at the URL that it names, at that of this process, or that of its
/// directory.
fn opener(default_url: Option<String>) -> OpenBroker {
    Arc::new(move |url, directory| {
        let url = url.or_else(|| default_url.clone());
        async move {
            let project = Project::find(url.as_deref(), &directory).map_err(explain)?;
            let broker = connect(&project.url).await?;
            Ok(OpenedBroker {
                broker,
                url: project.url.to_string(),
            })
        }
        .boxed()
    })
}

fn explain(failure: Failure) -> raddle_companion::Failure {
    raddle_companion::Failure::invalid(failure)
}

/// The socket that the program has left open for this process.
fn inherited_socket(fd: i32) -> Outcome<OwnedFd> {
    let is_socket = fs::metadata(format!("/proc/self/fd/{fd}"))
        .is_ok_and(|found| found.file_type().is_socket());
    if fd < 3 || !is_socket {
        return Err(Failure::Usage(format!(
            "descriptor {fd} is no socket: the Python package starts this command"
        )));
    }
    // SAFETY: the descriptor is open and nothing else in this process knows it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // Workers of pools must not inherit it.
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)
        .or_raddle_at("the program's socket")?;
    Ok(socket)
}

/// Listens at a path, which only this user can connect to. Replaces a dead socket.
fn bind(path: &Path) -> Outcome<UnixListener> {
    let found = fs::symlink_metadata(path);
    if found.is_ok_and(|found| found.file_type().is_socket())
        && UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        let _ = fs::remove_file(path);
    }
    let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(umask);
    bound.or_usage_at(format_args!("cannot serve at {}", path.display()))
}
