//! How workers in containers are told to be workers, and how they reach the broker.

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use raddle_broker::{Url, agent::Guests};
use raddle_fabric::{
    spawner::{
        Config,
        docker::{Class, Containers, Engine, Model, Mount},
    },
    worker,
};
use rustix::process::{getegid, geteuid};

use super::{
    one_shot::{self, TO_STDOUT},
    start::QUEUE_URL,
};
use crate::{
    args::{Global, StartArgs},
    error::{Failure, Outcome},
    project::Project,
};

/// What it takes to start workers in containers.
pub(super) struct Contained {
    engine: Engine,
    model: Model,
    /// Where the broker is served to them, unless they reach it themselves.
    pub(super) hatch: Option<Hatch>,
}

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
/// The longest name of a socket.
const LONGEST_SOCKET: usize = 107;
const FOLDER_MODE: u32 = 0o700;
/// No seccomp profile is nearly as long.
const LONGEST_PROFILE: u64 = 1 << 20;

impl Contained {
    /// For workers like these on this broker. `base` is where paths in the file count from.
    pub(super) fn plan(
        global: &Global,
        project: &Project,
        config: &Config,
        start: &StartArgs,
        base: &Path,
    ) -> Outcome<Self> {
        let refused = |error: &dyn std::fmt::Display| Failure::Usage(error.to_string());
        let engine = Engine::of_environment().map_err(|error| refused(&error))?;
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
        let labels = [("raddle.caps", config.caps.to_string()), ("raddle.queues", config.queues.join(","))];
        let model = Model {
            image: config.worker_image.clone().unwrap_or_default(),
            class,
            args: one_shot::args(global, start),
            env: [(QUEUE_URL.to_owned(), url)].into_iter().chain(one_shot::env(start, config, TO_STDOUT)).collect(),
            labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<BTreeMap<_, _>>(),
            user,
            seccomp: config.container.seccomp.as_ref().map(|path| profile(&base.join(path))).transpose()?,
            allowance: config.container.clone(),
            mounts,
        };
        Ok(Self { engine, model, hatch })
    }

    pub(super) fn launcher(self) -> Containers {
        Containers::new(self.engine, self.model)
    }
}

/// A seccomp profile, as the engine takes it.
fn profile(path: &Path) -> Outcome<String> {
    let wrong = |reason: &dyn std::fmt::Display| {
        Failure::Usage(format!("at 'spawner.container.seccomp': {}: {reason}", path.display()))
    };
    let found = fs::metadata(path).map_err(|error| wrong(&error))?;
    if !found.is_file() || found.len() > LONGEST_PROFILE {
        return Err(wrong(&"it is not a file, or too long for a seccomp profile"));
    }
    let text = fs::read_to_string(path).map_err(|error| wrong(&error))?;
    let profile: serde_json::Value = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
    match profile.get("defaultAction").and_then(|action| action.as_str()) {
        Some("SCMP_ACT_ALLOW") if profile.get("syscalls").is_none() => Err(wrong(&"it allows everything")),
        Some(_) => Ok(profile.to_string()),
        None => Err(wrong(&"it has no \"defaultAction\", and so is no seccomp profile")),
    }
}

impl Hatch {
    fn new(url: &Url, class: &Class, uid: u32) -> Self {
        let name = format!("raddle-agent-{}", class.as_str());
        let beside = match url {
            Url::Sqlite(path) => path.parent().map(Path::to_path_buf).unwrap_or_default(),
            _ => std::env::temp_dir(),
        };
        let folder = beside.join(&name);
        let fits = folder.join(SOCKET).as_os_str().len() <= LONGEST_SOCKET;
        Self { folder: if fits { folder } else { std::env::temp_dir().join(name) }, uid }
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
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let found = fs::symlink_metadata(&self.folder).map_err(|error| wrong(&error))?;
                let is_ours = [geteuid().as_raw(), self.uid].contains(&found.uid());
                if !found.is_dir() || !is_ours {
                    return Err(wrong(&"something else is there, or it is another user's: move it away"));
                }
            }
            Err(error) => return Err(wrong(&error)),
        }
        if let Some(guest) = self.guest() {
            std::os::unix::fs::lchown(&self.folder, Some(guest), None).map_err(|error| wrong(&error))?;
        }
        // The umask has a say in what it is made with.
        fs::set_permissions(&self.folder, fs::Permissions::from_mode(FOLDER_MODE)).map_err(|error| wrong(&error))
    }

    /// Removes the folder. With workers of a next spawner in it, it stays.
    pub(super) fn close(&self) {
        let _ = fs::remove_dir(&self.folder);
    }
}
