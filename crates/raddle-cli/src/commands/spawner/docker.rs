//! How workers in containers are told to be workers, and how they reach the broker.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use raddle_broker::{Url, agent::Guests};
use raddle_core::spec::Isolation;
use raddle_fabric::{
    spawner::{
        Config,
        docker::{Class, Containers, Engine, Model, Mount},
    },
    worker,
};
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

/// A socket with a folder of its own, which is all that a container sees of this machine. Its name is the same for every spawner of a class, so
/// that workers of one that was killed find the next.
pub(super) struct Hatch {
    folder: PathBuf,
    /// The user whose workers are served.
    uid: u32,
}

/// Whom workers are run by where the spawner is root: nobody else.
const NOBODY: u32 = 65532;
const ROOT: u32 = 0;
/// Where a container sees the socket.
const INSIDE: &str = "/run/raddle";
const SOCKET: &str = "agent.sock";
const FOLDER_MODE: u32 = 0o700;
const TAKEN: &str = "something else is there, or it is another user's: move it away";

/// Containers for workers like these on this broker, and where it is served to them, unless they reach it themselves. `base` is where paths in the file
/// count from.
pub(super) fn containers(
    global: &Global,
    project: &Project,
    config: &Config,
    start: &StartArgs,
    base: &Path,
) -> Outcome<(Containers, Option<Hatch>)> {
    let engine = Engine::of_environment().or_usage()?;
    let class = Class::new(&project.url.to_string(), &config.caps, &config.queues);
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let user = if uid == ROOT { (NOBODY, NOBODY) } else { (uid, gid) };
    let hatch = match project.url.is_on_network() {
        false => Some(Hatch::new(&project.url, &class, user.0)),
        true if config.container.networks.is_empty() => {
            let reason = "at 'spawner.container.networks': the broker is on a network, and containers have none unless \
                          it is named: name one from which the broker can be reached";
            return Err(Failure::Usage(reason.into()));
        }
        true => None,
    };
    let mut mounts: Vec<Mount> = Vec::new();
    mounts.extend(hatch.iter().map(|hatch| Mount { from: hatch.folder.clone(), to: INSIDE.into() }));
    mounts.extend(start.handlers.iter().map(|folder| Mount { from: folder.clone(), to: folder.clone() }));
    let url = match &hatch {
        Some(_) => Url::Unix(Path::new(INSIDE).join(SOCKET)).to_string(),
        None => project.url.secret().map_or_else(|| project.url.to_string(), str::to_owned),
    };
    // Then every task is in a sandbox, and only the worker is under the wider filter that making one needs.
    let nests = config.min_isolation == Isolation::Sandbox;
    let seccomp = match &config.container.seccomp {
        Some(path) => Some(seccomp::profile(&base.join(path))?),
        None => nests.then(seccomp::nesting_profile),
    };
    let labels = [("raddle.caps", config.caps.to_string()), ("raddle.queues", config.queues.join(","))];
    let model = Model {
        image: config.worker_image.clone().unwrap_or_default(),
        class,
        args: one_shot::args(global, start),
        env: [(QUEUE_URL.to_owned(), url)].into_iter().chain(one_shot::env(start, config, TO_STDOUT)).collect(),
        labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<BTreeMap<_, _>>(),
        user,
        seccomp,
        allowance: config.container.clone(),
        mounts,
        nests,
    };
    Ok((Containers::new(engine, model), hatch))
}

impl Hatch {
    fn new(url: &Url, class: &Class, uid: u32) -> Self {
        Self { folder: beside(url, &format!("raddle-agent-{}", class.as_str()), SOCKET), uid }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join(SOCKET)
    }

    /// What those may ask for who come there. In a container, that may be a task.
    pub(super) fn guests(&self, worker: &worker::Options) -> Guests {
        Guests::new(worker.caps.clone(), worker.queues.clone()).of_user(self.guest())
    }

    /// The user who is served besides our own.
    fn guest(&self) -> Option<u32> {
        (self.uid != geteuid().as_raw()).then_some(self.uid)
    }

    /// Makes the folder, for that user alone. One that is there must be ours: in a folder that everybody can write to, anybody could have
    /// made it.
    pub(super) fn open(&self) -> Outcome<()> {
        let wrong = |reason: &dyn std::fmt::Display| {
            Failure::Raddle(format!("no folder for a socket can be made at {}: {reason}", self.folder.display()))
        };
        match fs::DirBuilder::new().mode(FOLDER_MODE).create(&self.folder) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(wrong(&error)),
        }
        // Once it is open, it is the same that is looked at and changed, whatever is put in its place meanwhile. A link is not followed.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match rustix::fs::open(&self.folder, flags, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(wrong(&TAKEN)),
            Err(error) => return Err(wrong(&io::Error::from(error))),
        };
        let change = || -> rustix::io::Result<bool> {
            let owner = rustix::fs::fstat(&folder)?.st_uid;
            if ![geteuid().as_raw(), self.uid].contains(&owner) {
                return Ok(false);
            }
            // The umask has had a say in what it was made with.
            rustix::fs::fchmod(&folder, Mode::from_raw_mode(FOLDER_MODE))?;
            if let Some(guest) = self.guest() {
                rustix::fs::fchown(&folder, Some(Uid::from_raw(guest)), None)?;
            }
            Ok(true)
        };
        match change() {
            Ok(true) => Ok(()),
            Ok(false) => Err(wrong(&TAKEN)),
            Err(error) => Err(wrong(&io::Error::from(error))),
        }
    }

    /// Removes the folder. With workers of a next spawner in it, it stays.
    pub(super) fn close(&self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_folder_is_made_or_taken_and_nothing_else_is() {
        let world = tempfile::tempdir().expect("a folder");
        let hatch = |name: &str| Hatch { folder: world.path().join(name), uid: geteuid().as_raw() };
        let mode = |hatch: &Hatch| fs::metadata(&hatch.folder).expect("it is there").mode() & 0o777;
        let new = hatch("new");
        for _ in 0..2 {
            assert!(new.open().is_ok(), "one that is there is taken");
            assert_eq!(mode(&new), FOLDER_MODE);
            fs::set_permissions(&new.folder, fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
        // Where somebody else has put a link to a folder of ours, that stays as it is.
        for (name, target) in [("link", "new"), ("dangling", "absent"), ("itself", "itself")] {
            symlink(target, world.path().join(name)).expect("a link");
            assert!(hatch(name).open().is_err(), "{name}");
        }
        assert_eq!(mode(&new), 0o755);
        assert!(!world.path().join("absent").exists());
        fs::write(world.path().join("file"), "").expect("a file");
        assert!(hatch("file").open().is_err());
    }

    #[test]
    fn a_folder_of_another_user_is_left_alone() {
        if !geteuid().is_root() {
            return;
        }
        let world = tempfile::tempdir().expect("a folder");
        let hatch = Hatch { folder: world.path().join("theirs"), uid: NOBODY };
        fs::create_dir(&hatch.folder).expect("a folder");
        std::os::unix::fs::chown(&hatch.folder, Some(12345), None).expect("root may");
        assert!(hatch.open().is_err());
        std::os::unix::fs::chown(&hatch.folder, Some(ROOT), None).expect("root may");
        assert!(hatch.open().is_ok());
        assert_eq!(fs::metadata(&hatch.folder).expect("it is there").uid(), NOBODY);
    }
}
