//! `raddle doctor`: what is wrong here, and how to mend it.

mod stops;

use raddle_broker::{Broker, Check, Health, Url};
use raddle_exec::{
    RunnerOptions,
    probe::{self, Probe},
};
use raddle_fabric::group;
use serde::Serialize;
use serde_json::json;

use crate::{
    args::DoctorArgs,
    context::Context,
    error::{Failure, Outcome, TASK_FAILED},
    output,
    project::Source,
};

/// Checks of the engine that, when they fail, mean that work may be lost.
const VITAL: [&str; 4] = ["integrity", "journal", "persistence", "writes to disk"];

pub(super) async fn doctor(context: &Context, args: &DoctorArgs) -> Outcome {
    let mut findings = vec![project(context)];
    let health = match context.project.database() {
        Some(path) if matches!(path.try_exists(), Ok(false)) => {
            findings.push(Finding::fine("broker", "database", "not there yet: the first task makes it".into()));
            None
        }
        _ => examine(context, &mut findings).await?,
    };
    findings.extend(stops::findings(context, args.file.as_deref())?);
    findings.extend(probe::all().into_iter().map(|probe| Finding::probed("limits", probe)));
    let sandbox = probe::sandbox(&RunnerOptions::default()).await;
    findings.push(Finding::probed("isolation", sandbox));
    #[cfg(feature = "docker")]
    findings.extend([engine().await, contained().await]);
    let sound = findings.iter().all(|finding| finding.ok || !finding.vital);
    show(context, health.as_ref(), &findings, sound)?;
    Ok(if sound { 0 } else { TASK_FAILED })
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    area: &'static str,
    name: String,
    ok: bool,
    /// Whether work may be lost while it is not as it should be.
    vital: bool,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Finding {
    fn fine(area: &'static str, name: &str, detail: String) -> Self {
        Self { area, name: name.into(), ok: true, vital: false, detail, fix: None }
    }

    fn probed(area: &'static str, probe: Probe) -> Self {
        let Probe { name, ok, detail, fix } = probe;
        Self { area, name: name.into(), ok, vital: false, detail, fix }
    }

    fn broken(name: &str, detail: String) -> Self {
        Self { area: "broker", name: name.into(), ok: false, vital: true, detail, fix: None }
    }
}

fn project(context: &Context) -> Finding {
    let by = match &context.project.source {
        Source::Asked => "as --queue-url or QUEUE_URL asks".to_owned(),
        Source::File(path) => format!("as {} asks", path.display()),
        Source::Here => "the current folder, as nothing else was asked for".to_owned(),
    };
    Finding::fine("project", "location", format!("{} ({by})", context.project.url))
}

/// Asks the engine. One that cannot be opened is a finding too, not a reason to look no further.
async fn examine(context: &Context, findings: &mut Vec<Finding>) -> Outcome<Option<Health>> {
    let asked = async {
        let broker = context.broker().await?;
        let health = broker.health().await?;
        Ok::<_, Failure>((broker, health))
    };
    let (broker, health) = match asked.await {
        Ok(found) => found,
        Err(Failure::Raddle(message) | Failure::Usage(message)) => {
            let name = if matches!(context.project.url, Url::Unix(_)) { "agent" } else { "database" };
            findings.push(Finding::broken(name, message));
            return Ok(None);
        }
        Err(other) => return Err(other),
    };
    findings.extend(health.checks.iter().map(|Check { name, ok, detail, fix }| Finding {
        area: "broker",
        name: name.clone(),
        ok: *ok,
        vital: VITAL.contains(&name.as_str()),
        detail: detail.clone(),
        fix: fix.clone(),
    }));
    findings.push(workers(&*broker).await?);
    findings.extend(forsaken(&*broker).await?);
    Ok(Some(health))
}

/// Whether somebody is there for what waits.
async fn workers(broker: &dyn Broker) -> Outcome<Finding> {
    let alive = broker.workers().await?.iter().filter(|worker| !worker.info.takes_calls()).count() as u64;
    let waiting: u64 = broker.summary().await?.ready.values().sum();
    let detail = format!("{alive} alive, {} ready to run", crate::format::count(waiting, "task"));
    let ok = alive > 0 || waiting == 0;
    let fix = (!ok).then(|| "start one with 'raddle worker start'".to_owned());
    Ok(Finding { area: "workers", name: "alive".into(), ok, vital: false, detail, fix })
}

/// Workers of groups that go on getting events, and have nobody who runs them.
async fn forsaken(broker: &dyn Broker) -> Outcome<Vec<Finding>> {
    let views = group::list(broker).await?;
    let finding = |view: &group::View| {
        let (slug, sources) = (&view.slug, view.sources.join(", "));
        let waiting = crate::format::count(view.waiting, "task");
        Finding {
            area: "groups",
            name: format!("worker {slug}"),
            ok: false,
            vital: false,
            detail: format!(
                "no manager that runs has it, and it collects what is written to {sources}: {waiting} ready to run"
            ),
            fix: Some(format!(
                "start its manager with 'raddle up', or, if there is to be none, 'raddle group forget {slug}'"
            )),
        }
    };
    Ok(views.iter().filter(|view| view.is_forsaken()).map(finding).collect())
}

/// Whether there is a Docker engine that workers can be entrusted to. That there is none is nothing to mend.
#[cfg(feature = "docker")]
async fn engine() -> Finding {
    use raddle_fabric::spawner::{Obstacle, docker::Engine};

    let named = std::env::var_os("DOCKER_HOST").is_some();
    let (area, name) = ("containers", "docker engine");
    let standing = match Engine::of_environment() {
        Ok(engine) => engine.standing().await,
        Err(error) => Err(error),
    };
    let (detail, fix) = match standing {
        Ok(standing) if standing.filters => {
            return Finding::fine(area, name, format!("version {}, with a seccomp filter", standing.version));
        }
        Ok(standing) => (
            format!("version {}, without a seccomp filter: the launcher 'docker' refuses it", standing.version),
            Some("start the engine with its filter, or name a profile in spawner.container.seccomp".to_owned()),
        ),
        Err(error) if error.obstacle == Obstacle::Unreachable && !named => {
            return Finding::fine(area, name, "none here, and none needed unless workers are to be containers".into());
        }
        Err(error) => (error.to_string(), None),
    };
    Finding { area, name: name.into(), ok: false, vital: false, detail, fix }
}

/// Whether tasks can be run in containers, as far as that is known without a worker that says of what image.
#[cfg(feature = "docker")]
async fn contained() -> Finding {
    use raddle_fabric::spawner::docker::Engine;

    let (area, name) = ("isolation", "docker");
    let image = std::env::var("WORKER_TASK_IMAGE").ok().filter(|image| !image.is_empty());
    let Some(image) = image else {
        let detail = "for workers with --task-image, or WORKER_TASK_IMAGE, which is not set here";
        return Finding::fine(area, name, detail.into());
    };
    let found = match Engine::of_environment() {
        Ok(engine) => engine.image(&image).await,
        Err(error) => Err(error),
    };
    match found {
        Ok(_) => Finding::fine(area, name, format!("tasks run in containers of '{image}', as WORKER_TASK_IMAGE says")),
        Err(error) => {
            Finding { area, name: name.into(), ok: false, vital: false, detail: error.to_string(), fix: None }
        }
    }
}

fn show(context: &Context, health: Option<&Health>, findings: &[Finding], sound: bool) -> Outcome<()> {
    let (engine, durability) = health.map(|health| (&*health.engine, &*health.durability)).unzip();
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
    for Finding { area, name, ok, vital, detail, fix } in findings {
        let mark = match (ok, vital) {
            (true, _) => "ok   ",
            (false, false) => "warn ",
            (false, true) => "WRONG",
        };
        text.push_str(&format!("{mark} {area}, {name}: {detail}\n"));
        if let Some(fix) = fix.as_ref().filter(|_| !ok) {
            text.push_str(&format!("      to mend it: {fix}\n"));
        }
    }
    output::raw(text.as_bytes())
}
