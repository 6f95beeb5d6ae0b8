//! Arguments, environment and broker access of workers in containers.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use raddle_broker_connect::BrokerUrl;
use raddle_broker_remote::ContainerClients;
use raddle_model::spec::Isolation;
use raddle_spawner::{
    Config,
    docker::{BindMount, ContainerTemplate, DockerEngine, DockerLauncher, WorkerClass},
};
use raddle_worker::worker;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    process::{Uid, getegid, geteuid},
};

use super::{
    one_shot::{self, TO_STDOUT},
    path_beside_database, seccomp,
};
use crate::{
    args::{Global, StartArgs},
    commands::start::QUEUE_URL,
    error::{Failure, OrFail, Outcome},
    project::Project,
};

/// A socket in its own directory, which is the only directory of this machine that a container
/// sees. Its name is the same for every spawner of a class, so that workers of a killed spawner
/// find the next one.
pub(super) struct ContainerSocket {
    directory: PathBuf,
    /// The user whose workers are served.
    uid: u32,
}

/// The user of the workers, if the spawner is root. No account has this id.
const UNPRIVILEGED_UID: u32 = 65532;
const ROOT: u32 = 0;
/// The directory of the socket inside a container.
const INSIDE: &str = "/run/raddle";
const SOCKET: &str = "agent.sock";
const DIRECTORY_MODE: u32 = 0o700;
const TAKEN: &str = "it is not a directory, or it belongs to another user: move it away";

/// Makes the launcher, and the socket unless workers reach the broker over the network. Paths in
/// the file are relative to `base`.
pub(super) fn container_launcher(
    global: &Global,
    project: &Project,
    config: &Config,
    start: &StartArgs,
    base: &Path,
) -> Outcome<(DockerLauncher, Option<ContainerSocket>)> {
    let engine = DockerEngine::from_env().or_usage()?;
    let class = WorkerClass::new(&project.url.to_string(), &config.caps, &config.queues);
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let user = if uid == ROOT {
        (UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    } else {
        (uid, gid)
    };
    let socket = match project.url.is_on_network() {
        false => Some(ContainerSocket::new(&project.url, &class, user.0)),
        true if config.container.networks.is_empty() => {
            let reason = "at 'spawner.container.networks': the broker is on a network, and containers have no network by \
                          default: name a network from which the broker can be reached";
            return Err(Failure::Usage(reason.into()));
        }
        true => None,
    };
    let mut mounts: Vec<BindMount> = Vec::new();
    mounts.extend(socket.iter().map(|socket| BindMount {
        from: socket.directory.clone(),
        to: INSIDE.into(),
    }));
    mounts.extend(start.handlers.iter().map(|directory| BindMount {
        from: directory.clone(),
        to: directory.clone(),
    }));
    let url = match &socket {
        Some(_) => BrokerUrl::Unix(Path::new(INSIDE).join(SOCKET)).to_string(),
        None => project
            .url
            .secret()
            .map_or_else(|| project.url.to_string(), str::to_owned),
    };
    // Every task then runs in a sandbox, so only the worker has the wider filter that creating a
    // sandbox needs.
    let has_sandbox = config.min_isolation == Isolation::Sandbox;
    let seccomp = match &config.container.seccomp {
        Some(path) => Some(seccomp::read_profile(&base.join(path))?),
        None => has_sandbox.then(seccomp::nesting_profile),
    };
    let labels = [
        ("raddle.caps", config.caps.to_string()),
        ("raddle.queues", config.queues.join(",")),
    ];
    let model = ContainerTemplate {
        image: config.worker_image.clone().unwrap_or_default(),
        class,
        args: one_shot::program_args(global, start),
        env: [(QUEUE_URL.to_owned(), url)]
            .into_iter()
            .chain(one_shot::worker_env(start, config, TO_STDOUT))
            .collect(),
        labels: labels
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect::<BTreeMap<_, _>>(),
        user,
        seccomp,
        limits: config.container.clone(),
        mounts,
        has_sandbox,
    };
    Ok((DockerLauncher::new(engine, model), socket))
}

impl ContainerSocket {
    fn new(url: &BrokerUrl, class: &WorkerClass, uid: u32) -> Self {
        Self {
            directory: path_beside_database(
                url,
                &format!("raddle-agent-{}", class.as_str()),
                SOCKET,
            ),
            uid,
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    /// The rights of clients of this socket: in a container, a client may be a task.
    pub(super) fn clients(&self, worker: &worker::Options) -> ContainerClients {
        ContainerClients::new(worker.caps.clone(), worker.queues.clone())
            .with_uid(self.client_uid())
    }

    /// The user that is served besides our own.
    fn client_uid(&self) -> Option<u32> {
        (self.uid != geteuid().as_raw()).then_some(self.uid)
    }

    /// Creates the directory, accessible only to that user. An existing directory must be ours: in
    /// `/tmp`, any user could have created it.
    pub(super) fn open(&self) -> Outcome<()> {
        let wrong = |reason: &dyn std::fmt::Display| {
            Failure::Raddle(format!(
                "cannot create the directory {} for a socket: {reason}",
                self.directory.display()
            ))
        };
        match fs::DirBuilder::new()
            .mode(DIRECTORY_MODE)
            .create(&self.directory)
        {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(wrong(&error)),
        }
        // Check and change the opened directory, because the path could be replaced meanwhile.
        // `O_NOFOLLOW`: no symbolic links.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match rustix::fs::open(&self.directory, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(wrong(&TAKEN)),
            Err(error) => return Err(wrong(&io::Error::from(error))),
        };
        let change = || -> rustix::io::Result<bool> {
            let owner = rustix::fs::fstat(&directory)?.st_uid;
            if ![geteuid().as_raw(), self.uid].contains(&owner) {
                return Ok(false);
            }
            // The umask affects the mode at creation.
            rustix::fs::fchmod(&directory, Mode::from_raw_mode(DIRECTORY_MODE))?;
            if let Some(uid) = self.client_uid() {
                rustix::fs::fchown(&directory, Some(Uid::from_raw(uid)), None)?;
            }
            Ok(true)
        };
        match change() {
            Ok(true) => Ok(()),
            Ok(false) => Err(wrong(&TAKEN)),
            Err(error) => Err(wrong(&io::Error::from(error))),
        }
    }

    /// Removes the directory, unless the next spawner uses it.
    pub(super) fn close(&self) {
        let _ = fs::remove_dir(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn creates_or_reuses_a_directory_and_refuses_anything_else() {
        let temp = tempfile::tempdir().expect("a directory");
        let socket = |name: &str| ContainerSocket {
            directory: temp.path().join(name),
            uid: geteuid().as_raw(),
        };
        let mode = |socket: &ContainerSocket| {
            fs::metadata(&socket.directory)
                .expect("the directory exists")
                .mode()
                & 0o777
        };
        let new = socket("new");
        for _ in 0..2 {
            assert!(new.open().is_ok(), "an existing directory is reused");
            assert_eq!(mode(&new), DIRECTORY_MODE);
            fs::set_permissions(&new.directory, fs::Permissions::from_mode(0o755))
                .expect("it is ours");
        }
        // A link that another user has put there must not change its target.
        for (name, target) in [
            ("link", "new"),
            ("dangling", "absent"),
            ("itself", "itself"),
        ] {
            symlink(target, temp.path().join(name)).expect("a link");
            assert!(socket(name).open().is_err(), "{name}");
        }
        assert_eq!(mode(&new), 0o755);
        assert!(!temp.path().join("absent").exists());
        fs::write(temp.path().join("file"), "").expect("a file");
        assert!(socket("file").open().is_err());
    }

    #[test]
    fn refuses_a_directory_of_another_user() {
        if !geteuid().is_root() {
            return;
        }
        let temp = tempfile::tempdir().expect("a directory");
        let socket = ContainerSocket {
            directory: temp.path().join("theirs"),
            uid: UNPRIVILEGED_UID,
        };
        fs::create_dir(&socket.directory).expect("a directory");
        std::os::unix::fs::chown(&socket.directory, Some(12345), None).expect("root may");
        assert!(socket.open().is_err());
        std::os::unix::fs::chown(&socket.directory, Some(ROOT), None).expect("root may");
        assert!(socket.open().is_ok());
        assert_eq!(
            fs::metadata(&socket.directory)
                .expect("the directory exists")
                .uid(),
            UNPRIVILEGED_UID
        );
    }
}
