//! Discovery and publishing, as flags describe them.

use std::{path::Path, sync::Arc};

#[cfg(feature = "lan")]
use raddle_discovery::LanDiscovery;
use raddle_discovery::{Discovery, DiscoveryError, DnsDiscovery, FileDiscovery, Publisher};
use raddle_worker::discovery::BrokerDiscovery;

use super::note;
use crate::{
    args::{DiscoveryArgs, Global, PoolServeArgs},
    context::Context,
    error::{Failure, Outcome},
};

/// One publisher for each `--publish` that needs one.
pub(super) async fn publishers(
    global: &Global,
    args: &PoolServeArgs,
) -> Outcome<Vec<Arc<dyn Publisher>>> {
    let mut all: Vec<Arc<dyn Publisher>> = Vec::new();
    for finding in &args.discovery {
        match finding {
            // Workers always publish there.
            DiscoveryArgs::Local => {}
            #[cfg(feature = "lan")]
            DiscoveryArgs::Lan(name) => {
                check_reached(args)?;
                let lan = LanDiscovery::new(name.as_ref().unwrap_or(&args.name)).map_err(wrong)?;
                // Each worker publishes its own port.
                let lan = match &args.advertise {
                    Some(advertise) => lan.advertise(advertise.host()).map_err(wrong)?,
                    None => lan,
                };
                all.push(Arc::new(lan));
            }
            DiscoveryArgs::File(path) => {
                check_place(args, "file:PATH")?;
                check_directory(path)?;
                all.push(Arc::new(FileDiscovery::new(path).map_err(wrong)?));
            }
            DiscoveryArgs::Dns(_) => note(global, &entered_by_others(args)),
            DiscoveryArgs::Broker(name) => {
                check_place(args, "broker")?;
                let broker = broker(global, name.as_ref().unwrap_or(&args.name)).await?;
                // The routines of another program are not known here.
                all.push(Arc::new(if args.program.is_some() {
                    broker.routines([""; 0])
                } else {
                    broker
                }));
            }
        }
    }
    Ok(all)
}

/// The discovery of the flags, and a name for all its workers.
pub(super) async fn discovery(
    global: &Global,
    finding: &DiscoveryArgs,
    name: &str,
    is_secure: bool,
) -> Outcome<(Arc<dyn Discovery>, String)> {
    Ok(match finding {
        DiscoveryArgs::Local => {
            unreachable!("pools of this machine are listed, and not listened for")
        }
        #[cfg(feature = "lan")]
        DiscoveryArgs::Lan(_) => (
            Arc::new(LanDiscovery::new(name).map_err(wrong)?),
            name.to_owned(),
        ),
        DiscoveryArgs::File(path) => (
            Arc::new(FileDiscovery::new(path).map_err(wrong)?),
            path.display().to_string(),
        ),
        DiscoveryArgs::Dns(Some(name)) => {
            let dns = DnsDiscovery::new(name).map_err(wrong)?;
            (
                Arc::new(if is_secure { dns.secure() } else { dns }),
                name.clone(),
            )
        }
        DiscoveryArgs::Dns(None) => {
            let how = "'dns:workers.example:7070', or 'dns:_raddle._tcp.workers.example'";
            return Err(Failure::Usage(format!(
                "say by which name they are found: {how}"
            )));
        }
        DiscoveryArgs::Broker(_) => (Arc::new(broker(global, name).await?), name.to_owned()),
    })
}

async fn broker(global: &Global, name: &str) -> Outcome<BrokerDiscovery> {
    let context = Context::new(global)?;
    if context.project.url == raddle_broker_connect::BrokerUrl::Memory {
        return Err(Failure::memory());
    }
    BrokerDiscovery::new(name, context.broker_of_worker().await?).map_err(wrong)
}

/// Refuses to publish an address that means another host elsewhere.
fn check_place(args: &PoolServeArgs, how: &str) -> Outcome<()> {
    match &args.bind {
        Some(bind) if bind.is_wildcard() && args.advertise.is_none() => {
            Err(Failure::Usage(format!(
                "'{bind}' is another place on every machine, and '--discovery {how}' tells others of it: \
             say where they find the workers with --advertise HOST, or serve at one address"
            )))
        }
        _ => Ok(()),
    }
}

/// Refuses to publish an address to machines that cannot reach it.
#[cfg(feature = "lan")]
fn check_reached(args: &PoolServeArgs) -> Outcome<()> {
    let is_reached = args
        .bind
        .as_ref()
        .is_some_and(|bind| bind.is_wildcard() || bind.is_global());
    if is_reached || args.advertise.is_some() {
        return Ok(());
    }
    let place = args.bind.as_ref().map_or_else(
        || "a place of this machine alone".into(),
        ToString::to_string,
    );
    Err(Failure::Usage(format!(
        "the workers would serve at {place}, and '--discovery lan' tells other machines of them: \
         have them serve at a port of the network, as with --bind 0.0.0.0:0"
    )))
}

/// Refuses a path that is no directory.
fn check_directory(path: &Path) -> Outcome<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let wrong = if path.exists() && !path.is_dir() {
        format!(
            "{} is a file: name a directory to publish workers in",
            path.display()
        )
    } else if !parent.is_dir() {
        format!(
            "there is no directory {} to make {} in",
            parent.display(),
            path.display()
        )
    } else {
        return Ok(());
    };
    Err(Failure::Usage(wrong))
}

/// Explains that a DNS name is kept elsewhere, and which record it needs.
fn entered_by_others(args: &PoolServeArgs) -> String {
    let said = "workers do not enter themselves in DNS: whoever keeps the name lets it lead here while they are ready";
    match args.metrics_addr {
        Some(_) => format!("{said}, which /readyz says"),
        None => format!("{said}, which --metrics-addr shows at /readyz"),
    }
}

fn wrong(error: DiscoveryError) -> Failure {
    Failure::Usage(error.to_string())
}
