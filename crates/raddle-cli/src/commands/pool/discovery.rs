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
    for discovery in &args.discovery {
        match discovery {
            // Workers always publish there.
            DiscoveryArgs::Local => {}
            #[cfg(feature = "lan")]
            DiscoveryArgs::Lan(name) => {
                check_reachable(args)?;
                let lan =
                    LanDiscovery::new(name.as_ref().unwrap_or(&args.name)).map_err(usage_error)?;
                // Each worker publishes its own port.
                let lan = match &args.advertise {
                    Some(advertise) => lan.advertise(advertise.host()).map_err(usage_error)?,
                    None => lan,
                };
                all.push(Arc::new(lan));
            }
            DiscoveryArgs::File(path) => {
                check_address(args, "file:PATH")?;
                check_directory(path)?;
                all.push(Arc::new(FileDiscovery::new(path).map_err(usage_error)?));
            }
            DiscoveryArgs::Dns(_) => note(global, &dns_note(args)),
            DiscoveryArgs::Broker(name) => {
                check_address(args, "broker")?;
                let broker = broker(global, name.as_ref().unwrap_or(&args.name)).await?;
                // The routines of another program are not known here.
                all.push(Arc::new(
                    if args.program.is_some() || !args.host.is_empty() {
                        broker.routines([""; 0])
                    } else {
                        broker
                    },
                ));
            }
        }
    }
    Ok(all)
}

/// Makes the discovery of the flags, with a name for all its workers.
pub(super) async fn discovery(
    global: &Global,
    discovery: &DiscoveryArgs,
    name: &str,
    is_secure: bool,
) -> Outcome<(Arc<dyn Discovery>, String)> {
    Ok(match discovery {
        DiscoveryArgs::Local => {
            unreachable!("local pools are listed, and have no discovery here")
        }
        #[cfg(feature = "lan")]
        DiscoveryArgs::Lan(_) => (
            Arc::new(LanDiscovery::new(name).map_err(usage_error)?),
            name.to_owned(),
        ),
        DiscoveryArgs::File(path) => (
            Arc::new(FileDiscovery::new(path).map_err(usage_error)?),
            path.display().to_string(),
        ),
        DiscoveryArgs::Dns(Some(name)) => {
            let dns = DnsDiscovery::new(name).map_err(usage_error)?;
            (
                Arc::new(if is_secure { dns.secure() } else { dns }),
                name.clone(),
            )
        }
        DiscoveryArgs::Dns(None) => {
            let how = "'dns:workers.example:7070', or 'dns:_raddle._tcp.workers.example'";
            return Err(Failure::Usage(format!("give the DNS name: {how}")));
        }
        DiscoveryArgs::Broker(_) => (Arc::new(broker(global, name).await?), name.to_owned()),
    })
}

async fn broker(global: &Global, name: &str) -> Outcome<BrokerDiscovery> {
    let context = Context::new(global)?;
    if context.project.url == raddle_broker_connect::BrokerUrl::Memory {
        return Err(Failure::memory_broker());
    }
    BrokerDiscovery::new(name, context.open_for_worker().await?).map_err(usage_error)
}

/// Refuses to publish a wildcard address.
fn check_address(args: &PoolServeArgs, how: &str) -> Outcome<()> {
    match &args.bind {
        Some(bind) if bind.is_wildcard() && args.advertise.is_none() => {
            Err(Failure::Usage(format!(
                "'--discovery {how}' publishes the address '{bind}', which other machines cannot use: \
             give the host of this machine with --advertise HOST, or bind to one address"
            )))
        }
        _ => Ok(()),
    }
}

/// Refuses to publish an address to machines that cannot reach it.
#[cfg(feature = "lan")]
fn check_reachable(args: &PoolServeArgs) -> Outcome<()> {
    let is_reached = args
        .bind
        .as_ref()
        .is_some_and(|bind| bind.is_wildcard() || bind.is_global());
    if is_reached || args.advertise.is_some() {
        return Ok(());
    }
    let address = args.bind.as_ref().map_or_else(
        || "an address of this machine only".into(),
        ToString::to_string,
    );
    Err(Failure::Usage(format!(
        "the workers would serve at {address}, which other machines cannot reach, and '--discovery lan' \
         publishes it: bind to a network address, such as with --bind 0.0.0.0:0"
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
            "there is no directory {} to create {} in",
            parent.display(),
            path.display()
        )
    } else {
        return Ok(());
    };
    Err(Failure::Usage(wrong))
}

/// Explains that the user maintains the DNS record.
fn dns_note(args: &PoolServeArgs) -> String {
    let note =
        "workers do not change DNS: let the name resolve to this machine while they are ready";
    match args.metrics_addr {
        Some(_) => format!("{note}; check /readyz"),
        None => format!("{note}; --metrics-addr serves /readyz for that"),
    }
}

fn usage_error(error: DiscoveryError) -> Failure {
    Failure::Usage(error.to_string())
}
