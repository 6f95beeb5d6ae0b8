//! What every command needs to know: which broker, and how to speak.

use std::{env, sync::Arc};

use raddle_broker::{Broker, Url, connect, connect_here};

use crate::{
    args::Global,
    error::{Failure, Outcome},
    output,
    project::Project,
};

/// What every command needs to know.
pub(crate) struct Context {
    /// Where the work is kept.
    pub(crate) project: Project,
    /// Whether to write JSON.
    pub(crate) json: bool,
    quiet: bool,
}

impl Context {
    pub(crate) fn new(global: &Global) -> Outcome<Self> {
        let here = env::current_dir()
            .map_err(|e| Failure::Usage(format!("cannot tell the current folder ({e}): change to one that exists")))?;
        let project = Project::find(global.queue_url.as_deref(), &here)?;
        Ok(Self { project, json: global.json, quiet: global.quiet })
    }

    /// Opens the broker, making it if it is not there.
    pub(crate) async fn broker(&self) -> Outcome<Arc<dyn Broker>> {
        Ok(connect_here(&self.project.url).await?)
    }

    /// Opens the broker for a worker, which goes on while its results are being written.
    pub(crate) async fn broker_of_worker(&self) -> Outcome<Arc<dyn Broker>> {
        Ok(connect(&self.project.url).await?)
    }

    /// Opens the broker for a command that only looks. Where there is none, an empty one answers: looking leaves no trace.
    pub(crate) async fn onlooker(&self) -> Outcome<Arc<dyn Broker>> {
        let absent = self.project.database().is_some_and(|path| matches!(path.try_exists(), Ok(false)));
        Ok(connect_here(if absent { &Url::Memory } else { &self.project.url }).await?)
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
