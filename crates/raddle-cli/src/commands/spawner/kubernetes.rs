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
pub(super) fn pods(
    global: &Global,
    args: &SpawnerArgs,
    project: &Project,
    config: &Config,
    start: &StartArgs,
    base: &Path,
) -> Outcome<KubernetesLauncher> {
    refuse_what_a_pod_cannot_have(args, config)?;
    let queue = queue(project, config)?;
    let overlay = config
        .kubernetes
        .template
        .as_ref()
        .map(|path| template(&base.join(path)))
        .transpose()?;
    let model = PodTemplate {
        image: config.worker_image.clone().unwrap_or_default(),
        class: WorkerClass::new(&project.url.to_string(), &config.caps, &config.queues),
        args: one_shot::args(global, start),
        env: one_shot::env(start, config, TERMINATION_LOG),
        queue,
        annotations: vec![
            ("raddle.caps".into(), config.caps.to_string()),
            ("raddle.queues".into(), config.queues.join(",")),
        ],
        allowance: config.container.clone(),
        grace: config.kubernetes.grace.0,
        start_within: config.kubernetes.start_within.0,
        overlay: overlay.unwrap_or_default(),
    };
    let access = ClusterAccess::find(&config.kubernetes, base).map_err(Failure::Usage)?;
    Ok(KubernetesLauncher::new(access, model))
}

/// Refuses settings that only containers of one machine can have: ignoring them would break a
/// promise.
fn refuse_what_a_pod_cannot_have(args: &SpawnerArgs, config: &Config) -> Outcome<()> {
    let ContainerLimits {
        gpus,
        networks,
        seccomp,
        ..
    } = &config.container;
    let wrong = if args.serve.is_some() {
        "--serve is not for pods: they do not see this machine's files"
    } else if config.handlers.is_some() {
        "--handlers is not for pods: they do not see this machine's files; put the handlers into the image, and name their directory in \
         a template"
    } else if !networks.is_empty() {
        "at 'spawner.container.networks': pods are all in the network of their cluster: a NetworkPolicy says what they reach"
    } else if seccomp.is_some() {
        "at 'spawner.container.seccomp': pods have the filter of their node: a template may name another of its node's"
    } else if *gpus == Some(Gpus::All) {
        "at 'spawner.container.gpus': a cluster has no word for all of them: give a number"
    } else {
        return Ok(());
    };
    Err(Failure::Usage(wrong.into()))
}

/// How a worker finds the queue. A pod's spec must not contain a password: every user who may read
/// pods sees it.
fn queue(project: &Project, config: &Config) -> Outcome<QueueAccess> {
    if let Some(name) = config.kubernetes.queue_secret.clone() {
        return Ok(QueueAccess::Secret {
            name,
            key: config.kubernetes.queue_secret_key.clone(),
        });
    }
    if !project.url.is_on_network() {
        let reason = format!(
            "the broker {} is on this machine, and pods are not: use one that they can reach, as redis://",
            project.url
        );
        return Err(Failure::Usage(reason));
    }
    if project.url.has_password() {
        let reason = "at 'spawner.kubernetes.queue_secret': the queue URL holds a password, which has no place in a pod: put it into a \
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

fn template(path: &Path) -> Outcome<PodOverlay> {
    let at = format!("at 'spawner.kubernetes.template': {}", path.display());
    let text = one_shot::read_short(path, "a template").or_usage_at(&at)?;
    PodOverlay::read(&text).or_usage_at(at)
}
