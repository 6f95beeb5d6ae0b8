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
    beside,
    one_shot::{self, TO_STDOUT},
    seccomp,
};
use crate::{
    args::{Global, StartArgs},
    commands::start::QUEUE_URL,
    error::{Failure, OrFail, Outcome},
    project::Project,
};

/// A socket in a directory of its own, the only part of this machine that a container sees. Its
/// name is the same for every spawner of a class, so that workers of a killed spawner find the next
/// one.
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
const TAKEN: &str = "something else is there, or it is another user's: move it away";

/// Makes the launcher, and the socket unless workers reach the broker themselves. Paths in the file
/// are relative to `base`.
pub(super) fn containers(
    global: &Global,
    project: &Project,
    config: &Config,
    start: &StartArgs,
    base: &Path,
) -> Outcome<(DockerLauncher, Option<ContainerSocket>)> {
    let engine = DockerEngine::of_environment().or_usage()?;
    let class = WorkerClass::new(&project.url.to_string(), &config.caps, &config.queues);
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let user = if uid == ROOT {
        (UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    } else {
        (uid, gid)
    };
    let hatch = match project.url.is_on_network() {
        false => Some(ContainerSocket::new(&project.url, &class, user.0)),
        true if config.container.networks.is_empty() => {
            let reason = "at 'spawner.container.networks': the broker is on a network, and containers have none unless \
                          it is named: name one from which the broker can be reached";
            return Err(Failure::Usage(reason.into()));
        }
        true => None,
    };
    let mut mounts: Vec<BindMount> = Vec::new();
    mounts.extend(hatch.iter().map(|hatch| BindMount {
        from: hatch.directory.clone(),
        to: INSIDE.into(),
    }));
    mounts.extend(start.handlers.iter().map(|directory| BindMount {
        from: directory.clone(),
        to: directory.clone(),
    }));
    let url = match &hatch {
        Some(_) => BrokerUrl::Unix(Path::new(INSIDE).join(SOCKET)).to_string(),
        None => project
            .url
            .secret()
            .map_or_else(|| project.url.to_string(), str::to_owned),
    };
    // Every task then runs in a sandbox, and only the worker has the wider filter that making one
    // needs.
    let nests = config.min_isolation == Isolation::Sandbox;
    let seccomp = match &config.container.seccomp {
        Some(path) => Some(seccomp::profile(&base.join(path))?),
        None => nests.then(seccomp::nesting_profile),
    };
    let labels = [
        ("raddle.caps", config.caps.to_string()),
        ("raddle.queues", config.queues.join(",")),
    ];
    let model = ContainerTemplate {
        image: config.worker_image.clone().unwrap_or_default(),
        class,
        args: one_shot::args(global, start),
        env: [(QUEUE_URL.to_owned(), url)]
            .into_iter()
            .chain(one_shot::env(start, config, TO_STDOUT))
            .collect(),
        labels: labels
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect::<BTreeMap<_, _>>(),
        user,
        seccomp,
        allowance: config.container.clone(),
        mounts,
        nests,
    };
    Ok((DockerLauncher::new(engine, model), hatch))
}

impl ContainerSocket {
    fn new(url: &BrokerUrl, class: &WorkerClass, uid: u32) -> Self {
        Self {
            directory: beside(url, &format!("raddle-agent-{}", class.as_str()), SOCKET),
            uid,
        }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    /// The calls that clients at this socket may make: in a container, a client may be a task.
    pub(super) fn guests(&self, worker: &worker::Options) -> ContainerClients {
        ContainerClients::new(worker.caps.clone(), worker.queues.clone()).with_uid(self.guest())
    }

    /// The user that is served besides our own.
    fn guest(&self) -> Option<u32> {
        (self.uid != geteuid().as_raw()).then_some(self.uid)
    }

    /// Creates the directory, for that user alone. An existing one must be ours: in a directory
    /// that every user can write to, any of them could have made it.
    pub(super) fn open(&self) -> Outcome<()> {
        let wrong = |reason: &dyn std::fmt::Display| {
            Failure::Raddle(format!(
                "no directory for a socket can be made at {}: {reason}",
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
        // Check and change the opened directory, whatever is put in its place meanwhile.
        // `O_NOFOLLOW`: no links.
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
            if let Some(guest) = self.guest() {
                rustix::fs::fchown(&directory, Some(Uid::from_raw(guest)), None)?;
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
    fn a_directory_is_made_or_taken_and_nothing_else_is() {
        let world = tempfile::tempdir().expect("a directory");
        let hatch = |name: &str| ContainerSocket {
            directory: world.path().join(name),
            uid: geteuid().as_raw(),
        };
        let mode = |hatch: &ContainerSocket| {
            fs::metadata(&hatch.directory).expect("it is there").mode() & 0o777
        };
        let new = hatch("new");
        for _ in 0..2 {
            assert!(new.open().is_ok(), "one that is there is taken");
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
            symlink(target, world.path().join(name)).expect("a link");
            assert!(hatch(name).open().is_err(), "{name}");
        }
        assert_eq!(mode(&new), 0o755);
        assert!(!world.path().join("absent").exists());
        fs::write(world.path().join("file"), "").expect("a file");
        assert!(hatch("file").open().is_err());
    }

    #[test]
    fn a_directory_of_another_user_is_left_alone() {
        if !geteuid().is_root() {
            return;
        }
        let world = tempfile::tempdir().expect("a directory");
        let hatch = ContainerSocket {
            directory: world.path().join("theirs"),
            uid: UNPRIVILEGED_UID,
        };
        fs::create_dir(&hatch.directory).expect("a directory");
        std::os::unix::fs::chown(&hatch.directory, Some(12345), None).expect("root may");
        assert!(hatch.open().is_err());
        std::os::unix::fs::chown(&hatch.directory, Some(ROOT), None).expect("root may");
        assert!(hatch.open().is_ok());
        assert_eq!(
            fs::metadata(&hatch.directory).expect("it is there").uid(),
            UNPRIVILEGED_UID
        );
    }
}
