//! Arguments, environment and broker access of workers in pods.

use std::path::Path;

use raddle_spawner::{
    Config, ContainerLimits, Gpus, WorkerClass,
    kubernetes::{
        ClusterAccess, KubernetesLauncher, PodOverlay, PodTemplate, QueueAccess, TERMINATION_LOG,
    },
};

use super::one_shot;
use crate::{
    args::{Global, SpawnerArgs, StartArgs},
    error::{Failure, OrFail, Outcome},
    project::Project,
};

/// Makes the launcher. Paths in the file are relative to `base`.
pub(super) fn pod_launcher(
    global: &Global,
    args: &SpawnerArgs,
    project: &Project,
    config: &Config,
    start: &StartArgs,
    base: &Path,
) -> Outcome<KubernetesLauncher> {
    check_pod_settings(args, config)?;
    let queue = queue_access(project, config)?;
    let overlay = config
        .kubernetes
        .template
        .as_ref()
        .map(|path| read_overlay(&base.join(path)))
        .transpose()?;
    let model = PodTemplate {
        image: config.worker_image.clone().unwrap_or_default(),
        class: WorkerClass::new(&project.url.to_string(), &config.caps, &config.queues),
        args: one_shot::program_args(global, start),
        env: one_shot::worker_env(start, config, TERMINATION_LOG),
        queue,
        annotations: vec![
            ("raddle.caps".into(), config.caps.to_string()),
            ("raddle.queues".into(), config.queues.join(",")),
        ],
        limits: config.container.clone(),
        grace: config.kubernetes.grace.0,
        start_within: config.kubernetes.start_within.0,
        overlay: overlay.unwrap_or_default(),
    };
    let access = ClusterAccess::find(&config.kubernetes, base).map_err(Failure::Usage)?;
    Ok(KubernetesLauncher::new(access, model))
}

/// Refuses settings that only containers on this machine can have. Ignoring them could weaken the
/// isolation.
fn check_pod_settings(args: &SpawnerArgs, config: &Config) -> Outcome<()> {
    let ContainerLimits {
        gpus,
        networks,
        seccomp,
        ..
    } = &config.container;
    let wrong = if args.serve.is_some() {
        "--serve cannot be used with pods: they do not see the files of this machine"
    } else if config.handlers.is_some() {
        "--handlers cannot be used with pods: they do not see the files of this machine; put the handlers into the image, and name their \
         directory in a template"
    } else if !networks.is_empty() {
        "at 'spawner.container.networks': pods use the network of their cluster: restrict them with a NetworkPolicy"
    } else if seccomp.is_some() {
        "at 'spawner.container.seccomp': pods use a filter of their node: name it in a template"
    } else if *gpus == Some(Gpus::All) {
        "at 'spawner.container.gpus': a cluster cannot give all of them: give a number"
    } else {
        return Ok(());
    };
    Err(Failure::Usage(wrong.into()))
}

/// How a worker gets the queue URL. The spec of a pod must not contain a password: every user who
/// may read pods sees it.
fn queue_access(project: &Project, config: &Config) -> Outcome<QueueAccess> {
    if let Some(name) = config.kubernetes.queue_secret.clone() {
        return Ok(QueueAccess::Secret {
            name,
            key: config.kubernetes.queue_secret_key.clone(),
        });
    }
    if !project.url.is_on_network() {
        let reason = format!(
            "the broker {} is on this machine, and pods cannot reach it: use another, such as redis://",
            project.url
        );
        return Err(Failure::Usage(reason));
    }
    if project.url.has_password() {
        let reason = "at 'spawner.kubernetes.queue_secret': the queue URL contains a password, which must not be in a pod: put it into a \
                      Secret ('kubectl create secret generic raddle-queue --from-file=QUEUE_URL=FILE') and give its name";
        return Err(Failure::Usage(reason.into()));
    }
    Ok(QueueAccess::Open(
        project
            .url
            .secret()
            .map_or_else(|| project.url.to_string(), str::to_owned),
    ))
}

fn read_overlay(path: &Path) -> Outcome<PodOverlay> {
    let at = format!("at 'spawner.kubernetes.template': {}", path.display());
    let text = one_shot::read_short(path, "a template").or_usage_at(&at)?;
    PodOverlay::read(&text).or_usage_at(at)
}
