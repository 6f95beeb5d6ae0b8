//! What every command needs to know: which broker, and how to speak.

use std::{
    env,
    path::{Path, PathBuf},
    sync::Arc,
};

use raddle_broker::{Broker, Url, agent::Remote, connect, sqlite::Sqlite};

use raddle_fabric::spawner::WARM_VARIABLE;

use crate::{
    args::Global,
    error::{Failure, Outcome},
    output,
    project::Project,
};

/// Where the spawner of this worker serves the broker that `QUEUE_URL` names. Commands never see variables that begin like this.
pub(crate) const AGENT: &str = "RADDLE_INTERNAL_AGENT";

/// What every command needs to know.
pub(crate) struct Context {
    /// Where the work is kept.
    pub(crate) project: Project,
    /// Whether to write JSON.
    pub(crate) json: bool,
    quiet: bool,
    /// Where the spawner of this worker serves the broker.
    agent: Option<PathBuf>,
}

impl Context {
    pub(crate) fn new(global: &Global) -> Outcome<Self> {
        let here = env::current_dir()
            .map_err(|e| Failure::Usage(format!("cannot tell the current folder ({e}): change to one that exists")))?;
        Ok(Self::of(global, Project::find(global.queue_url.as_deref(), &here)?))
    }

    /// For a project that was found already.
    pub(crate) fn of(global: &Global, project: Project) -> Self {
        let agent = env::var_os(AGENT).map(PathBuf::from);
        // That a worker of a spawner has run its task and left is no news.
        let quiet = global.quiet || env::var_os(WARM_VARIABLE).is_some();
        Self { project, json: global.json, quiet, agent }
    }

    /// Opens the broker, making it if it is not there.
    pub(crate) async fn broker(&self) -> Outcome<Arc<dyn Broker>> {
        Ok(connect(&self.project.url).await?)
    }

    /// Opens the broker for a worker, which goes on while its results are being written.
    pub(crate) async fn broker_of_worker(&self) -> Outcome<Arc<dyn Broker>> {
        let url = &self.project.url;
        match &self.agent {
            Some(path) => Ok(Arc::new(Remote::connect_or(path, url.clone()).await?)),
            None => Ok(connect(url).await?),
        }
    }

    /// Opens the broker for a command that only looks. Where there is none, an empty one answers: looking leaves no trace.
    pub(crate) async fn onlooker(&self) -> Outcome<Arc<dyn Broker>> {
        let absent = self.absent_database().is_some();
        Ok(connect(if absent { &Url::Memory } else { &self.project.url }).await?)
    }

    /// Opens the broker for a command that only looks, again and again. An empty one would never have anything to show.
    pub(crate) async fn watcher(&self) -> Outcome<Arc<dyn Broker>> {
        if let Some(path) = self.absent_database() {
            let makes = "'raddle submit' or 'raddle worker start' makes it";
            return Err(Failure::Usage(format!("no project to watch, {} is not there: {makes}", path.display())));
        }
        self.broker().await
    }

    /// The database, where it is one and nobody has made it yet. One that was deleted has left its log, and is missed by whoever opens it.
    pub(crate) fn absent_database(&self) -> Option<&Path> {
        self.project.database().filter(|path| Sqlite::is_unmade(path))
    }

    /// Whether this is a worker of a spawner.
    pub(crate) fn is_warm(&self) -> bool {
        self.agent.is_some()
    }

    /// Whether to say nothing but data and errors.
    pub(crate) fn quiet(&self) -> bool {
        self.quiet
    }

    /// Tells the user something that is not data, unless told to be quiet.
    pub(crate) fn note(&self, message: impl AsRef<str>) {
        if !self.quiet {
            output::complain(message.as_ref());
        }
    }
}
