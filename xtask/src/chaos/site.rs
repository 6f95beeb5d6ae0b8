//! Where a campaign takes place: a fresh directory, the programs in it, and the address of the broker.

use std::{
    env, fs, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::{options::Options, procs, task::MARKER};

/// Variables that would change what is started, if the person who starts a campaign has them.
const FOREIGN: [&str; 9] = [
    "QUEUE_URL",
    "RADDLE_ATTEMPT",
    "RADDLE_LOG",
    "RADDLE_TID",
    "WARM_POOL",
    "WORKER_CAPS",
    "WORKER_CONCURRENCY",
    "WORKER_IDLE_EXIT",
    "WORKER_MAX_UPTIME",
];

/// The directory. When it is dropped, every process of the campaign is killed, and the directory is removed unless it is to be kept.
pub(crate) struct Site {
    directory: Option<TempDir>,
    path: PathBuf,
    pub(crate) raddle: PathBuf,
    pub(crate) chaos: PathBuf,
    /// What `QUEUE_URL` is for everybody.
    pub(crate) url: String,
    keep: bool,
}

impl Site {
    /// Below the build directory: `/tmp` may be in memory, where a sync costs nothing.
    ///
    /// The programs are linked into the directory, so that whoever runs them belongs to this campaign and to no other.
    pub(crate) fn new(options: &Options) -> io::Result<Self> {
        let this = env::current_exe()?;
        let base = this.with_file_name("chaos");
        fs::create_dir_all(&base)?;
        let directory = TempDir::new_in(base)?;
        let path = directory.path().canonicalize()?;
        let raddle = options
            .raddle
            .clone()
            .unwrap_or_else(|| this.with_file_name("raddle"));
        let url = format!("sqlite:{}", path.join("raddle.db").display());
        let site = Self {
            directory: Some(directory),
            raddle: path.join("bin/raddle"),
            chaos: path.join("bin/chaos"),
            path,
            url,
            keep: options.keep,
        };
        fs::create_dir(site.path.join("bin"))?;
        link(&raddle, &site.raddle)?;
        link(&this, &site.chaos)?;
        Ok(site)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// `raddle` with these arguments: see [`Site::leashed`].
    pub(crate) fn raddle(&self, args: &[&str]) -> Command {
        let mut command = self.leashed(&self.raddle);
        command.args(args);
        command
    }

    /// A program in this directory, in a process group of its own, that dies when this process does.
    pub(crate) fn leashed(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.chaos);
        command
            .arg("leash")
            .arg(std::process::id().to_string())
            .arg(program);
        command
            .current_dir(&self.path)
            .process_group(0)
            .stdin(Stdio::null());
        for variable in FOREIGN {
            command.env_remove(variable);
        }
        command.env("QUEUE_URL", &self.url).env(MARKER, &self.path);
        command
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        procs::kill_campaign(&self.path);
        if let Some(directory) = self.directory.take().filter(|_| self.keep) {
            println!("kept: {}", directory.keep().display());
        }
    }
}

/// A second name of a file, or a copy where that cannot be.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to)
        .or_else(|_| fs::copy(from, to).map(drop))
        .map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot use {}: {error}; build it first", from.display()),
            )
        })
}
