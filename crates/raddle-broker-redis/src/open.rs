//! Checks of a server before tasks are stored there.

use std::collections::HashMap;

use redis::aio::MultiplexedConnection;

use super::{failure::Fault, schema::Keys, script, target::ServerTarget};
use raddle_broker::Error;

/// The oldest version with all required commands.
const OLDEST: (u32, u32) = (6, 2);
/// The first version with `WAITAOF`.
const WAITS_FOR_DISK: (u32, u32) = (7, 2);
/// The version of the key layout. Incremented with each change that an older version cannot read or
/// would damage.
const LAYOUT: u32 = 4;
/// The layout of a namespace without a stored version.
const FIRST_LAYOUT: u32 = 1;

/// A server's report from the time of the connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Server {
    pub(super) info: HashMap<String, String>,
    /// Its snapshot configuration, if it may be read.
    pub(super) save: Option<String>,
    /// Its `appendfsync` setting, if it may be read.
    pub(super) appendfsync: Option<String>,
}

impl Server {
    /// One field of `INFO`.
    pub(super) fn get(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    pub(super) fn has_aof(&self) -> bool {
        self.get("aof_enabled") == "1"
    }

    /// Whether it persists anything, as far as known.
    pub(super) fn is_volatile(&self) -> bool {
        !self.has_aof() && self.save.as_deref().is_some_and(str::is_empty)
    }

    fn version(&self) -> (u32, u32) {
        let mut numbers = self
            .get("redis_version")
            .split('.')
            .map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }
}

/// Inspects a server, refuses one that would lose tasks, and extends leases after it was away.
pub(super) async fn inspect(
    connection: &mut MultiplexedConnection,
    target: &ServerTarget,
    keys: &Keys,
) -> Result<Server, Fault> {
    let explain = |error: redis::RedisError| target.explain(&error);
    let mut ask = redis::pipe();
    ask.cmd("INFO");
    for key in keys.fixed() {
        ask.cmd("TYPE").arg(key);
    }
    let mut answers: Vec<String> = ask.query_async(connection).await.map_err(explain)?;
    let mut server = Server {
        info: parse(&answers.remove(0)),
        ..Server::default()
    };
    let mut config = redis::pipe();
    config
        .cmd("CONFIG")
        .arg("GET")
        .arg("save")
        .cmd("CONFIG")
        .arg("GET")
        .arg("appendfsync");
    // Hosted servers may not allow this command.
    if let Ok(found) = config.query_async::<Vec<Vec<String>>>(connection).await {
        server.save = found.first().and_then(|pair| pair.get(1)).cloned();
        server.appendfsync = found.get(1).and_then(|pair| pair.get(1)).cloned();
    }
    check(&server, target)?;
    check_types(&answers, target)?;
    check_layout(
        &record_run(connection, &server, keys)
            .await
            .map_err(explain)?,
        target,
    )?;
    Ok(server)
}

/// Refuses a server that lacks commands, or would lose what it stores.
fn check(server: &Server, target: &ServerTarget) -> Result<(), Fault> {
    let options = &target.address.options;
    let refused = |reason: String, fix: &str| {
        Err(Error::Refused {
            place: target.place(),
            reason,
            fix: fix.into(),
        }
        .into())
    };
    let version = server.version();
    if version < OLDEST {
        return refused(
            format!("is version {}", server.get("redis_version")),
            "use Redis 6.2 or newer",
        );
    }
    if server.get("loading") == "1" {
        return Err(Fault::Down("it is loading its data".into()));
    }
    if server.get("role") == "slave" {
        // After a failover a sentinel may still name the old master for a moment.
        if matches!(
            target.address.place,
            super::url::ServerLocation::Sentinel { .. }
        ) {
            return Err(Fault::Away("the sentinel named a replica".into()));
        }
        let (host, port) = (server.get("master_host"), server.get("master_port"));
        return refused(
            "is a read-only replica".into(),
            &format!("name its master, {host}:{port}"),
        );
    }
    let policy = server.get("maxmemory_policy");
    if policy != "noeviction" && !policy.is_empty() {
        return refused(
            format!(
                "evicts keys when memory runs short (maxmemory-policy {policy}), and tasks with them"
            ),
            "run 'redis-cli CONFIG SET maxmemory-policy noeviction', and set it in its configuration file",
        );
    }
    if server.is_volatile() && !options.volatile {
        return refused(
            "stores nothing on disk".into(),
            "run 'redis-cli CONFIG SET appendonly yes', and set it in its configuration file; or add ?volatile=yes to the URL if \
             losing all tasks with the server is acceptable",
        );
    }
    if options.wait_aof && version < WAITS_FOR_DISK {
        return refused(
            format!(
                "is version {} and has no WAITAOF",
                server.get("redis_version")
            ),
            "use Redis 7.2 or newer, or 'appendfsync always' instead of ?wait_aof=yes",
        );
    }
    Ok(())
}

/// Refuses a namespace that another program uses.
fn check_types(types: &[String], target: &ServerTarget) -> Result<(), Fault> {
    let is_ours = types
        .iter()
        .zip(Keys::types())
        .all(|(found, expected)| found == "none" || found == expected);
    if is_ours {
        Ok(())
    } else {
        Err(Error::Taken {
            place: target.place(),
        }
        .into())
    }
}

/// Refuses a namespace with another layout.
fn check_layout(layout: &str, target: &ServerTarget) -> Result<(), Fault> {
    let found = if layout.is_empty() {
        Ok(FIRST_LAYOUT)
    } else {
        layout.parse()
    };
    let fix = match found {
        Ok(LAYOUT) => return Ok(()),
        Ok(..LAYOUT) => {
            "choose another with ?namespace=; the version that stored the tasks in this one can finish them"
        }
        _ => "upgrade this program, or choose another with ?namespace=",
    };
    let found = found.map_or_else(|_| layout.to_owned(), |found| found.to_string());
    let reason = format!("has a namespace of another version (layout {found}, here {LAYOUT})");
    Err(Error::Refused {
        place: target.place(),
        reason,
        fix: fix.into(),
    }
    .into())
}

/// Stores the run id of the server, and returns the layout of the namespace.
async fn record_run(
    connection: &mut MultiplexedConnection,
    server: &Server,
    keys: &Keys,
) -> redis::RedisResult<String> {
    let run = server.get("run_id");
    let mut ask = redis::cmd("HMGET");
    ask.arg(keys.named("meta")).arg("run").arg("layout");
    let (known, layout): (Option<String>, Option<String>) = ask.query_async(connection).await?;
    if known.as_deref() == Some(run) {
        return Ok(layout.unwrap_or_default());
    }
    let mut boot = script::START_RUN.code.prepare_invoke();
    boot.key(&[keys.named("meta"), &keys.absent()]).arg(&[
        keys.prefix(),
        "",
        "",
        run,
        &LAYOUT.to_string(),
    ]);
    boot.invoke_async(connection).await
}

fn parse(info: &str) -> HashMap<String, String> {
    let pairs = info.lines().filter_map(|line| line.trim().split_once(':'));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}
