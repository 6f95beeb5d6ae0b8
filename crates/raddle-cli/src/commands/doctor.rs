//! `raddle doctor`: checks the project and its broker, and says how to fix what is wrong.

mod finding;
mod stops;

use std::path::Path;

use raddle_broker::{Broker, EngineHealth};
use raddle_broker_connect::BrokerUrl;
use raddle_groups as group;
use raddle_model::WorkerEntry;
use raddle_runner::{RunnerOptions, probe};
use serde_json::json;

use self::finding::Finding;

use crate::{
    context::Context,
    error::{Failure, Outcome, TASK_FAILED},
    output,
    project::Source,
};

pub(super) async fn doctor(context: &Context, file: Option<&Path>) -> Outcome {
    let mut findings = vec![project(context)];
    let mut alive = Vec::new();
    let health = match context.absent_database() {
        Some(path) => {
            findings.push(absent(context, path));
            None
        }
        None => examine(context, &mut findings, &mut alive).await?,
    };
    findings.extend(stops::findings(context, file, &alive)?);
    findings.extend(
        probe::all()
            .into_iter()
            .map(|probe| Finding::probed("limits", probe)),
    );
    let sandbox = probe::sandbox(&RunnerOptions::default()).await;
    findings.push(Finding::probed("isolation", sandbox));
    #[cfg(feature = "docker")]
    findings.extend([engine().await, contained().await]);
    let sound = findings.iter().all(Finding::is_sound);
    show(context, health.as_ref(), &findings, sound)?;
    Ok(if sound { 0 } else { TASK_FAILED })
}

fn project(context: &Context) -> Finding {
    let by = match &context.project.source {
        Source::Asked => "as --queue-url or QUEUE_URL asks".to_owned(),
        Source::File(path) => format!("as {} asks", path.display()),
        Source::Here => "the current directory, as nothing else was asked for".to_owned(),
    };
    Finding::fine(
        "project",
        "location",
        format!("{} ({by})", context.project.url),
    )
}

/// The finding for a database that does not exist: wrong only if it could not be created.
fn absent(context: &Context, path: &Path) -> Finding {
    let directory = path.parent().unwrap_or(path);
    // The directory of a database is created with it, its parents are not.
    let can_be_created = [Some(directory), directory.parent()]
        .into_iter()
        .flatten()
        .any(Path::is_dir);
    let (detail, fix) = (
        format!("{} does not exist", path.display()),
        context.missing_broker_message(),
    );
    match can_be_created {
        true => Finding::warning("broker", "database", detail, fix),
        false => Finding::broken(
            "database",
            format!("{detail}, nor does its directory"),
            &fix,
        ),
    }
}

/// Checks the engine and reads the registry. An engine that cannot be opened is a finding.
async fn examine(
    context: &Context,
    findings: &mut Vec<Finding>,
    alive: &mut Vec<WorkerEntry>,
) -> Outcome<Option<EngineHealth>> {
    let asked = async {
        let broker = context.broker().await?;
        let health = broker.health().await?;
        Ok::<_, Failure>((broker, health))
    };
    let (broker, health) = match asked.await {
        Ok(found) => found,
        Err(Failure::Raddle(message) | Failure::Usage(message)) => {
            let (name, fix) = out_of_reach(&context.project.url);
            findings.push(Finding::broken(name, message, fix));
            return Ok(None);
        }
        Err(other) => return Err(other),
    };
    findings.extend(health.checks.iter().cloned().map(Finding::checked));
    *alive = broker.workers().await?;
    findings.push(workers(&*broker, alive).await?);
    findings.extend(unmanaged_workers(&*broker).await?);
    Ok(Some(health))
}

/// The name and the fix of the finding for a broker that cannot be opened.
fn out_of_reach(url: &BrokerUrl) -> (&'static str, &'static str) {
    match url {
        BrokerUrl::Unix(_) => (
            "agent",
            "start the worker that serves there, with 'raddle worker start --serve PATH'",
        ),
        BrokerUrl::Sqlite(_) => (
            "database",
            "mend what it says: nothing was changed. To work elsewhere meanwhile, give --queue-url",
        ),
        _ => (
            "database",
            "start the server or mend what it says, or name another with --queue-url",
        ),
    }
}

/// Checks that some worker serves the waiting tasks.
async fn workers(broker: &dyn Broker, alive: &[WorkerEntry]) -> Outcome<Finding> {
    let alive = alive
        .iter()
        .filter(|worker| !worker.info.takes_calls())
        .count() as u64;
    let waiting: u64 = broker.summary().await?.ready.values().sum();
    let detail = format!(
        "{alive} alive, {} ready to run",
        crate::format::count(waiting, "task")
    );
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
async fn unmanaged_workers(broker: &dyn Broker) -> Outcome<Vec<Finding>> {
    let views = group::list(broker).await?;
    let finding = |view: &group::GroupWorkerView| {
        let (slug, sources) = (&view.slug, view.sources.join(", "));
        let waiting = crate::format::count(view.waiting, "task");
        let detail = format!(
            "no manager that runs has it, and it collects what is written to {sources}: {waiting} ready to run"
        );
        let fix = format!(
            "start its manager with 'raddle up', or, if there is to be none, 'raddle group forget {slug}'"
        );
        Finding::warning("groups", &format!("worker {slug}"), detail, fix)
    };
    Ok(views
        .iter()
        .filter(|view| view.is_forsaken())
        .map(finding)
        .collect())
}

/// Checks the Docker engine. A machine without one is not a fault.
#[cfg(feature = "docker")]
async fn engine() -> Finding {
    use raddle_spawner::{LaunchFailure, docker::DockerEngine};

    let named = std::env::var_os("DOCKER_HOST").is_some_and(|host| !host.is_empty());
    let (area, name) = ("containers", "docker engine");
    match async { DockerEngine::of_environment()?.standing().await }.await {
        Ok(standing) if standing.filters => Finding::fine(
            area,
            name,
            format!("version {}, with a seccomp filter", standing.version),
        ),
        Ok(standing) => Finding::warning(
            area,
            name,
            format!(
                "version {}, without a seccomp filter: the launcher 'docker' refuses it",
                standing.version
            ),
            "start the engine with its filter, or name a profile in spawner.container.seccomp",
        ),
        Err(error) if error.obstacle == LaunchFailure::Unreachable && !named => Finding::fine(
            area,
            name,
            "none here, and none needed unless workers are to be containers".into(),
        ),
        Err(error) => Finding::warning(area, name, error.to_string(), remedy(error.obstacle, None)),
    }
}

/// Checks whether tasks can run in containers, as far as that is known without a worker's image.
#[cfg(feature = "docker")]
async fn contained() -> Finding {
    use raddle_spawner::docker::DockerEngine;

    let (area, name) = ("isolation", "docker");
    let image = std::env::var("WORKER_TASK_IMAGE")
        .ok()
        .filter(|image| !image.is_empty());
    let Some(image) = image else {
        let detail = "for workers with --task-image, or WORKER_TASK_IMAGE, which is not set here";
        return Finding::fine(area, name, detail.into());
    };
    match async { DockerEngine::of_environment()?.image(&image).await }.await {
        Ok(_) => Finding::fine(
            area,
            name,
            format!("tasks run in containers of '{image}', as WORKER_TASK_IMAGE says"),
        ),
        Err(error) => Finding::warning(
            area,
            name,
            error.to_string(),
            remedy(error.obstacle, Some(&image)),
        ),
    }
}

/// The fix for an engine or image that does not work.
#[cfg(feature = "docker")]
fn remedy(obstacle: raddle_spawner::LaunchFailure, image: Option<&str>) -> String {
    use raddle_spawner::LaunchFailure;

    match (obstacle, image) {
        (LaunchFailure::Image, Some(image)) => {
            format!(
                "'docker pull {image}', if a registry has it, or name another in WORKER_TASK_IMAGE"
            )
        }
        (LaunchFailure::Unreachable, _) => {
            "start the engine, or name another with DOCKER_HOST=unix://PATH".into()
        }
        (LaunchFailure::Denied, _) => {
            "put this user into the group 'docker', and log in anew".into()
        }
        (LaunchFailure::DiskFull, _) => {
            "make room on the engine's disk: 'docker system df' shows what takes it".into()
        }
        (LaunchFailure::Starved, _) => {
            "raise what this user may have, with 'ulimit -n' and 'ulimit -u'".into()
        }
        _ => "look at the engine's log, for example with 'journalctl -u docker'".into(),
    }
}

fn show(
    context: &Context,
    health: Option<&EngineHealth>,
    findings: &[Finding],
    sound: bool,
) -> Outcome<()> {
    let (engine, durability) = health
        .map(|health| (&*health.engine, &*health.durability))
        .unzip();
    if context.json {
        let location = context.project.url.to_string();
        return output::json(&json!({
            "ok": sound, "engine": engine, "location": location, "durability": durability, "checks": findings,
        }));
    }
    let mut text = String::new();
    for (label, value) in [("engine", engine), ("durability", durability)] {
        if let Some(value) = value {
            text.push_str(&format!("      {label}: {value}\n"));
        }
    }
    text.extend(findings.iter().map(Finding::text));
    output::raw(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_asked_is_named_with_what_to_do() {
        for (url, name) in [
            ("unix:/x.sock", "agent"),
            ("sqlite:/x.db", "database"),
            ("mem://", "database"),
        ] {
            let (what, fix) = out_of_reach(&url.parse().unwrap());
            assert_eq!(what, name, "{url}");
            assert_eq!(fix.contains("--serve"), name == "agent", "{url}");
        }
    }

    #[cfg(feature = "docker")]
    #[test]
    fn an_image_that_is_missing_is_named_and_an_engine_is_not_blamed_for_it() {
        use raddle_spawner::LaunchFailure;

        assert!(
            remedy(LaunchFailure::Unreachable, Some("some/image:1"))
                .starts_with("start the engine")
        );
        assert!(
            remedy(LaunchFailure::Image, Some("some/image:1")).contains("docker pull some/image:1")
        );
    }
}
