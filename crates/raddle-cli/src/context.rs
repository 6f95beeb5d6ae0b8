//! State that all commands share: the broker, and the output mode.

use std::{
    env,
    path::{Path, PathBuf},
    sync::Arc,
};

use raddle_broker::Broker;
use raddle_broker_connect::{BrokerUrl, connect};
use raddle_broker_remote::Remote;
use raddle_broker_sqlite::Sqlite;

use raddle_spawner::WARM_VARIABLE;
use raddle_worker::wait_for_space;
use serde::Serialize;

use crate::{
    args::Global,
    commands::is_background,
    error::{Failure, Outcome},
    output,
    project::{self, Project, Source},
};

/// The socket at which the spawner of this worker serves the broker that `QUEUE_URL` names. Workers
/// remove variables with this prefix from the environment of tasks.
pub(crate) const AGENT: &str = "RADDLE_INTERNAL_AGENT";

/// State that all commands share.
pub(crate) struct Context {
    /// The project, which names the broker.
    pub(crate) project: Project,
    /// Whether to write JSON.
    pub(crate) json: bool,
    /// Whether to print only data and errors.
    pub(crate) quiet: bool,
    /// The socket at which the spawner of this worker serves the broker.
    agent: Option<PathBuf>,
}

impl Context {
    /// Finds the project.
    pub(crate) fn new(global: &Global) -> Outcome<Self> {
        Ok(Self::for_project(
            global,
            Project::find(global.queue_url.as_deref(), &project::current_directory()?)?,
        ))
    }

    /// Finds the project. Refuses a broker that no other process can reach.
    pub(crate) fn shared(global: &Global) -> Outcome<Self> {
        let context = Self::new(global)?;
        context.check_shared()?;
        Ok(context)
    }

    /// Makes the context of a project that was found already.
    pub(crate) fn for_project(global: &Global, project: Project) -> Self {
        let agent = env::var_os(AGENT).map(PathBuf::from);
        // The spawner reports the end of its workers.
        let quiet = global.quiet || env::var_os(WARM_VARIABLE).is_some();
        Self {
            project,
            json: global.json,
            quiet,
            agent,
        }
    }

    /// Refuses a broker that no other process can reach.
    pub(crate) fn check_shared(&self) -> Outcome<()> {
        if self.project.url == BrokerUrl::Memory {
            Err(Failure::memory_broker())
        } else {
            Ok(())
        }
    }

    /// Opens the broker, and creates it if it does not exist.
    pub(crate) async fn open_broker(&self) -> Outcome<Arc<dyn Broker>> {
        Ok(connect(&self.project.url).await?)
    }

    /// Opens the broker for a worker. Waits while the disk is too full to open it.
    pub(crate) async fn open_for_worker(&self) -> Outcome<Arc<dyn Broker>> {
        self.open_when_space(&self.project.url).await
    }

    /// Opens the broker for a service. It waits without limit for a server that cannot be reached,
    /// at the start or later. A service in the background does not wait for its first connection:
    /// the command that started it waits for its id.
    pub(crate) async fn open_for_service(&self) -> Outcome<Arc<dyn Broker>> {
        if self.project.url.has_password() {
            // Tasks may be processes of the same user, and could read the URL with its password
            // from this process.
            raddle_runner::deny_inspection();
        }
        self.open_when_space(&self.project.url.clone().patient(!is_background()))
            .await
    }

    /// Opens the broker, through the spawner if there is one. Waits while the disk is full.
    async fn open_when_space(&self, url: &BrokerUrl) -> Outcome<Arc<dyn Broker>> {
        let open = || async move {
            match &self.agent {
                Some(path) => {
                    Ok(Arc::new(Remote::connect_or(path, url.clone()).await?) as Arc<dyn Broker>)
                }
                None => connect(url).await,
            }
        };
        Ok(wait_for_space(raddle_broker::Error::is_out_of_space, open).await?)
    }

    /// Opens an existing broker. A broker that does not exist is not created: an empty answer would
    /// hide that this is the wrong directory.
    pub(crate) async fn open_existing(&self) -> Outcome<Arc<dyn Broker>> {
        match self.absent_database() {
            Some(_) => Err(Failure::Usage(format!(
                "no broker at {}: {}",
                self.project.url,
                self.missing_broker_message()
            ))),
            None => self.open_broker().await,
        }
    }

    /// The message that the database does not exist, and what to do.
    pub(crate) fn missing_broker_message(&self) -> String {
        let create = "'raddle submit' and 'raddle worker start' create it";
        match &self.project.source {
            Source::Explicit => {
                format!("the file does not exist. Check --queue-url and QUEUE_URL; {create}")
            }
            Source::File(path) => format!(
                "the file that {} names does not exist; {create}",
                path.display()
            ),
            Source::CurrentDirectory => match self.project.parent_project() {
                Some(above) => {
                    let above = above.display();
                    format!(
                        "the file does not exist, but {above} has a broker. Run 'cd {above}' first"
                    )
                }
                None => format!(
                    "the file does not exist. Change to the directory of the project, or name its broker with --queue-url; {create} here"
                ),
            },
        }
    }

    /// The path of the database, if the broker is SQLite and was never created. A deleted database
    /// leaves its WAL; opening it reports that.
    pub(crate) fn absent_database(&self) -> Option<&Path> {
        self.project
            .database()
            .filter(|path| Sqlite::is_missing(path))
    }

    /// Whether a spawner started this worker.
    pub(crate) fn is_spawned(&self) -> bool {
        self.agent.is_some()
    }

    /// Prints data: the value with `--json`, otherwise the text, which includes line ends.
    pub(crate) fn show(&self, value: &impl Serialize, text: impl FnOnce() -> String) -> Outcome {
        if self.json {
            output::print_json(value)?
        } else {
            output::print_raw(text().as_bytes())?
        }
        Ok(0)
    }

    /// Prints a message to stderr, unless `--quiet`.
    pub(crate) fn note(&self, message: impl AsRef<str>) {
        if !self.quiet {
            output::eprint(message.as_ref());
        }
    }
}
