//! `hardened_host_config`: container limits as settings of the Docker engine. Pure.
//!
//! Everything is denied that is not asked for: the container is not root, has no capabilities and
//! gains none, writes only to `/tmp`, has only the named networks, and runs under a seccomp filter.

use std::{collections::HashMap, path::PathBuf};

use bollard::models::{
    self, DeviceRequest, HostConfig, HostConfigLogConfig, MountType, ResourcesUlimits,
};

use crate::{ContainerLimits, Gpus};

/// A directory of this machine that a container sees, read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindMount {
    /// Its path on this machine.
    pub from: PathBuf,
    /// Its path in the container.
    pub to: PathBuf,
}

/// The engine's name for no network.
const NO_NETWORK: &str = "none";
const MIB: i64 = 1 << 20;
/// All GPUs.
const ALL_GPUS: i64 = -1;

/// The host configuration of a container with these limits and read-only mounts. `seccomp` is a
/// profile that replaces the engine's default.
pub fn hardened_host_config(
    limits: &ContainerLimits,
    mounts: &[BindMount],
    seccomp: Option<&str>,
) -> HostConfig {
    let memory = i64::try_from(limits.memory_mb)
        .unwrap_or(i64::MAX / MIB)
        .saturating_mul(MIB);
    let mut security = vec!["no-new-privileges:true".to_owned()];
    security.extend(seccomp.map(|profile| format!("seccomp={profile}")));
    let tmp = format!("rw,nosuid,nodev,size={}m,mode=1777", limits.tmp_mb);
    HostConfig {
        auto_remove: Some(true),
        cap_drop: Some(vec!["ALL".into()]),
        device_requests: limits.gpus.map(|gpus| vec![gpu_request(gpus)]),
        ipc_mode: Some("private".into()),
        // The launcher reads the output as it comes. The log is for a launcher that adopts the
        // container.
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".into()),
            config: Some(HashMap::from([
                ("max-size".into(), "1m".into()),
                ("max-file".into(), "1".into()),
            ])),
        }),
        memory: Some(memory),
        // Memory and swap together, so there is no swap.
        memory_swap: Some(memory),
        mounts: Some(mounts.iter().map(bind_mount).collect()),
        nano_cpus: Some((limits.cpus * 1e9) as i64),
        network_mode: Some(
            limits
                .networks
                .first()
                .map_or(NO_NETWORK, String::as_str)
                .to_owned(),
        ),
        pids_limit: Some(limits.pids.into()),
        privileged: Some(false),
        readonly_rootfs: Some(true),
        security_opt: Some(security),
        tmpfs: Some(HashMap::from([("/tmp".into(), tmp)])),
        // A core file would write the memory of a worker to disk.
        ulimits: Some(vec![ResourcesUlimits {
            name: Some("core".into()),
            soft: Some(0),
            hard: Some(0),
        }]),
        ..HostConfig::default()
    }
}

/// A read-only mount. Sockets in it can still be connected to.
fn bind_mount(mount: &BindMount) -> models::Mount {
    models::Mount {
        source: Some(mount.from.display().to_string()),
        target: Some(mount.to.display().to_string()),
        typ: Some(MountType::BIND),
        read_only: Some(true),
        ..models::Mount::default()
    }
}

fn gpu_request(gpus: Gpus) -> DeviceRequest {
    let count = match gpus {
        Gpus::Count(count) => count.into(),
        Gpus::All => ALL_GPUS,
    };
    DeviceRequest {
        count: Some(count),
        capabilities: Some(vec![vec!["gpu".into()]]),
        ..DeviceRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denies_everything_by_default() {
        let host = hardened_host_config(&ContainerLimits::default(), &[], None);
        assert_eq!(host.cap_drop, Some(vec!["ALL".into()]));
        assert_eq!(host.cap_add, None);
        assert_eq!(
            host.security_opt,
            Some(vec!["no-new-privileges:true".into()]),
            "the engine's default filter applies"
        );
        assert_eq!(
            (host.readonly_rootfs, host.privileged, host.auto_remove),
            (Some(true), Some(false), Some(true))
        );
        assert_eq!(host.network_mode.as_deref(), Some("none"));
        assert_eq!(
            (host.memory, host.memory_swap),
            (Some(1 << 30), Some(1 << 30))
        );
        assert_eq!(
            (host.nano_cpus, host.pids_limit),
            (Some(1_000_000_000), Some(256))
        );
        assert_eq!(
            (host.device_requests, host.devices, host.pid_mode),
            (None, None, None)
        );
        assert_eq!(
            host.tmpfs.unwrap()["/tmp"],
            "rw,nosuid,nodev,size=64m,mode=1777"
        );
    }

    #[test]
    fn applies_limits_mounts_and_networks() {
        let limits = ContainerLimits {
            gpus: Some(Gpus::All),
            networks: vec!["inner".into(), "outer".into()],
            cpus: 0.5,
            ..ContainerLimits::default()
        };
        let mounts = [BindMount {
            from: "/here".into(),
            to: "/there".into(),
        }];
        let host = hardened_host_config(&limits, &mounts, Some("{}"));
        let mount = &host.mounts.unwrap()[0];
        assert_eq!(
            (mount.source.as_deref(), mount.target.as_deref()),
            (Some("/here"), Some("/there"))
        );
        assert_eq!(mount.read_only, Some(true));
        assert_eq!(host.security_opt.unwrap()[1], "seccomp={}");
        assert_eq!(
            (host.network_mode.as_deref(), host.nano_cpus),
            (Some("inner"), Some(500_000_000))
        );
        assert_eq!(host.device_requests.unwrap()[0].count, Some(-1));
    }
}
