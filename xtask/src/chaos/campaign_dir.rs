//! `CampaignDir`: a fresh directory with the programs of the campaign, and the address of the
//! broker.

use std::{
    env, fs, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::{options::Options, processes, task::MARKER};

/// Variables that would change how the started processes behave, if the caller's environment has
/// them.
const CLEARED_VARIABLES: [&str; 9] = [
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

/// The directory. Dropping it kills every process of the campaign and removes the directory, unless
/// `keep` is set.
pub(crate) struct CampaignDir {
    directory: Option<TempDir>,
    path: PathBuf,
    pub(crate) raddle: PathBuf,
    pub(crate) chaos: PathBuf,
    /// The value of `QUEUE_URL` for all processes of the campaign.
    pub(crate) url: String,
    keep: bool,
}

impl CampaignDir {
    /// Creates the directory below the build directory: `/tmp` may be in memory, where fsync costs
    /// nothing.
    ///
    /// The programs are linked into the directory, so that the path of an executable identifies the
    /// processes of this campaign.
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
        let dir = Self {
            directory: Some(directory),
            raddle: path.join("bin/raddle"),
            chaos: path.join("bin/chaos"),
            path,
            url,
            keep: options.keep,
        };
        fs::create_dir(dir.path.join("bin"))?;
        link(&raddle, &dir.raddle)?;
        link(&this, &dir.chaos)?;
        Ok(dir)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// `raddle` with these arguments: see [`CampaignDir::command_with_parent`].
    pub(crate) fn raddle(&self, args: &[&str]) -> Command {
        let mut command = self.command_with_parent(&self.raddle);
        command.args(args);
        command
    }

    /// A program that runs in this directory, in its own process group, and dies with this process.
    pub(crate) fn command_with_parent(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.chaos);
        command
            .arg("exec-with-parent")
            .arg(std::process::id().to_string())
            .arg(program);
        command
            .current_dir(&self.path)
            .process_group(0)
            .stdin(Stdio::null());
        for variable in CLEARED_VARIABLES {
            command.env_remove(variable);
        }
        command.env("QUEUE_URL", &self.url).env(MARKER, &self.path);
        command
    }
}

impl Drop for CampaignDir {
    fn drop(&mut self) {
        processes::kill_campaign(&self.path);
        if let Some(directory) = self.directory.take().filter(|_| self.keep) {
            println!("kept: {}", directory.keep().display());
        }
    }
}

/// Makes a hard link, or a copy where links are not possible.
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
