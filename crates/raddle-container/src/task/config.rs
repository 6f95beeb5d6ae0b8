//! The configuration of the container for an attempt. Pure.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount as EngineMount,
    MountTmpfsOptions, MountType,
};
use raddle_model::{Limits, Tid};
use raddle_runner::container::INIT;

use super::{ContainerParams, process_identity};
use crate::{BindMount, ContainerLimits, hardened_host_config};

pub(super) const TASK: &str = "raddle.task";
pub(super) const ATTEMPT: &str = "raddle.attempt";
/// Label: the container supervisor that the container belongs to.
pub(super) const SUPERVISOR_LABEL: &str = "raddle.supervisor";
/// An unprivileged user, unknown on this machine and in most images.
const USER: &str = "65532:65532";
/// Path of this program in the container.
const PROGRAM: &str = "/.raddle";
/// Path of this program's shared libraries in the container. With them it runs in an image with
/// another C library, or none.
const LIBRARIES: &str = "/.raddle-lib";
const DIRECTORY: &str = "/tmp";

/// Defaults, as in a sandbox.
const MEMORY_MB: u64 = 1024;
const PROCS: u64 = 256;
const TMP_MB: u64 = 256;
const TMP_FILES: u64 = 65_536;
/// Processes of ours: process 1.
const OURS: u64 = 1;
/// No CPU limit.
const ALL_CPUS: f64 = 0.0;
const MIB: i64 = 1 << 20;
const HOST_NETWORK: &str = "host";

/// The name of the container of an attempt.
pub(super) fn container_name(tid: Tid, attempt: u32) -> String {
    format!("raddle-{tid}-{attempt}")
}

/// The container for an attempt. Process 1 is `program` with its `libraries`. `volumes` are the
/// volumes of the image, which become tmpfs mounts.
pub(super) fn create_body(
    params: &ContainerParams,
    program: &Path,
    libraries: &[PathBuf],
    supervisor: &process_identity::ProcessIdentity,
    volumes: &[String],
) -> ContainerCreateBody {
    let labels = [
        (TASK, params.request.tid.to_string()),
        (ATTEMPT, params.request.attempt.to_string()),
        (SUPERVISOR_LABEL, supervisor.to_string()),
    ];
    ContainerCreateBody {
        user: Some(USER.into()),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        open_stdin: Some(true),
        // The container ends when its supervisor detaches.
        stdin_once: Some(true),
        // `docker inspect` shows these variables to everyone. Those of the task go to process 1 as
        // a message.
        env: Some(vec![
            format!("HOME={DIRECTORY}"),
            format!("TMPDIR={DIRECTORY}"),
        ]),
        entrypoint: Some(entrypoint(libraries)),
        cmd: Some(Vec::new()),
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".into()]),
            ..HealthConfig::default()
        }),
        image: Some(params.image.clone()),
        working_dir: Some(DIRECTORY.into()),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
        host_config: Some(host_config(params, program, libraries, volumes)),
        ..ContainerCreateBody::default()
    }
}

/// The command line of process 1. A dynamically linked program starts through its own loader,
/// because the loader of the image may not load our libraries.
fn entrypoint(libraries: &[PathBuf]) -> Vec<String> {
    let loader = libraries.iter().find_map(|path| {
        path.file_name()?
            .to_str()
            .filter(|name| name.starts_with("ld-"))
    });
    let mut words = Vec::new();
    if let Some(loader) = loader {
        words.extend([
            format!("{LIBRARIES}/{loader}"),
            "--library-path".into(),
            LIBRARIES.into(),
        ]);
    }
    words.extend([PROGRAM.into(), INIT.into()]);
    words
}

fn host_config(
    params: &ContainerParams,
    program: &Path,
    libraries: &[PathBuf],
    volumes: &[String],
) -> HostConfig {
    let Limits {
        memory_mb,
        cpu_percent,
        max_procs,
        ..
    } = params.request.limits;
    let procs = max_procs.unwrap_or(PROCS).saturating_add(OURS);
    let limits = ContainerLimits {
        memory_mb: memory_mb.unwrap_or(MEMORY_MB),
        cpus: cpu_percent.map_or(ALL_CPUS, |percent| f64::from(percent) / 100.0),
        pids: procs.try_into().unwrap_or(u32::MAX),
        tmp_mb: TMP_MB,
        gpus: None,
        networks: params
            .is_in_host_network
            .then(|| HOST_NETWORK.to_owned())
            .into_iter()
            .collect(),
        seccomp: None,
    };
    let mut mounts = vec![BindMount {
        from: program.to_path_buf(),
        to: PROGRAM.into(),
    }];
    mounts.extend(libraries.iter().filter_map(|from| {
        let to = Path::new(LIBRARIES).join(from.file_name()?);
        Some(BindMount {
            from: from.clone(),
            to,
        })
    }));
    let mut host = hardened_host_config(&limits, &mounts, None);
    // `/tmp` is not `noexec`, so that tasks can run programs that they build.
    let tmp = format!("rw,exec,nosuid,nodev,size={TMP_MB}m,nr_inodes={TMP_FILES},mode=1777");
    host.tmpfs = Some(HashMap::from([(DIRECTORY.into(), tmp)]));
    host.mounts
        .get_or_insert_default()
        .extend(volumes.iter().map(|path| in_memory(path)));
    // Only the supervisor reads the output.
    host.log_config = Some(HostConfigLogConfig {
        typ: Some("none".into()),
        config: None,
    });
    host
}

/// A tmpfs mount for a volume of the image: on the engine's disk it would have no size limit.
fn in_memory(path: &str) -> EngineMount {
    EngineMount {
        target: Some(path.to_owned()),
        typ: Some(MountType::TMPFS),
        tmpfs_options: Some(MountTmpfsOptions {
            size_bytes: Some(TMP_MB as i64 * MIB),
            mode: Some(0o1777),
            ..MountTmpfsOptions::default()
        }),
        ..EngineMount::default()
    }
}

#[cfg(test)]
mod tests {
    use raddle_runner::ExecRequest;

    use super::{super::params::tests::params, *};

    fn made(params: &ContainerParams, volumes: &[&str]) -> (ContainerCreateBody, HostConfig) {
        let volumes: Vec<String> = volumes.iter().map(ToString::to_string).collect();
        let identity = "boot/space 1 2".parse().unwrap();
        let libraries = ["/usr/lib/ld-linux.so.2", "/usr/lib/libc.so.6"].map(PathBuf::from);
        let mut body = create_body(
            params,
            Path::new("/bin/raddle"),
            &libraries,
            &identity,
            &volumes,
        );
        let host = body.host_config.take().unwrap();
        (body, host)
    }

    #[test]
    fn nothing_is_allowed_that_the_task_does_not_ask_for() {
        let (body, host) = made(&params(), &[]);
        assert_eq!(
            (body.user.as_deref(), body.stdin_once),
            (Some("65532:65532"), Some(true))
        );
        assert_eq!(host.cap_drop, Some(vec!["ALL".into()]));
        assert_eq!(
            (host.readonly_rootfs, host.privileged, host.auto_remove),
            (Some(true), Some(false), Some(true))
        );
        assert_eq!(
            host.security_opt,
            Some(vec!["no-new-privileges:true".into()])
        );
        assert_eq!(host.network_mode.as_deref(), Some("none"));
        assert_eq!(
            (host.memory, host.memory_swap, host.pids_limit),
            (Some(1 << 30), Some(1 << 30), Some(257))
        );
        assert_eq!(host.nano_cpus, Some(0));
        let mounts = host.mounts.unwrap();
        let targets: Vec<_> = mounts
            .iter()
            .filter_map(|mount| mount.target.as_deref())
            .collect();
        assert_eq!(
            targets,
            [
                "/.raddle",
                "/.raddle-lib/ld-linux.so.2",
                "/.raddle-lib/libc.so.6"
            ]
        );
        assert!(mounts.iter().all(|mount| mount.read_only == Some(true)));
        let words = [
            "/.raddle-lib/ld-linux.so.2",
            "--library-path",
            "/.raddle-lib",
            "/.raddle",
            "__init",
        ];
        assert_eq!(body.entrypoint, Some(words.map(String::from).to_vec()));
        assert_eq!(entrypoint(&[]), ["/.raddle", "__init"]);
    }

    #[test]
    fn applies_requested_limits_and_hides_the_environment() {
        let limits = Limits {
            memory_mb: Some(64),
            cpu_percent: Some(50),
            max_fds: Some(9),
            max_procs: Some(u64::MAX),
        };
        let (body, host) = made(
            &ContainerParams {
                request: ExecRequest {
                    limits,
                    ..params().request
                },
                is_in_host_network: true,
                ..params()
            },
            &["/data"],
        );
        assert_eq!(
            (host.memory, host.nano_cpus),
            (Some(64 << 20), Some(500_000_000))
        );
        assert_eq!(host.pids_limit, Some(u32::MAX.into()));
        assert_eq!(host.network_mode.as_deref(), Some("host"));
        let volume = host.mounts.as_ref().unwrap().last().unwrap();
        assert_eq!(
            (volume.typ, volume.target.as_deref()),
            (Some(MountType::TMPFS), Some("/data"))
        );
        assert!(!format!("{body:?}{host:?}").contains("hidden"));
        assert_eq!(
            container_name(params().request.tid, 2),
            "raddle-1794800817069096960-2"
        );
    }
}
