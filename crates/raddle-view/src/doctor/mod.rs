//! Checks of a project, its broker and this machine, each with its fix.

#[cfg(feature = "docker")]
mod docker;
mod finding;
mod service_files;

use std::path::{Path, PathBuf};

use raddle_broker::{Broker, EngineHealth};
use raddle_broker_connect::{BrokerUrl, connect};
use raddle_client::text::count;
use raddle_groups as group;
use raddle_model::WorkerEntry;
use raddle_runner::{RunnerOptions, probe};
use serde::Serialize;

pub use self::finding::Finding;
use crate::Result;

/// The subject of the checks.
#[derive(Clone, Debug)]
pub struct DoctorOptions<'a> {
    /// The broker.
    pub url: &'a BrokerUrl,
    /// How the broker was found.
    pub url_source: String,
    /// The database, if the broker is one and does not exist.
    pub missing_database: Option<MissingDatabase<'a>>,
    /// The file with the groups, if there is one.
    pub group_file: Option<PathBuf>,
}

/// A database that does not exist.
#[derive(Clone, Debug)]
pub struct MissingDatabase<'a> {
    /// Its path.
    pub path: &'a Path,
    /// How to create it.
    pub fix: String,
}

/// The results of all checks.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// Whether no work may be lost.
    pub ok: bool,
    /// The engine of the broker, if it can be opened.
    pub engine: Option<String>,
    /// The URL of the broker.
    pub location: String,
    /// The guarantee of the engine for a power cut.
    pub durability: Option<String>,
    /// The results.
    pub checks: Vec<Finding>,
}

/// Runs all checks.
pub async fn diagnose(options: DoctorOptions<'_>) -> Result<Diagnosis> {
    let url = options.url;
    let detail = format!("{url} ({})", options.url_source);
    let mut checks = vec![Finding::fine("project", "location", detail)];
    let mut workers = Vec::new();
    let health = match &options.missing_database {
        Some(missing) => {
            checks.push(check_missing_database(missing));
            None
        }
        None => check_broker(url, &mut checks, &mut workers).await?,
    };
    if let Some(path) = &options.group_file {
        checks.extend(service_files::check_beside(path, &workers));
    }
    checks.extend(service_files::check_system_units());
    checks.extend(
        probe::all()
            .into_iter()
            .map(|probe| Finding::from_probe("limits", probe)),
    );
    let sandbox = probe::sandbox(&RunnerOptions::default()).await;
    checks.push(Finding::from_probe("isolation", sandbox));
    #[cfg(feature = "docker")]
    checks.extend([
        docker::check_engine().await,
        docker::check_task_image().await,
    ]);
    let (engine, durability) = health
        .map(|health| (health.engine, health.durability))
        .unzip();
    Ok(Diagnosis {
        ok: checks.iter().all(Finding::is_sound),
        engine,
        location: url.to_string(),
        durability,
        checks,
    })
}

/// The finding for a database that does not exist: wrong only if it could not be created.
fn check_missing_database(MissingDatabase { path, fix }: &MissingDatabase<'_>) -> Finding {
    let directory = path.parent().unwrap_or(path);
    // The directory of a database is created with it, its parents are not.
    let can_be_created = [Some(directory), directory.parent()]
        .into_iter()
        .flatten()
        .any(Path::is_dir);
    let detail = format!("{} does not exist", path.display());
    match can_be_created {
        true => Finding::warning("broker", "database", detail, fix),
        false => Finding::error(
            "broker",
            "database",
            format!("{detail}, nor does its directory"),
            fix,
        ),
    }
}

/// Checks the engine and reads the registry. An engine that cannot be opened is a finding.
async fn check_broker(
    url: &BrokerUrl,
    checks: &mut Vec<Finding>,
    workers: &mut Vec<WorkerEntry>,
) -> Result<Option<EngineHealth>> {
    let open = async {
        let broker = connect(url).await?;
        let health = broker.health().await?;
        Ok::<_, raddle_broker::Error>((broker, health))
    };
    let (broker, health) = match open.await {
        Ok(opened) => opened,
        Err(error) => {
            let (name, fix) = unreachable_broker(url);
            checks.push(Finding::error("broker", name, error.to_string(), fix));
            return Ok(None);
        }
    };
    checks.extend(
        health
            .checks
            .iter()
            .cloned()
            .map(Finding::from_health_check),
    );
    *workers = broker.workers().await?;
    checks.push(check_workers(&*broker, workers).await?);
    checks.extend(check_unmanaged_group_workers(&*broker).await?);
    Ok(Some(health))
}

/// The name and the fix of the finding for a broker that cannot be opened.
fn unreachable_broker(url: &BrokerUrl) -> (&'static str, &'static str) {
    match url {
        BrokerUrl::Unix(_) => (
            "agent",
            "start the worker that serves there, with 'raddle worker start --serve PATH'",
        ),
        BrokerUrl::Sqlite(_) => (
            "database",
            "fix the error; nothing was changed. To use another broker meanwhile, give --queue-url",
        ),
        _ => (
            "database",
            "start the server or fix the error, or name another broker with --queue-url",
        ),
    }
}

/// Checks that some worker serves the waiting tasks.
async fn check_workers(broker: &dyn Broker, workers: &[WorkerEntry]) -> Result<Finding> {
    let alive = workers
        .iter()
        .filter(|worker| !worker.info.takes_calls())
        .count() as u64;
    let waiting: u64 = broker.summary().await?.ready.values().sum();
    let detail = format!("{alive} alive, {} ready to run", count(waiting, "task"));
    Ok(match alive > 0 || waiting == 0 {
        true => Finding::fine("workers", "alive", detail),
        false => Finding::warning(
            "workers",
            "alive",
            detail,
            "start one with 'raddle worker start'",
        ),
    })
}

/// Workers of groups that still receive events, and have no manager.
async fn check_unmanaged_group_workers(broker: &dyn Broker) -> Result<Vec<Finding>> {
    let views = group::list(broker).await?;
    let finding = |view: &group::GroupWorkerView| {
        let (slug, sources) = (&view.slug, view.sources.join(", "));
        let waiting = count(view.waiting, "task");
        let detail = format!(
            "no live manager runs it, and it still receives the messages of {sources}: {waiting} ready to run"
        );
        let fix = format!(
            "start its manager with 'raddle up', or delete it with 'raddle group forget {slug}'"
        );
        Finding::warning("groups", &format!("worker {slug}"), detail, fix)
    };
    Ok(views
        .iter()
        .filter(|view| view.is_unmanaged())
        .map(finding)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_broker_is_named_with_its_fix() {
        for (url, name) in [
            ("unix:/x.sock", "agent"),
            ("sqlite:/x.db", "database"),
            ("mem://", "database"),
        ] {
            let (what, fix) = unreachable_broker(&url.parse().unwrap());
            assert_eq!(what, name, "{url}");
            assert_eq!(fix.contains("--serve"), name == "agent", "{url}");
        }
    }
}
