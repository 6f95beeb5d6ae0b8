//! What every command needs to know: which broker, and how to speak.

use std::{
    env,
    path::{Path, PathBuf},
    sync::Arc,
};

use raddle_broker::{Broker, Url, agent::Remote, connect, sqlite::Sqlite};

use raddle_fabric::{spawner::WARM_VARIABLE, wait_for_space};
use serde::Serialize;

use crate::{
    args::Global,
    commands::is_background,
    error::{Failure, Outcome},
    output,
    project::{self, Project, Source},
};

/// Where the spawner of this worker serves the broker that `QUEUE_URL` names. Commands never see variables that begin like this.
pub(crate) const AGENT: &str = "RADDLE_INTERNAL_AGENT";

/// What every command needs to know.
pub(crate) struct Context {
    /// Where the work is kept.
    pub(crate) project: Project,
    /// Whether to write JSON.
    pub(crate) json: bool,
    /// Whether to say nothing but data and errors.
    pub(crate) quiet: bool,
    /// Where the spawner of this worker serves the broker.
    agent: Option<PathBuf>,
}

impl Context {
    pub(crate) fn new(global: &Global) -> Outcome<Self> {
        Ok(Self::of(global, Project::find(global.queue_url.as_deref(), &project::here()?)?))
    }

    /// Refuses a broker that no other process can reach.
    pub(crate) fn shared(global: &Global) -> Outcome<Self> {
        let context = Self::new(global)?;
        context.check_shared()?;
        Ok(context)
    }

    /// For a project that was found already.
    pub(crate) fn of(global: &Global, project: Project) -> Self {
        let agent = env::var_os(AGENT).map(PathBuf::from);
        // That a worker of a spawner has run its task and left is no news.
        let quiet = global.quiet || env::var_os(WARM_VARIABLE).is_some();
        Self { project, json: global.json, quiet, agent }
    }

    /// Refuses a broker that no other process can reach.
    pub(crate) fn check_shared(&self) -> Outcome<()> {
        if self.project.url == Url::Memory { Err(Failure::memory()) } else { Ok(()) }
    }

    /// Opens the broker, making it if it is not there.
    pub(crate) async fn broker(&self) -> Outcome<Arc<dyn Broker>> {
        Ok(connect(&self.project.url).await?)
    }

    /// Opens the broker for a worker, which goes on while its results are being written. Waits while there is no space to open it.
    pub(crate) async fn broker_of_worker(&self) -> Outcome<Arc<dyn Broker>> {
        self.open_for_work(&self.project.url).await
    }

    /// Opens the broker for a service that stays: it waits for a server that is not there yet, or is away later, for as long as it takes. A service in
    /// the background does not wait for the first connection: the command that has started it waits for its id.
    pub(crate) async fn broker_of_service(&self) -> Outcome<Arc<dyn Broker>> {
        if self.project.url.has_password() {
            // Tasks may be processes of the same user.
            raddle_exec::deny_inspection();
        }
        self.open_for_work(&self.project.url.clone().patient(!is_background())).await
    }

    async fn open_for_work(&self, url: &Url) -> Outcome<Arc<dyn Broker>> {
        let open = || async move {
            match &self.agent {
                Some(path) => Ok(Arc::new(Remote::connect_or(path, url.clone()).await?) as Arc<dyn Broker>),
                None => connect(url).await,
            }
        };
        Ok(wait_for_space(raddle_broker::Error::is_out_of_space, open).await?)
    }

    /// Opens the broker for a command that adds nothing to it. One that does not exist is an error and is not created: an empty answer would hide that
    /// this is the wrong place.
    pub(crate) async fn onlooker(&self) -> Outcome<Arc<dyn Broker>> {
        match self.absent_database() {
            Some(_) => Err(Failure::Usage(format!("no broker at {}: {}", self.project.url, self.absence()))),
            None => self.broker().await,
        }
    }

    /// Why there is no broker, and what to do: for a database that does not exist.
    pub(crate) fn absence(&self) -> String {
        let create = "'raddle submit' and 'raddle worker start' create it";
        match &self.project.source {
            Source::Asked => format!("the file does not exist. Check --queue-url and QUEUE_URL; {create}"),
            Source::File(path) => format!("the file that {} names does not exist; {create}", path.display()),
            Source::Here => match self.project.enclosing() {
                Some(above) => {
                    let above = above.display();
                    format!("the file does not exist, but {above} has a broker. Run 'cd {above}' first")
                }
                None => format!(
                    "the file does not exist. Change to the directory of the project, or name its broker with --queue-url; {create} here"
                ),
            },
        }
    }

    /// The database, where it is one and nobody has made it yet. One that was deleted has left its log, and is missed by whoever opens it.
    pub(crate) fn absent_database(&self) -> Option<&Path> {
        self.project.database().filter(|path| Sqlite::is_unmade(path))
    }

    /// Whether this is a worker of a spawner.
    pub(crate) fn is_warm(&self) -> bool {
        self.agent.is_some()
    }

    /// Prints data: the value with `--json`, else the text, which has its line ends.
    pub(crate) fn show(&self, value: &impl Serialize, text: impl FnOnce() -> String) -> Outcome {
        if self.json {
            output::json(value)?
        } else {
            output::raw(text().as_bytes())?
        }
        Ok(0)
    }

    /// Tells the user something that is not data, unless told to be quiet.
    pub(crate) fn note(&self, message: impl AsRef<str>) {
        if !self.quiet {
            output::complain(message.as_ref());
        }
    }
}
