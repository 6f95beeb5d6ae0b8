//! What a container may do: from an allowance to the engine's words for it. Pure.
//!
//! Everything is refused that is not asked for: it is no root, has no capability and gains none, writes nowhere but in `/tmp`, sees no
//! network but those that are named, and is under a seccomp filter.

use std::{collections::HashMap, path::PathBuf};

use bollard::models::{
    self, DeviceRequest, HostConfig, HostConfigLogConfig, MountType, ResourcesUlimits,
};

use crate::{ContainerLimits, Gpus};

/// A directory of this machine that a container sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindMount {
    /// Where it is here.
    pub from: PathBuf,
    /// Where it is there.
    pub to: PathBuf,
}

/// What the engine calls having no network.
const NO_NETWORK: &str = "none";
const MIB: i64 = 1 << 20;
/// All there are, as the engine counts GPUs.
const ALL_GPUS: i64 = -1;

/// The settings of a container that may use so much, and sees these directories without being able to change them. `seccomp` is a profile to be
/// used instead of the engine's own.
pub fn hardened(
    allowance: &ContainerLimits,
    mounts: &[BindMount],
    seccomp: Option<&str>,
) -> HostConfig {
    let memory = i64::try_from(allowance.memory_mb)
        .unwrap_or(i64::MAX / MIB)
        .saturating_mul(MIB);
    let mut security = vec!["no-new-privileges:true".to_owned()];
    security.extend(seccomp.map(|profile| format!("seccomp={profile}")));
    let tmp = format!("rw,nosuid,nodev,size={}m,mode=1777", allowance.tmp_mb);
    HostConfig {
        auto_remove: Some(true),
        cap_drop: Some(vec!["ALL".into()]),
        device_requests: allowance.gpus.map(|gpus| vec![request(gpus)]),
        ipc_mode: Some("private".into()),
        // Its words are heard as it says them; this is for who takes charge of it later.
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".into()),
            config: Some(HashMap::from([
                ("max-size".into(), "1m".into()),
                ("max-file".into(), "1".into()),
            ])),
        }),
        memory: Some(memory),
        // Together with swap: so there is none.
        memory_swap: Some(memory),
        mounts: Some(mounts.iter().map(bind).collect()),
        nano_cpus: Some((allowance.cpus * 1e9) as i64),
        network_mode: Some(
            allowance
                .networks
                .first()
                .map_or(NO_NETWORK, String::as_str)
                .to_owned(),
        ),
        pids_limit: Some(allowance.pids.into()),
        privileged: Some(false),
        readonly_rootfs: Some(true),
        security_opt: Some(security),
        tmpfs: Some(HashMap::from([("/tmp".into(), tmp)])),
        // A core file would be the memory of a worker, on the disk.
        ulimits: Some(vec![ResourcesUlimits {
            name: Some("core".into()),
            soft: Some(0),
            hard: Some(0),
        }]),
        ..HostConfig::default()
    }
}

/// Read-only. A socket in it can be connected to all the same.
fn bind(mount: &BindMount) -> models::Mount {
    models::Mount {
        source: Some(mount.from.display().to_string()),
        target: Some(mount.to.display().to_string()),
        typ: Some(MountType::BIND),
        read_only: Some(true),
        ..models::Mount::default()
    }
}

fn request(gpus: Gpus) -> DeviceRequest {
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
    fn nothing_is_allowed_that_is_not_asked_for() {
        let host = hardened(&ContainerLimits::default(), &[], None);
        assert_eq!(host.cap_drop, Some(vec!["ALL".into()]));
        assert_eq!(host.cap_add, None);
        assert_eq!(
            host.security_opt,
            Some(vec!["no-new-privileges:true".into()]),
            "and the engine's own filter"
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
    fn what_is_asked_for_is_there() {
        let allowance = ContainerLimits {
            gpus: Some(Gpus::All),
            networks: vec!["inner".into(), "outer".into()],
            cpus: 0.5,
            ..ContainerLimits::default()
        };
        let mounts = [BindMount {
            from: "/here".into(),
            to: "/there".into(),
        }];
        let host = hardened(&allowance, &mounts, Some("{}"));
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
