//! Health checks for `raddle doctor`.

use super::{Redis, open::Server, value::micros};
use raddle_broker::{EngineHealth, HealthCheck, Result};

impl Redis {
    pub(super) async fn check_health(&self) -> Result<EngineHealth> {
        let server = self.link().server().await?;
        let options = &self.link().target.address.options;
        let now = micros(self.link().read(&redis::cmd("TIME")).await?) / 1000;
        let mut count = redis::cmd("ZCOUNT");
        count
            .arg(self.core.keys.named("leases"))
            .arg("-inf")
            .arg(format!("({now}"));
        let stale = self.link().read(&count).await?;
        let mut durability = loss_window(&server);
        if options.wait_aof {
            durability += "; submit and complete wait until the server has synced them to its disk";
        }
        if options.wait_replicas > 0 {
            durability += &format!(
                "; submit and complete wait until {} replicas have them",
                options.wait_replicas
            );
        }
        Ok(EngineHealth {
            engine: format!("redis {}", server.get("redis_version")),
            location: self.link().target.place(),
            durability,
            checks: vec![
                persistence(&server),
                writes(&server),
                replication(&server),
                memory(&server),
                stale_workers(stale),
            ],
        })
    }
}

/// Which failures lose which data.
fn loss_window(server: &Server) -> String {
    let window = if server.has_aof() {
        match server.appendfsync.as_deref() {
            Some("always") => {
                "every write is synced to disk before it is acknowledged: nothing that was accepted is lost in a power cut"
            }
            Some("no") => {
                "the kernel decides when writes are synced: a crash of the server loses nothing, a power cut up to half a minute"
            }
            Some(_) => {
                "writes are synced every second: a crash of the server loses nothing, a power cut about one second"
            }
            None => {
                "writes go to an append-only file: a crash of the server loses nothing; how often it is synced is unknown"
            }
        }
    } else if server.is_volatile() {
        "nothing is on disk: all tasks are lost with the server"
    } else {
        "the server saves snapshots: a crash or a power cut loses what came after the last save"
    };
    let replicas = match server.get("connected_slaves") {
        "" | "0" => "; there is no replica",
        _ => {
            "; replicas follow with a delay, so a failover can lose the last submissions and results unless ?wait_replicas= is set, and the last claims, whose tasks run again"
        }
    };
    format!("{window}{replicas}")
}

fn persistence(server: &Server) -> HealthCheck {
    let ok = server.has_aof();
    let detail = match (ok, server.appendfsync.as_deref(), server.save.as_deref()) {
        (true, fsync, _) => format!("appendonly yes, appendfsync {}", fsync.unwrap_or("unknown")),
        (false, _, Some("")) => "appendonly no, and no saves either".into(),
        (false, _, save) => format!("appendonly no, save {}", save.unwrap_or("unknown")),
    };
    let fix = (!ok).then(|| {
        "run 'redis-cli CONFIG SET appendonly yes', and set it in the configuration file".into()
    });
    HealthCheck {
        name: "persistence".into(),
        ok,
        detail,
        fix,
    }
}

fn writes(server: &Server) -> HealthCheck {
    let failed: Vec<_> = [
        "aof_last_write_status",
        "aof_last_bgrewrite_status",
        "rdb_last_bgsave_status",
    ]
    .into_iter()
    .filter(|name| !matches!(server.get(name), "" | "ok"))
    .collect();
    let ok = failed.is_empty();
    let detail = if ok {
        "the last ones succeeded".into()
    } else {
        failed.join(", ") + " failed"
    };
    let fix = (!ok).then(|| "check the server's log: its disk may be full".into());
    HealthCheck {
        name: "writes to disk".into(),
        ok,
        detail,
        fix,
    }
}

fn replication(server: &Server) -> HealthCheck {
    let cluster = if server.get("cluster_enabled") == "1" {
        ", a node of a cluster"
    } else {
        ""
    };
    let detail = format!(
        "role {}, {} replicas{cluster}",
        server.get("role"),
        server.get("connected_slaves")
    );
    let ok = server.get("role") == "master";
    let fix = (!ok)
        .then(|| "name its master in the URL, or use redis+sentinel://, which finds it".into());
    HealthCheck {
        name: "replication".into(),
        ok,
        detail,
        fix,
    }
}

fn memory(server: &Server) -> HealthCheck {
    let bytes = |name| server.get(name).parse::<u64>().unwrap_or(0);
    let (used, max) = (bytes("used_memory"), bytes("maxmemory"));
    let ok = max == 0 || used < max / 10 * 9;
    let limit = if max == 0 {
        "no limit".into()
    } else {
        format!("{} MiB allowed", max >> 20)
    };
    HealthCheck {
        name: "memory".into(),
        ok,
        detail: format!("{} MiB used, {limit}, policy {}", used >> 20, server.get("maxmemory_policy")),
        fix: (!ok).then(|| {
            "raise its limit with 'redis-cli CONFIG SET maxmemory', or shorten the retention of tasks".into()
        }),
    }
}

fn stale_workers(stale: u64) -> HealthCheck {
    HealthCheck {
        name: "stale workers".into(),
        ok: stale == 0,
        detail: format!("{stale} without a valid lease"),
        fix: (stale > 0).then(|| {
            "run 'raddle requeue-orphans', or start a worker, which reclaims their tasks".into()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failed_check_has_a_fix() {
        let bad = [
            ("aof_enabled", "0"),
            ("aof_last_write_status", "err"),
            ("role", "slave"),
            ("used_memory", "100"),
            ("maxmemory", "100"),
        ];
        let info = bad
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let server = Server {
            info,
            ..Server::default()
        };
        for check in [
            persistence(&server),
            writes(&server),
            replication(&server),
            memory(&server),
            stale_workers(1),
        ] {
            assert!(!check.ok && check.fix.is_some(), "{check:?}");
        }
    }
}
